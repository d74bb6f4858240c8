"""ReadRecords: the records of inputs of any format, each once, with their places."""

from __future__ import annotations

import collections
import functools
import json
import pathlib

import pytest
from apache_beam.transforms.fully_qualified_named_transform import (
    FullyQualifiedNamedTransform,
)

from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.local import LocalStorage
from gristmill.transforms import (
    ReadRecords,
    ReadTFRecords,
    RecordOptions,
    SourceRecord,
)
from tests.support.conversion import dataset_of, varied_records
from tests.support.pipelines import BUNDLES_TWICE, run
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    text_records,
    write_array_records,
)
from tests.support.tars import (
    header_offsets,
    members_of,
    read_by_webdataset,
    tar_of,
)
from tests.support.watched import watched

RECORDS = [*text_records(800), *AWKWARD_RECORDS]


def test_tfrecords_and_their_offsets(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(frames_of(RECORDS))
    (tmp_path / "b").write_bytes(frames_of([b"last"]))
    options = {"with_source": True, "range_bytes": 50_000}
    found = sorted(run(ReadRecords(f"{tmp_path}/*", **options), argv=BUNDLES_TWICE))
    assert all(isinstance(one, SourceRecord) for one in found)
    assert [one.record for one in found] == [*RECORDS, b"last"]
    places = [0]
    for record in RECORDS[:-1]:
        places.append(places[-1] + 16 + len(record))
    assert [one.place for one in found] == [*places, 0]


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
