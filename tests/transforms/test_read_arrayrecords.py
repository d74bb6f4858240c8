"""ReadArrayRecords: every record once, however shards are cut, and none that is bad."""

from __future__ import annotations

import itertools
import pathlib
import pickle

import apache_beam as beam
import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.errors import CorruptShardError, InputError, NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.transforms import ReadArrayRecords, WriteArrayRecords
from gristmill.transforms import read_arrayrecords as module
from gristmill.transforms.read_arrayrecords import ShardRecord
from tests.support.conversion import convert, job_of
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    frames_of,
    text_records,
    write_array_records,
)

RECORDS = [*text_records(1500), *AWKWARD_RECORDS]


def make_dataset(
    folder: pathlib.Path,
    records: list[bytes] = RECORDS,
    *,
    split: str = "train",
    **writer: object,
) -> pathlib.Path:
    source = folder / f"{split}.tfrecord"
    source.write_bytes(frames_of(records))
    options = WriterOptions(**writer)  # type: ignore[arg-type]
    plan = ("num_shards", 3)
    convert(job_of(str(source), folder / "out", plan=plan, split=split, writer=options))
    return folder / "out"


def test_splits_are_joined_by_a_list_and_not_by_a_pattern(tmp_path, caplog):
    for split in ("train", "test"):
        name = f"d-{split}.array_record-00000-of-00001"
        write_array_records(tmp_path / name, [split.encode()])
    with pytest.raises(InputError, match="several splits"):
        list(module.list_shards(f"{tmp_path}/*", None))
    found = list(module.list_shards([f"{tmp_path}/d-tr*", f"{tmp_path}/d-te*"], None))
    assert len(found) == 2
    assert "splits are joined" in caplog.text


def test_a_pattern_leaves_out_what_describes_a_dataset(tmp_path):
    dataset = make_dataset(tmp_path, [b"a"] * 3)
    found = [shard.path for shard in module.list_shards(f"{dataset}/*", None)]
    assert found == [f"{dataset}/{shard}" for shard in shards_of(dataset)]


def shards_of(dataset: pathlib.Path) -> list[str]:
    manifest = open_manifest(str(dataset))
    return list(read_table(str(dataset), manifest.splits["train"]).paths)


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
    dataset = make_dataset(tmp_path, **writer)
    found = run(ReadArrayRecords(str(dataset), range_bytes=100_000), argv=argv)
    assert sorted(found) == sorted(RECORDS)


def test_with_index_gives_file_and_number(tmp_path: pathlib.Path) -> None:
    dataset = make_dataset(tmp_path, group_size=10)
    options = {"with_index": True, "range_bytes": 20_000}
    found = sorted(run(ReadArrayRecords(str(dataset), **options)))
    assert all(isinstance(record, ShardRecord) for record in found)
    assert [record.record for record in found] == RECORDS
    by_file: dict[str, list[int]] = {}
    for record in found:
        by_file.setdefault(record.file, []).append(record.record_index)
    assert list(by_file) == [f"{dataset}/{path}" for path in shards_of(dataset)]
    for numbers in by_file.values():
        assert numbers == list(range(len(numbers)))
    measure = beam.Map(lambda record: len(record.record))
    lengths = run(ReadArrayRecords(str(dataset), **options), measure)
    assert sorted(lengths) == sorted(map(len, RECORDS))


def test_range_bytes_decides_the_number_of_ranges(tmp_path: pathlib.Path) -> None:
    dataset = make_dataset(tmp_path, [b"x" * 5000] * 300, compression="uncompressed")
    shards = list(module.list_shards(str(dataset), None))
    assert [shard.records for shard in shards] == [100] * 3
    for range_bytes, count in ((100_000, 6), (1 << 20, 1), (1, 100)):
        cuts = list(module._cut(shards[0], range_bytes))
        assert len(cuts) == count
        numbers = [cut[1:] for cut in cuts]
        assert numbers[0][0] == 0
        assert numbers[-1][1] == 100
        assert all(a[1] == b[0] for a, b in itertools.pairwise(numbers))
        found = [
            (first + at, record)
            for cut in cuts
            for first, records in module.read_chunks(*cut)
            for at, record in enumerate(records)
        ]
        assert found == [(number, b"x" * 5000) for number in range(100)]
        assert len(pickle.dumps(cuts[0])) < 500


def test_splits(tmp_path: pathlib.Path) -> None:
    make_dataset(tmp_path, [b"a", b"b", b"c"])
    dataset = str(make_dataset(tmp_path, [b"d", b"e", b"f"], split="test"))
    assert sorted(run(ReadArrayRecords(dataset, split="test"))) == [b"d", b"e", b"f"]
    assert sorted(run(ReadArrayRecords(dataset, split="train"))) == [b"a", b"b", b"c"]
    everything = [b"a", b"b", b"c", b"d", b"e", b"f"]
    assert sorted(run(ReadArrayRecords(dataset))) == everything
    with pytest.raises(InputError, match=r"(?s)no such split.*test, train.*nine"):
        list(module.list_shards(dataset, "nine"))


@pytest.mark.parametrize("options", ["group_size:1", "group_size:9,transpose:true"])
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
    (one,) = module.list_shards(str(tmp_path / "a.ar"), None)
    assert one.path == str(tmp_path / "a.ar")


@pytest.mark.parametrize(
    "options",
    ["group_size:1,uncompressed", "group_size:9,zstd:3", "group_size:9,transpose:true"],
)
def test_damage_in_files_without_dataset(
    tmp_path: pathlib.Path, options: str, hashing: str
) -> None:
    path = tmp_path / "plain.ar"
    write_array_records(path, RECORDS[:300], options=options)
    good = path.read_bytes()
    begin, end = footer_of(good).chunk_offsets[[0, -1]].tolist()
    (shard,) = module.list_shards(str(path), None)
    chunks = len(footer_of(good).chunk_records)
    count = 40 if hashing == "compiled" else 8  # Damage is looked for singly.
    for at in range(begin, end, (end - begin) // count):
        data = bytearray(good)
        data[at] ^= 0x02
        path.write_bytes(data)
        with pytest.raises(CorruptShardError, match=r"plain\.ar"):
            list(module.read_chunks(shard, 0, chunks))


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


def test_empty_file(tmp_path: pathlib.Path) -> None:
    write_array_records(tmp_path / "empty.ar", [])
    assert run(ReadArrayRecords(str(tmp_path / "empty.ar"))) == []


def test_what_is_no_dataset(tmp_path: pathlib.Path) -> None:
    dataset = make_dataset(tmp_path)
    (dataset / layout.DATASET_JSON).unlink()
    with pytest.raises(NotADatasetError, match="unfinished"):
        list(module.list_shards(str(dataset), None))
    with pytest.raises(NotADatasetError):
        list(module.list_shards(str(tmp_path / "nowhere"), None))
    with pytest.raises(InputError, match="no ArrayRecord file"):
        list(module.list_shards(str(tmp_path / "no*"), None))
    with pytest.raises(InputError, match="files have no splits"):
        list(module.list_shards([str(dataset / "*.array_record*")], "train"))


def test_dataset_with_brackets_in_its_name(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "set [1]"
    folder.mkdir()
    dataset = make_dataset(folder, [b"a", b"b", b"c"])
    assert sorted(run(ReadArrayRecords(str(dataset)))) == [b"a", b"b", b"c"]


def test_other_record_than_the_index_has_is_refused(tmp_path: pathlib.Path) -> None:
    dataset = make_dataset(tmp_path, [b"%03d" % number for number in range(300)])
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
    dataset = make_dataset(tmp_path)
    shard = dataset / shards_of(dataset)[0]
    data = bytearray(shard.read_bytes())
    footer = footer_of(bytes(data))
    data[int(footer.chunk_offsets[11]) - 1] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(Exception, match=r"00000-of-00003"):
        run(ReadArrayRecords(str(dataset)))


@pytest.mark.parametrize("what", ["shard", "index", "short", "other", "records"])
def test_files_that_are_not_the_dataset(tmp_path: pathlib.Path, what: str) -> None:
    dataset = make_dataset(tmp_path, text_records(90))
    first, second, _ = shards_of(dataset)
    shard, index = dataset / first, dataset / layout.index_path(first)
    if what == "shard":
        shard.unlink()
    elif what == "index":
        index.unlink()
    elif what == "short":
        shard.write_bytes(shard.read_bytes()[:-65536])
    elif what == "other":
        index.write_bytes((dataset / layout.index_path(second)).read_bytes())
    else:
        write_array_records(shard, [b"one"])
    task = next(iter(module.list_shards(str(dataset), None)))
    errors = {"index": "cannot read the index", "other": "not the one of this shard"}
    errors |= {"records": "not the one that the dataset describes"}
    with pytest.raises((CorruptShardError, OSError), match=errors.get(what, "size")):
        list(module.read_chunks(task, 0, 1))


def test_options_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="the path of the dataset or files is empty"):
        ReadArrayRecords("")
    with pytest.raises(InputError, match="no dataset or files"):
        ReadArrayRecords([])
    with pytest.raises(InputError, match="range_bytes"):
        ReadArrayRecords("x", range_bytes=0)
