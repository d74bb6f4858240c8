"""The stand-ins: side by side with what they stand in for."""

import inspect
import subprocess
import sys

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill import pipelines
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.anywhere import verify
from tests.support.conversion import contents, read_output
from tests.support.pipelines import IN_MEMORY
from tests.support.records import read_array_records, text_records, write_tfrecords

DISK, GCS = "convert_tf_to_arrayrecord_disk", "convert_tf_to_arrayrecord_gcs"
NAMES = sorted({*pipelines.__all__} - {"dataflow_defaults"})
RECORDS = {name: text_records(60, seed=seed) for seed, name in enumerate("abc")}
RECORDS["d"] = []  # Beam writes such files of 0 bytes.
EVERYTHING = [record for records in RECORDS.values() for record in records]


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "in").mkdir()
    for name, records in RECORDS.items():
        write_tfrecords(tmp_path / "in" / f"{name}.tfrecord", records)
    return f"{tmp_path}/in/*.tfrecord"


@pytest.fixture(scope="module")
def official():
    """The functions of array_record, which parse the command line at import."""
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        from array_record.beam import pipelines as module
    finally:
        sys.argv = arguments
    return module


def run(name, inputs, output, module=pipelines, **options):
    options["args"] = {"input": inputs, "output": str(output)}
    options["pipeline_options"] = PipelineOptions(list(IN_MEMORY))
    getattr(module, name)(**options).run().wait_until_finish()


def outputs(folder):
    """Returns the records of the files in a directory, by file name."""
    return {
        path.name: read_array_records(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != "dataset.json"
    }


def assert_whole(dataset):
    assert not verify(str(dataset), workers=1).findings


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_of_array_record(name, official):
    ours = inspect.signature(getattr(pipelines, name)).parameters
    theirs = inspect.signature(getattr(official, name)).parameters
    assert list(ours) == list(theirs)
    for key, parameter in ours.items():
        assert parameter.kind == theirs[key].kind
        if key not in ("args", "pipeline_options"):
            assert parameter.default == theirs[key].default


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [1, 4])
def test_disk_beside_the_original(tmp_path, inputs, official, num_shards):
    for folder, module in (("ours", pipelines), ("theirs", official)):
        (tmp_path / folder).mkdir()
        run(DISK, inputs, tmp_path / folder / "data", module, num_shards=num_shards)
    ours, theirs = outputs(tmp_path / "ours"), outputs(tmp_path / "theirs")
    assert list(ours) == list(theirs)
    assert len(ours) == num_shards
    # The original loses the order of records.
    found = [sorted(r for shard in o.values() for r in shard) for o in (ours, theirs)]
    assert found == [sorted(EVERYTHING)] * 2
    assert read_output(tmp_path / "ours", "data") == EVERYTHING
    assert_whole(tmp_path / "ours")
    # Files of others are not replaced, our own are.
    before = contents(tmp_path / "theirs")
    with pytest.raises(Exception, match="there already"):
        run(DISK, inputs, tmp_path / "theirs" / "data", num_shards=num_shards)
    assert contents(tmp_path / "theirs") == before
    run(DISK, inputs.replace("*", "b"), tmp_path / "ours" / "data", num_shards=2)
    assert len(outputs(tmp_path / "ours")) == 2
    assert read_output(tmp_path / "ours", "data") == RECORDS["b"]
    assert_whole(tmp_path / "ours")


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "suffix"),
    [
        ({}, ".tfrecord.arrayrecord"),
        ({"file_path_suffix": ".ar"}, ".tfrecord.ar"),
        ({"overwrite_extension": True}, ".arrayrecord"),
        ({"overwrite_extension": True, "file_path_suffix": "-x"}, "-x"),
    ],
)
def test_gcs_names(tmp_path, inputs, options, suffix):
    run(GCS, inputs, f"{tmp_path}/out/", **options)
    expected = {f"{name}{suffix}": records for name, records in RECORDS.items()}
    assert outputs(tmp_path / "out") == expected
    assert_whole(tmp_path / "out")


@pytest.mark.slow
def test_prefixes_of_one_directory_are_splits(tmp_path, inputs):
    """Also those that no split can be named after, or that differ only in that."""
    out = tmp_path / "my data"
    prefixes = {"part 1": "a", "part+1": "b", "": "c"}
    for prefix, name in prefixes.items():
        run(DISK, inputs.replace("*", name), f"{out}/{prefix}")
    assert outputs(out) == {
        f"{prefix}-00000-of-00001.arrayrecord": RECORDS[name]
        for prefix, name in prefixes.items()
    }
    assert len(open_manifest(str(out)).splits) == 3
    assert_whole(out)


@pytest.mark.parametrize("again", [False, True])
def test_inputs_are_not_replaced(tmp_path, inputs, again):
    if again:
        run(GCS, inputs, tmp_path / "in")
    before = contents(tmp_path / "in")
    for given, what in (
        (inputs, "lies among the inputs"),
        (f"{tmp_path}/in/{min(RECORDS)}.tfrecord", "an input would be replaced"),
    ):
        with pytest.raises(Exception, match=what):
            run(GCS, given, tmp_path / "in", file_path_suffix="")
        assert contents(tmp_path / "in") == before


@pytest.mark.parametrize("name", NAMES)
def test_nothing_happens_before_run(tmp_path, name):
    args = {"input": "nowhere", "output": str(tmp_path / "out" / "data")}
    made = getattr(pipelines, name)
    pipeline = made(args=args, pipeline_options=PipelineOptions([]))
    assert isinstance(pipeline, beam.Pipeline)
    assert list(tmp_path.iterdir()) == []
    for missing in args:
        with pytest.raises(InputError, match=f"(?s)no {missing} given.*`{missing}`"):
            made(args=args | {missing: None}, pipeline_options=PipelineOptions([]))


SCRIPT = """
from gristmill.pipelines import convert_tf_to_arrayrecord_disk_match_shards

if __name__ == "__main__":
    convert_tf_to_arrayrecord_disk_match_shards().run()
"""


@pytest.mark.slow
def test_script_whose_import_line_changed(tmp_path, inputs):
    (tmp_path / "script.py").write_text(SCRIPT)
    subprocess.run(
        [sys.executable, "script.py", "--input", inputs, "--output", "out/movies"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert outputs(tmp_path / "out") == {
        f"movies-{number:05d}-of-00004.arrayrecord": records
        for number, records in enumerate(RECORDS.values())
    }
    assert_whole(tmp_path / "out")
