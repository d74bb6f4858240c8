"""The transforms for Beam YAML: rows in, rows out, by the names of the example."""

from __future__ import annotations

import pathlib
import re

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.transforms.beam import beam_yaml
from tests.support.pipelines import IN_MEMORY, run
from tests.support.records import (
    text_records,
    write_array_records,
    write_tfrecords,
)

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "beam_yaml.yaml"
RECORDS = text_records(30)


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


def test_rows_as_a_dataset(tmp_path: pathlib.Path) -> None:
    out = str(tmp_path / "out")
    rows = [beam.Row(text=f"text {n}", number=n) for n in range(20)]
    write = beam_yaml.write_arrayrecords(out, "text", key="number", num_shards=1)
    (done,) = run(beam.Create(rows), write)
    assert (done.output, done.records, done.committed_before) == (out, 20, False)
    assert loader.open(out)[:] == [b"text %d" % n for n in range(20)]
    (found,) = run(beam_yaml.verify_dataset(out))
    assert (found.records, found.findings) == (20, [])
    named = beam.Create([beam.Row(path=out)])
    read = run(named, beam_yaml.read_all_arrayrecords(with_index=True))
    in_order = sorted(read, key=lambda row: row.record_index)
    assert [row.record.decode() for row in in_order] == [row.text for row in rows]
    read = run(beam_yaml.read_arrayrecords([f"{out}/*.array_record*"]))
    assert sorted(row.record.decode() for row in read) == sorted(r.text for r in rows)


def test_a_conversion(tmp_path: pathlib.Path) -> None:
    write_tfrecords(tmp_path / "in", RECORDS)
    out = str(tmp_path / "out")
    convert = beam_yaml.convert_files(
        [str(tmp_path / "in")], out, plan="num_shards", value=2
    )
    (done,) = run(convert)
    assert (done.output, done.shards, done.records) == (out, 2, len(RECORDS))
    assert loader.open(out)[:] == RECORDS


def test_an_index(tmp_path: pathlib.Path) -> None:
    for split in ("test", "train"):
        name = f"old-{split}.array_record-00000-of-00001"
        write_array_records(tmp_path / name, RECORDS)
    rows = run(beam_yaml.index_arrayrecords([f"{tmp_path}/old-*"]))
    assert [row._asdict() for row in sorted(rows, key=lambda row: row.split)] == [
        {"name": "old", "split": split, "shards": 1, "records": len(RECORDS)}
        for split in ("test", "train")
    ]
    again = beam_yaml.index_arrayrecords([f"{tmp_path}/*"], split="test")
    with pytest.raises(Exception, match="with this split already"):
        run(again)


def test_a_field_that_rows_do_not_have() -> None:
    rows = beam.Create([beam.Row(text="a")])
    with pytest.raises(Exception, match=r"(?s)no field 'record'.*one of text"):
        run(rows, beam_yaml.write_arrayrecords("never"))


def test_the_example_names_all() -> None:
    text = EXAMPLE.read_text("utf-8")
    names = re.findall(r"transforms\.beam\.beam_yaml\.(\w+)", text)
    public = [name for name in vars(beam_yaml) if name.startswith(("read", "write"))]
    assert sorted(names) == sorted(
        [*public, "convert_files", "index_arrayrecords", "verify_dataset"]
    )
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
