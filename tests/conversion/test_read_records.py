"""The readers on Beam: records of inputs of any format, each once, and their places."""

from __future__ import annotations

import collections
import functools
import gzip
import json
import pathlib
import pickle

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.transforms.fully_qualified_named_transform import (
    FullyQualifiedNamedTransform,
)
from apache_beam.transforms.window import (
    FixedWindows,
    TimestampedValue,
)
from apache_beam.typehints.decorators import TypeCheckError
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.local import LocalStorage
from gristmill.transforms import (
    ReadAllRecords,
    ReadArrayRecords,
    ReadRecords,
    ReadTFRecords,
    RecordOptions,
    SourceRecord,
)
from gristmill.transforms.beam.read_ranges import RecordCoder
from tests.conversion.tars import (
    header_offsets,
    members_of,
    read_by_webdataset,
    tar_of,
)
from tests.support.conversion import dataset_of, shards_of, varied_records
from tests.support.pipelines import BUNDLES_TWICE, run
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    text_records,
    write_array_records,
    write_tfrecords,
)
from tests.support.watched import watched

RECORDS = [*text_records(800), *AWKWARD_RECORDS]


def test_tfrecords_and_their_offsets(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(frames_of(RECORDS))
    (tmp_path / "b").write_bytes(gzip.compress(frames_of(RECORDS[:9])))
    options = {"with_source": True, "range_bytes": 50_000}
    found = sorted(run(ReadRecords(f"{tmp_path}/*", **options), argv=BUNDLES_TWICE))
    assert all(isinstance(one, SourceRecord) for one in found)
    assert [one.record for one in found] == [*RECORDS, *RECORDS[:9]]
    places = [0]
    for record in RECORDS[:-1]:
        places.append(places[-1] + 16 + len(record))
    assert [one.place for one in found] == [*places, *places[:9]]


@pytest.mark.parametrize("options", ["group_size:1,zstd:3", "group_size:70,snappy"])
def test_array_records_and_their_numbers(tmp_path: pathlib.Path, options: str) -> None:
    write_array_records(tmp_path / "a", RECORDS, options=options)
    read = ReadRecords(tmp_path / "a", with_source=True, range_bytes=50_000)
    found = sorted(run(read))
    assert [(one.place, one.record) for one in found] == [*enumerate(RECORDS)]


@pytest.mark.slow
def test_datasets_and_their_splits(tmp_path: pathlib.Path) -> None:
    for split in ("train", "test"):
        dataset = dataset_of(tmp_path, varied_records(90, seed=len(split)), split=split)
    every = {split: varied_records(90, seed=len(split)) for split in ("train", "test")}
    found = run(ReadRecords(dataset, range_bytes=10_000))
    assert sorted(found) == sorted(every["train"] + every["test"])
    assert sorted(run(ReadRecords(dataset, split="test"))) == sorted(every["test"])
    with pytest.raises(InputError, match="no such split"):
        run(ReadRecords(dataset, split="validation"))
    with pytest.raises(InputError, match="files have no splits"):
        run(ReadRecords(f"{dataset}/*.array_record*", split="train"))


@pytest.mark.slow
def test_a_tfds_directory(tmp_path: pathlib.Path) -> None:
    for split in ("train", "test"):
        name = f"d-{split}.tfrecord-00000-of-00001"
        (tmp_path / name).write_bytes(frames_of([split.encode()] * 3))
    splits = [{"name": name, "shardLengths": ["3"]} for name in ("train", "test")]
    info = json.dumps({"name": "d", "splits": splits})
    (tmp_path / "dataset_info.json").write_text(info)
    (tmp_path / "features.json").write_text("{}")
    assert sorted(run(ReadRecords(tmp_path))) == [b"test"] * 3 + [b"train"] * 3
    assert run(ReadRecords(tmp_path, split="test")) == [b"test"] * 3


@pytest.mark.slow
def test_parquet_and_its_rows(tmp_path: pathlib.Path) -> None:
    import pyarrow
    import pyarrow.parquet

    texts = [f"text {number}" for number in range(3000)]
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"text": texts, "number": [*range(3000)]})
    pyarrow.parquet.write_table(table, path, row_group_size=500)
    records = RecordOptions(record="column:text")
    read = ReadRecords(path, records=records, with_source=True, range_bytes=2_000)
    found = sorted(run(read))
    assert [(one.place, one.record.decode()) for one in found] == [*enumerate(texts)]


def test_tars_and_their_samples(tmp_path: pathlib.Path) -> None:
    data = tar_of(members_of(30))
    (tmp_path / "a.tar").write_bytes(data)
    found = sorted(run(ReadRecords(tmp_path / "a.tar", with_source=True)))
    expected = list(map(encode_example, read_by_webdataset(data)))
    assert [one.record for one in found] == expected
    begins = [at for at, _ in header_offsets(data)][::3]
    assert [one.place for one in found] == begins


def test_files_that_are_empty_or_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(frames_of([b"one"]))
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        run(ReadRecords(f"{tmp_path}/*"))
    assert run(ReadRecords(f"{tmp_path}/*", allow_empty_files=True)) == [b"one"]
    with pytest.raises(InputError, match="selects no records"):
        ReadRecords(f"{tmp_path}/*", records=RecordOptions(select="a > 0"))
    with pytest.raises(InputError, match="no inputs given"):
        ReadRecords(())
    with pytest.raises(InputError, match="range_bytes must be positive"):
        ReadRecords("in", range_bytes=0)


@pytest.mark.parametrize("make", [ReadRecords, ReadTFRecords])
def test_requests_for_each_file_are_few(tmp_path, monkeypatch, make) -> None:
    for number in range(30):
        (tmp_path / str(number)).write_bytes(frames_of([b"one"]))
    made: collections.Counter[str] = collections.Counter()
    for name in ("list", "load", "match", "open", "read", "scan", "stat"):
        look = functools.partial(made.__class__.update, made, [name])
        watched(monkeypatch, LocalStorage, name, lambda *_, _add=look, **__: _add())
    assert len(run(make(f"{tmp_path}/*"))) == 30
    assert made.pop("stat") <= 2 * 30 + 4
    # One listing; a look at the first bytes of each file, and its records.
    assert made == {"match": 1, "read": 30, "open": 30}


@pytest.mark.slow
def test_another_language_names_it(tmp_path: pathlib.Path) -> None:
    """What Java's `PythonExternalTransform` sends is expanded, and runs."""
    (tmp_path / "a").write_bytes(frames_of([b"one", b"two"]))
    asked = FullyQualifiedNamedTransform(
        "gristmill.transforms.ReadRecords", (str(tmp_path / "a"),), {}
    )
    _, payload = asked.to_runner_api_parameter(None)
    with FullyQualifiedNamedTransform.with_filter("gristmill.transforms.*"):
        read = FullyQualifiedNamedTransform.from_runner_api_parameter(
            None, payload, None
        )
        assert sorted(run(read)) == [b"one", b"two"]
    with (
        FullyQualifiedNamedTransform.with_filter("other.*"),
        pytest.raises(ValueError, match="not allowed"),
    ):
        run(read)


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


def test_other_record_than_the_index_has_is_refused(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, [b"%03d" % number for number in range(300)])
    shard = dataset / shards_of(dataset)[1]
    records = [b"%03d" % number for number in range(100, 200)]
    records[7] = b"???"
    size = shard.stat().st_size
    write_array_records(shard, records)
    assert shard.stat().st_size == size
    with pytest.raises(Exception, match=r"(?s)00001-of-00003, record 7\n.*index"):
        run(ReadArrayRecords(str(dataset)))
    # As a file without a dataset, nothing tells that it is another one.
    assert sorted(run(ReadArrayRecords(str(shard)))) == sorted(records)


@given(
    file=st.binary().map(lambda name: name.decode("utf-8", "surrogateescape")),
    number=st.integers(0, (1 << 63) - 1),
    record=st.binary(),
)
def test_elements_come_back(file: str, number: int, record: bytes) -> None:
    coder = registry.get_coder(SourceRecord)
    assert isinstance(coder, RecordCoder)
    element = SourceRecord(file, number, record)
    # Alone, and within what Beam shuffles.
    for each, value in (
        (coder, element),
        (beam.coders.TupleCoder((coder, coder)), (element, element)),
    ):
        again = pickle.loads(pickle.dumps(each))
        assert again == each
        back = again.decode(each.encode(value))
        assert back == value
    assert type(coder.decode(coder.encode(element))) is SourceRecord


def test_records_with_sources_are_keys(tmp_path: pathlib.Path) -> None:
    """Of a shuffle, that is, which takes keys with deterministic coders alone."""
    records = text_records(20)
    write_tfrecords(tmp_path / "in", records)
    found = run(
        ReadTFRecords(tmp_path / "in", with_source=True),
        beam.Distinct(),
        beam.Reshuffle(),
    )
    assert all(type(each) is SourceRecord for each in found)
    in_order = sorted(found, key=lambda source: source.place)
    assert [each.record for each in in_order] == records
