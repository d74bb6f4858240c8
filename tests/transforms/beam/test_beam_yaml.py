"""The transforms for Beam YAML: rows in, rows out, by the names of the example."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.options.definitions import PIPELINES
from gristmill.transforms import (
    ReadAllArrayRecords,
    ReadAllTFRecords,
    ReadArrayRecords,
    ReadRecords,
    ReadTFRecords,
    RecordOptions,
    WriteArrayRecords,
    WriterOptions,
)
from gristmill.transforms.beam import beam_yaml
from tests.support.pipelines import IN_MEMORY, run
from tests.support.records import (
    text_records,
    write_array_records,
    write_tfrecords,
)

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "beam_yaml.yaml"
RECORDS = text_records(30)


@pytest.mark.slow
def test_records_as_rows(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "in")
    write_tfrecords(path, RECORDS)
    read = run(beam_yaml.read_tfrecords([path], with_source=True))
    assert sorted(row.record for row in read) == sorted(RECORDS)
    assert {row.file for row in read} == {path}
    named = beam.Create([beam.Row(where=path)])
    rows = run(named, beam_yaml.read_all_tfrecords("where"))
    assert [row._asdict().keys() for row in rows[:1]] == [{"record"}]
    assert sorted(row.record for row in rows) == sorted(RECORDS)


@pytest.mark.slow
def test_rows_as_a_dataset(tmp_path: pathlib.Path) -> None:
    out = str(tmp_path / "out")
    rows = [beam.Row(text=f"text {n}", number=n) for n in range(20)]
    write = beam_yaml.write_arrayrecords(out, "text", key="number", num_shards=1)
    (done,) = run(beam.Create(rows), write)
    assert (done.output, done.records, done.committed_before) == (out, 20, False)
    assert loader.open(out)[:] == [b"text %d" % n for n in range(20)]
    named = beam.Create([beam.Row(path=out)])
    read = run(named, beam_yaml.read_all_arrayrecords(with_index=True))
    in_order = sorted(read, key=lambda row: row.record_index)
    assert [row.record.decode() for row in in_order] == [row.text for row in rows]
    read = run(beam_yaml.read_arrayrecords([f"{out}/*.array_record*"]))
    assert sorted(row.record.decode() for row in read) == sorted(r.text for r in rows)


def test_no_parameter_is_missing() -> None:
    """What a transform takes, its function takes, apart from what rows say."""
    functions = {
        beam_yaml.read_tfrecords: (ReadTFRecords,),
        beam_yaml.read_all_tfrecords: (ReadAllTFRecords,),
        beam_yaml.read_arrayrecords: (ReadArrayRecords,),
        beam_yaml.read_all_arrayrecords: (ReadAllArrayRecords,),
        beam_yaml.read_records: (ReadRecords, RecordOptions),
        beam_yaml.write_arrayrecords: (WriteArrayRecords, WriterOptions),
    }
    # Those of records and of the writer have parameters of their own, a key says that
    # there are keys, and the versions of a codec are found out. No reader selects.
    others = {"records", "writer", "keyed", "versions", "select"}
    for function, kinds in functions.items():
        fields = {field.name for kind in kinds for field in dataclasses.fields(kind)}
        assert fields - others <= inspect.signature(function).parameters.keys()


def test_a_field_that_rows_do_not_have() -> None:
    rows = beam.Create([beam.Row(text="a")])
    with pytest.raises(Exception, match=r"(?s)no field 'record'.*one of text"):
        run(rows, beam_yaml.write_arrayrecords("never"))


def test_the_example_names_all() -> None:
    text = EXAMPLE.read_text("utf-8")
    names = re.findall(r"transforms\.beam\.beam_yaml\.(\w+)", text)
    public = [name for name in vars(beam_yaml) if name.startswith(("read", "write"))]
    assert sorted(names) == sorted(public)
    names = re.findall(r"pipelines\.beam\.yaml_commands\.(\w+)", text)
    assert sorted(names) == sorted(["append", *PIPELINES])
    with pytest.raises(InputError):
        beam_yaml.read_tfrecords([])


@pytest.mark.slow
def test_the_example_runs(tmp_path: pathlib.Path) -> None:
    for needed in ("pandas", "jsonschema"):
        pytest.importorskip(needed, reason="comes with apache-beam[yaml]")
    from apache_beam.yaml import main

    write_tfrecords(tmp_path / "in", RECORDS)
    text = EXAMPLE.read_text("utf-8")
    text = text.replace("{{ input }}", str(tmp_path / "in"))
    (tmp_path / "run.yaml").write_text(text.replace("{{ output }}", f"{tmp_path}/out"))
    main.run([f"--yaml_pipeline_file={tmp_path}/run.yaml", *IN_MEMORY])
    expected = sorted(record for record in RECORDS if len(record) > 20)
    assert sorted(loader.open(tmp_path / "out")[:]) == expected
    (tmp_path / "found").mkdir()
    for number in range(3):
        write_array_records(tmp_path / "found" / f"{number}.array_record", RECORDS)
    text = (EXAMPLE.parent / "beam_yaml_index.yaml").read_text("utf-8")
    text = text.replace("{{ files }}", f"{tmp_path}/found/*.array_record")
    (tmp_path / "index.yaml").write_text(text)
    main.run([f"--yaml_pipeline_file={tmp_path}/index.yaml", *IN_MEMORY])
    assert loader.open(tmp_path / "found", "train")[:] == 3 * RECORDS
