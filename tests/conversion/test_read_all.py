"""ReadAllRecords: all that the elements name, each by itself."""

from __future__ import annotations

import gzip
import pathlib

import apache_beam as beam
import pytest
from apache_beam.transforms.window import (
    FixedWindows,
    TimestampedValue,
)
from apache_beam.typehints.decorators import TypeCheckError

from gristmill.dataset.base.errors import InputError
from gristmill.transforms import (
    ReadAllRecords,
    RecordOptions,
    SourceRecord,
    WriteArrayRecords,
)
from tests.support.pipelines import run
from tests.support.records import frames_of, text_records, write_array_records

FILES = {name: text_records(20, seed=seed) for seed, name in enumerate("abc")}


@pytest.fixture
def tfrecords(tmp_path: pathlib.Path) -> pathlib.Path:
    for name, records in FILES.items():
        data = frames_of(records)
        (tmp_path / name).write_bytes(gzip.compress(data) if name == "b" else data)
    return tmp_path


@pytest.mark.parametrize("name", ["auto", "tfrecord"])
def test_patterns_of_tfrecords(tfrecords: pathlib.Path, name: str) -> None:
    records = RecordOptions(input_format=name)
    patterns = beam.Create([f"{tfrecords}/[ab]", f"{tfrecords}/c", f"{tfrecords}/c"])
    found = run(
        patterns, ReadAllRecords(range_bytes=100, records=records)
    )  # Parts of 1,600 bytes.
    assert sorted(found) == sorted(FILES["a"] + FILES["b"] + FILES["c"] * 2)


def test_paths_and_sources_of_tfrecords(tfrecords: pathlib.Path) -> None:
    paths = beam.Create([tfrecords / "a", tfrecords / "b"])
    found = run(paths, ReadAllRecords(with_source=True))
    assert all(isinstance(one, SourceRecord) for one in found)
    for name in "ab":
        of_file = [one for one in found if one.file == str(tfrecords / name)]
        records = [one.record for one in sorted(of_file, key=lambda one: one.place)]
        assert records == FILES[name]


@pytest.mark.slow
def test_what_was_just_written(tmp_path: pathlib.Path) -> None:
    found = run(
        beam.Create(FILES["a"]),
        WriteArrayRecords(tmp_path / "out", num_shards=2, split="test"),
        beam.Map(lambda result: result.output),
        ReadAllRecords(split="test"),
    )
    assert sorted(found) == sorted(FILES["a"])


def test_files_of_arrayrecords(tmp_path: pathlib.Path) -> None:
    for name, records in FILES.items():
        write_array_records(tmp_path / name, records)
    paths = beam.Create([tmp_path / "a", tmp_path / "c"])
    found = run(paths, ReadAllRecords(with_source=True, range_bytes=500))
    expected = [
        SourceRecord(str(tmp_path / name), number, record)
        for name in "ac"
        for number, record in enumerate(FILES[name])
    ]
    assert sorted(found) == sorted(expected)


def test_records_are_in_the_window_of_their_pattern(tfrecords: pathlib.Path) -> None:
    stamped = [
        TimestampedValue(str(tfrecords / name), n + 0.25) for n, name in enumerate("ac")
    ]
    counted = run(
        beam.Create(stamped),
        beam.Map(lambda value: value).with_output_types(str),
        beam.WindowInto(FixedWindows(1)),
        ReadAllRecords(range_bytes=100),
        beam.Map(lambda record, at=beam.DoFn.TimestampParam: (float(at), record)),
        beam.WindowInto(beam.window.GlobalWindows()),
    )
    for second, name in enumerate("ac"):
        here = [record for at, record in counted if at == second + 0.25]
        assert sorted(here) == sorted(FILES[name])


def test_elements_of_several_formats(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(frames_of(FILES["a"]))
    write_array_records(tmp_path / "b", FILES["b"])
    (tmp_path / "c.jsonl").write_text('{"text": "c"}\n')
    lines = RecordOptions(record="line")
    named = beam.Create([str(tmp_path / "c.jsonl")])
    assert run(named, ReadAllRecords(records=lines)) == [b'{"text": "c"}']
    named = beam.Create([str(tmp_path / name) for name in "ab"])
    assert sorted(run(named, ReadAllRecords())) == sorted(FILES["a"] + FILES["b"])


@pytest.mark.parametrize("name", ["arrayrecord", "auto", "tfrecord"])
def test_an_element_that_matches_nothing(tmp_path: pathlib.Path, name: str) -> None:
    read = ReadAllRecords(records=RecordOptions(input_format=name))
    with pytest.raises(Exception, match="matches"):
        run(beam.Create([f"{tmp_path}/none*"]), read)


def test_what_it_takes_is_checked_at_once() -> None:
    pipeline = beam.Pipeline()
    with pytest.raises(TypeCheckError, match="at ReadAll"):
        pipeline | "Numbers" >> beam.Create([1]) | ReadAllRecords()
    with pytest.raises(InputError, match="needs a PCollection of"):
        pipeline | "NoPatterns" >> ReadAllRecords()
    with pytest.raises(InputError, match="range_bytes"):
        ReadAllRecords(range_bytes=0)
