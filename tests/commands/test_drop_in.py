"""The stand-ins: side by side with what they stand in for."""

import inspect
import os
import pathlib
import subprocess
import sys

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill import pipelines
from gristmill.dataset import InputError, open_manifest
from tests.support.conversion import assert_whole, contents, read_output
from tests.support.pipelines import IN_MEMORY
from tests.support.records import read_array_records, text_records, write_tfrecords

DISK, GCS = "convert_tf_to_arrayrecord_disk", "convert_tf_to_arrayrecord_gcs"
NAMES = sorted({*pipelines.__all__} - {"dataflow_defaults"})
RECORDS = {name: text_records(60, seed=seed) for seed, name in enumerate("abc")}
RECORDS["d"] = []  # Beam writes such files of 0 bytes.
EVERYTHING = [record for records in RECORDS.values() for record in records]


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    """The current folder has `in/a.tfrecord`, and others of `b` and `c`."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("in")
    for name, records in RECORDS.items():
        write_tfrecords(f"in/{name}.tfrecord", records)


@pytest.fixture(scope="module")
def official():
    """The functions of array_record, which parse the command line at import."""
    arguments, sys.argv = sys.argv, sys.argv[:1]
    try:
        from array_record.beam import pipelines as module
    finally:
        sys.argv = arguments
    return module


def run(name, output, module=pipelines, inputs="in/*.tfrecord", **options):
    options["args"] = {"input": inputs, "output": output}
    options["pipeline_options"] = PipelineOptions(list(IN_MEMORY))
    getattr(module, name)(**options).run().wait_until_finish()


def outputs(folder):
    """Returns the records of the files in a directory, by file name."""
    return {
        path.name: read_array_records(path)
        for path in sorted(pathlib.Path(folder).iterdir())
        if path.is_file() and path.name != "dataset.json"
    }


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
def test_disk_beside_the_original(official):
    for folder, module in (("ours", pipelines), ("theirs", official)):
        os.mkdir(folder)
        run(DISK, f"{folder}/data", module, num_shards=4)
    ours, theirs = outputs("ours"), outputs("theirs")
    assert list(ours) == list(theirs)
    assert len(ours) == 4
    # The original loses the order of records.
    found = [sorted(r for shard in o.values() for r in shard) for o in (ours, theirs)]
    assert found == [sorted(EVERYTHING)] * 2
    assert read_output("ours", "data") == EVERYTHING
    assert_whole("ours")
    # Files of others are not replaced, our own are.
    before = contents("theirs")
    with pytest.raises(Exception, match="there already"):
        run(DISK, "theirs/data", num_shards=4)
    assert contents("theirs") == before
    run(DISK, "ours/data", inputs="in/b.tfrecord", num_shards=2)
    assert len(outputs("ours")) == 2
    assert read_output("ours", "data") == RECORDS["b"]
    assert_whole("ours")


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
def test_gcs_names(options, suffix):
    run(GCS, "out/", **options)
    expected = {f"{name}{suffix}": records for name, records in RECORDS.items()}
    assert outputs("out") == expected
    assert_whole("out")


@pytest.mark.slow
def test_prefixes_of_one_directory_are_splits():
    """Also those that no split can be named after, or that differ only in that."""
    prefixes = {"part 1": "a", "part+1": "b", "": "c"}
    for prefix, name in prefixes.items():
        run(DISK, f"my data/{prefix}", inputs=f"in/{name}.tfrecord")
    assert outputs("my data") == {
        f"{prefix}-00000-of-00001.arrayrecord": RECORDS[name]
        for prefix, name in prefixes.items()
    }
    assert len(open_manifest("my data").splits) == 3
    assert_whole("my data")


@pytest.mark.parametrize("again", [False, True])
def test_inputs_are_not_replaced(again):
    if again:
        run(GCS, "in")
    before = contents("in")
    for inputs, what in (
        ("in/*.tfrecord", "lies among the inputs"),
        ("in/a.tfrecord", "an input would be replaced"),
    ):
        with pytest.raises(Exception, match=what):
            run(GCS, "in", inputs=inputs, file_path_suffix="")
        assert contents("in") == before


@pytest.mark.parametrize("name", NAMES)
def test_nothing_happens_before_run(name):
    args = {"input": "nowhere", "output": "out/data"}
    made = getattr(pipelines, name)
    pipeline = made(args=args, pipeline_options=PipelineOptions([]))
    assert isinstance(pipeline, beam.Pipeline)
    assert os.listdir() == ["in"]
    for missing in args:
        with pytest.raises(InputError, match=f"(?s)no {missing} given.*`{missing}`"):
            made(args=args | {missing: None}, pipeline_options=PipelineOptions([]))


SCRIPT = """
from gristmill.pipelines import convert_tf_to_arrayrecord_disk_match_shards

if __name__ == "__main__":
    convert_tf_to_arrayrecord_disk_match_shards().run()
"""


@pytest.mark.slow
def test_script_whose_import_line_changed():
    pathlib.Path("script.py").write_text(SCRIPT)
    line = "script.py --input in/*.tfrecord --output out/movies"
    command = [sys.executable, *line.split()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert outputs("out") == {
        f"movies-{number:05d}-of-00004.arrayrecord": records
        for number, records in enumerate(RECORDS.values())
    }
    assert_whole("out")
