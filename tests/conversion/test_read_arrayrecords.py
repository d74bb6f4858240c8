"""ReadArrayRecords: every record once, however shards are cut, and none that is bad."""

from __future__ import annotations

import pathlib

import apache_beam as beam
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.transforms import ReadArrayRecords, WriteArrayRecords
from gristmill.transforms.beam.read_ranges import SourceRecord
from gristmill.transforms.sources.shards.source_split import list_shards
from tests.support.conversion import dataset_of, shards_of
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    text_records,
    write_array_records,
)

RECORDS = [*text_records(1500), *AWKWARD_RECORDS]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "argv",
    [IN_MEMORY, BUNDLES_TWICE, pytest.param(BUNDLE_BASED, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(
    "writer",
    [
        {"group_size": 1},
        {"group_size": 7, "compression": "brotli:1"},
        {"group_size": 100, "compression": "snappy"},
    ],
)
def test_dataset(
    tmp_path: pathlib.Path, writer: dict[str, object], argv: tuple[str, ...]
) -> None:
    dataset = dataset_of(tmp_path, RECORDS, **writer)
    found = run(ReadArrayRecords(str(dataset), range_bytes=100_000), argv=argv)
    assert sorted(found) == sorted(RECORDS)


@pytest.mark.slow
def test_with_source_gives_file_and_number(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, RECORDS, group_size=10)
    options = {"with_source": True, "range_bytes": 20_000}
    found = sorted(run(ReadArrayRecords(str(dataset), **options)))
    assert all(isinstance(record, SourceRecord) for record in found)
    assert [record.record for record in found] == RECORDS
    by_file: dict[str, list[int]] = {}
    for record in found:
        by_file.setdefault(record.file, []).append(record.place)
    assert list(by_file) == [f"{dataset}/{path}" for path in shards_of(dataset)]
    for numbers in by_file.values():
        assert numbers == list(range(len(numbers)))
    measure = beam.Map(lambda record: len(record.record))
    lengths = run(ReadArrayRecords(str(dataset), **options), measure)
    assert sorted(lengths) == sorted(map(len, RECORDS))


@pytest.mark.slow
def test_splits(tmp_path: pathlib.Path) -> None:
    dataset_of(tmp_path, [b"a", b"b", b"c"])
    dataset = str(dataset_of(tmp_path, [b"d", b"e", b"f"], split="test"))
    assert sorted(run(ReadArrayRecords(dataset, split="test"))) == [b"d", b"e", b"f"]
    assert sorted(run(ReadArrayRecords(dataset, split="train"))) == [b"a", b"b", b"c"]
    everything = [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert sorted(run(ReadArrayRecords(dataset))) == everything
    with pytest.raises(InputError, match=r"(?s)no such split.*test, train.*nine"):
        list(list_shards([dataset], "nine"))


@pytest.mark.slow
@pytest.mark.parametrize("options", ["group_size:1", "group_size:9"])
def test_files_without_dataset(tmp_path: pathlib.Path, options: str) -> None:
    for name in ("a", "b"):
        records = [name.encode() + record for record in RECORDS[:400]]
        write_array_records(tmp_path / f"{name}.ar", records, options=options)
    expected = sorted(n + r for n in (b"a", b"b") for r in RECORDS[:400])
    pattern = f"{tmp_path}/*.ar"
    assert sorted(run(ReadArrayRecords(pattern, range_bytes=9000))) == expected
    # A file that two patterns match is read once.
    several = [str(tmp_path / "a.ar"), pattern]
    assert sorted(run(ReadArrayRecords(several, range_bytes=9000))) == expected
    (one,) = list_shards([str(tmp_path / "a.ar")], None)
    assert one.path == str(tmp_path / "a.ar")


@pytest.mark.slow
def test_no_dataset_is_made_of_damaged_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "plain.ar"
    write_array_records(path, RECORDS[:300], options="group_size:1,uncompressed")
    data = bytearray(path.read_bytes())
    data[int(footer_of(bytes(data)).chunk_offsets[200]) + 60] ^= 0x01
    path.write_bytes(data)
    with (
        pytest.raises(Exception, match=r"(?s)plain\.ar, chunk 200.*hash of a chunk"),
        beam.Pipeline() as pipeline,
    ):
        _ = (
            pipeline
            | ReadArrayRecords(str(path))
            | WriteArrayRecords(str(tmp_path / "out"), num_shards=1)
        )
    assert not (tmp_path / "out" / layout.DATASET_JSON).exists()


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


def test_damage_names_the_file(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, RECORDS)
    shard = dataset / shards_of(dataset)[0]
    data = bytearray(shard.read_bytes())
    footer = footer_of(bytes(data))
    data[int(footer.chunk_offsets[11]) - 1] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(Exception, match=r"00000-of-00003"):
        run(ReadArrayRecords(str(dataset)))


def test_options_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="the path of the input is empty"):
        ReadArrayRecords("")
    with pytest.raises(InputError, match="no inputs given"):
        ReadArrayRecords([])
    with pytest.raises(InputError, match="range_bytes"):
        ReadArrayRecords("x", range_bytes=0)
