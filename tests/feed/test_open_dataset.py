"""`loader.open`: datasets of any size, their records, and what is no dataset."""

import copy as copying
import gc
import json
import pathlib
import pickle
import shutil
import subprocess
import sys

import google_crc32c
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    InputError,
    InvalidDatasetError,
    NotADatasetError,
    OutOfRangeError,
)
from gristmill.dataset.metadata.manifest import Manifest, read_manifest, read_table
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from tests.conversion.other_formats import MAKERS
from tests.support.datasets import convert
from tests.support.memory import peak_memory
from tests.support.open_files import open_files
from tests.support.records import (
    checksums,
    frames_of,
    text_records,
    write_array_records,
)

FILES = (text_records(30, seed=1), [], text_records(25, seed=2), text_records(1), [])
RECORDS = [record for file in FILES for record in file]


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("converted"), FILES, group_size=4)


def test_files_are_closed_when_a_dataset_is_let_go(converted: str) -> None:
    gc.disable()  # Not by the way, when memory is searched for circles.
    try:
        dataset = loader.open(converted)
        assert dataset.read([0]) == RECORDS[:1]
        held = {each for each in open_files() if converted in each[1]}
        assert held
        del dataset
        assert not held & open_files()
    finally:
        gc.enable()


def rewrite(dataset: str, paths: list[str]) -> None:
    """Commits a dataset again whose table names other paths."""
    manifest = read_manifest(dataset)
    old = manifest.splits["train"]
    table = ShardTable(paths=paths, columns=read_table(dataset, old).columns)
    store(dataset, table, source=old.source)


def store(dataset: str, table: ShardTable, **fields) -> None:
    encoded = table.encode()
    split = Split.of_table(
        table,
        encoded,
        path="index/d-train.shards.npz",
        writer_options="group_size:1",
        source=fields.get("source", {}),
    )
    pathlib.Path(dataset, "index").mkdir(parents=True, exist_ok=True)
    pathlib.Path(dataset, split.table).write_bytes(encoded)
    text = Manifest(name="d", splits={"train": split}).encode()
    pathlib.Path(dataset, "dataset.json").write_bytes(text)


def write_tfds(folder: pathlib.Path) -> list[str]:
    names = [f"d-train.array_record-{i:05d}-of-00005" for i in range(5)]
    for name, records in zip(names, FILES, strict=True):
        write_array_records(folder / name, records)
    info = {
        "name": "d",
        "version": "1.0.0",
        "fileFormat": "array_record",
        "splits": [
            {
                "name": "train",
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(records)) for records in FILES],
            }
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return names


def test_records_and_what_is_known_of_them(converted: str) -> None:
    dataset = loader.open(converted)
    assert len(dataset) == len(RECORDS)
    assert list(dataset) == RECORDS
    lengths = np.array([len(record) for record in RECORDS])
    digest = RecordsDigest.of(checksums(RECORDS), lengths)
    assert dataset.facts.records_digest == digest.hex
    assert dataset.facts.shards == 5
    shards = [dataset.shard(i) for i in range(5)]
    assert [shard.records for shard in shards] == [30, 0, 25, 1, 0]
    assert [shard.first_record for shard in shards] == [0, 30, 30, 55, 56]
    sizes = [pathlib.Path(shard.path).stat().st_size for shard in shards]
    assert [shard.file_bytes for shard in shards] == sizes
    assert shards[2].spans[0].records == 25
    assert "56 records" in repr(dataset)


@pytest.mark.parametrize(
    "index",
    [
        *(0, -1, np.uint64(55), [], [3, 3, 3], [55, 0, -1, 30, -56], (1, 2)),
        *(range(5, 9), np.array([9, 2], np.int32), np.array([9, 2], np.uint64)),
        *(slice(None), slice(-3, None), slice(40, 10, -7), slice(90, 99)),
        *(56, -57, [0, 56], [-57], 1 << 62, np.uint64(56)),
    ],
    ids=repr,
)
def test_it_is_indexed_as_a_list(converted: str, index) -> None:
    dataset, records = loader.open(converted), np.array(RECORDS, object)
    try:
        expected = records[index if isinstance(index, slice) else np.array(index, int)]
    except (IndexError, OverflowError):
        with pytest.raises(OutOfRangeError, match="out of range"):
            dataset[index]
        return
    assert dataset[index] == (expected if type(expected) is bytes else [*expected])


def test_read_takes_a_list_of_numbers_from_the_beginning(converted: str) -> None:
    dataset = loader.open(converted)
    assert dataset.read(np.array([5, 1])) == [RECORDS[5], RECORDS[1]]
    with pytest.raises(IndexError, match="out of range"):
        dataset.read([-1])
    with pytest.raises(InputError, match="shape"):
        dataset.read([[1]])


def test_a_split_is_named_where_there_are_several(tmp_path: pathlib.Path) -> None:
    place = convert(tmp_path, FILES)
    assert loader.open(place).facts.split == "train"
    convert(tmp_path, FILES[2:3], split="validation")
    assert loader.open(place, "validation")[:] == FILES[2]
    for given, message in ((None, "train, validation"), ("test", r"got: .*test")):
        with pytest.raises(InputError, match=message):
            loader.open(place, given)
    with pytest.raises(InputError, match="no splits"):
        loader.open(place + "/*.array_record-*", "train")


def test_opening_touches_no_shard(converted: str, tmp_path: pathlib.Path) -> None:
    there = shutil.copytree(converted, tmp_path / "bare")
    for path in [*there.glob("*.array_record-*"), *there.glob("index/*.index")]:
        path.unlink()
    assert len(loader.open(there)) == len(RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["committed", "tfds", "plain"])
def test_pickles_small_and_opens_in_another_process(
    converted: str, tmp_path: pathlib.Path, kind: str
) -> None:
    place: object = converted
    if kind != "committed":
        names = write_tfds(tmp_path)
        place = tmp_path if kind == "tfds" else [tmp_path / name for name in names]
    dataset = loader.open(place)
    dataset[3]
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 3_000
    code = (
        "import pickle, sys; d = pickle.load(sys.stdin.buffer);"
        "sys.stdout.buffer.write(b''.join(d[[5, -1, 40]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickled, capture_output=True, check=True
    )
    assert done.stdout == RECORDS[5] + RECORDS[-1] + RECORDS[40]
    assert copying.copy(dataset)[2] == RECORDS[2]


@pytest.mark.parametrize("joined", [False, True])
def test_worker_refuses_a_dataset_that_was_replaced(
    converted: str, tmp_path: pathlib.Path, joined: bool
) -> None:
    place = convert(tmp_path / "a", FILES)
    pickled = pickle.dumps(
        loader.open([converted, place], "train") if joined else loader.open(place)
    )
    other = convert(tmp_path / "b", FILES[:3])
    shutil.rmtree(place)
    shutil.copytree(other, place)
    with pytest.raises(InvalidDatasetError, match="replaced"):
        pickle.loads(pickled)


def test_tfds_directory(tmp_path: pathlib.Path) -> None:
    write_tfds(tmp_path)
    dataset = loader.open(tmp_path, "train")
    assert dataset[:] == RECORDS
    assert dataset.facts.records_digest is None
    assert dataset.shard(2).records == 25
    (tmp_path / "d-train.array_record-00002-of-00005").unlink()
    assert len(loader.open(tmp_path)) == len(RECORDS)


def test_tfds_directory_that_counts_wrongly(tmp_path: pathlib.Path) -> None:
    write_tfds(tmp_path)
    path = tmp_path / "dataset_info.json"
    path.write_text(path.read_text().replace('"25"', '"26"'))
    with pytest.raises(GristmillError, match=r"26 records"):
        loader.open(tmp_path)[40]


def test_plain_files_by_glob_list_and_path(tmp_path: pathlib.Path) -> None:
    names = write_tfds(tmp_path)
    assert loader.open(f"{tmp_path}/d-train*")[:] == RECORDS
    backwards = [tmp_path / name for name in reversed(names)]
    expected = [record for records in reversed(FILES) for record in records]
    assert loader.open(backwards)[:] == expected
    assert loader.open(tmp_path / names[2])[:] == FILES[2]
    assert loader.open([f"{tmp_path}/d-*0-of*", f"{tmp_path}/d-*2-of*"])[:] == (
        FILES[0] + FILES[2]
    )
    with pytest.raises(NotADatasetError, match="nothing"):
        loader.open(f"{tmp_path}/nothing*")
    with pytest.raises(NotADatasetError, match="no files"):
        loader.open([])
    with pytest.raises(NotADatasetError):
        loader.open(tmp_path / "nowhere")


@pytest.mark.parametrize("open_it", [loader.open, loader.ArrayRecordDataSource])
def test_splits_are_joined_by_a_list_and_not_by_a_pattern(
    tmp_path, caplog, open_it
) -> None:
    for number, split in ((1, "train"), (0, "train"), (0, "validation")):
        name = f"d-{split}.array_record-{number:05d}-of-00002"
        write_array_records(tmp_path / name, [f"{split} {number}".encode()])
    write_array_records(tmp_path / "odd[1].array_record", [b"odd"])
    with pytest.raises(InputError, match="several splits") as caught:
        open_it(f"{tmp_path}/d-*")
    for part in (f"{tmp_path}/d-*", "train (2 files), validation (1 file)", "a list"):
        assert part in str(caught.value)
    with pytest.raises(NotADatasetError, match="none"):
        open_it(f"{tmp_path}/none*")
    train, validation = f"{tmp_path}/d-train*", f"{tmp_path}/d-vali?ation*"
    assert list(open_it(train)) == [b"train 0", b"train 1"]
    found = open_it([f"{tmp_path}/odd[1].array_record", validation])
    assert list(found) == [b"odd", b"validation 0"]
    assert not caplog.records
    both = open_it([train, validation])
    assert list(both) == [b"train 0", b"train 1", b"validation 0"]
    pickle.loads(pickle.dumps(both))
    (record,) = caplog.records
    assert "splits are joined: train (2 files), validation (1 file)" in record.message


@pytest.mark.parametrize("name", ["TFRecord", "Parquet", "JSON lines"])
def test_files_of_other_formats(tmp_path, name) -> None:
    data = frames_of([b"a"] * 9) if name == "TFRecord" else MAKERS[name]()
    # Also of a size that an ArrayRecord file can have.
    for size in (0, 1 << 17):
        path = tmp_path / "in"
        path.write_bytes(data.ljust(size, b" "))
        for open_it in (loader.open, loader.ArrayRecordDataSource):
            with pytest.raises(CorruptShardError) as caught:
                open_it(str(path))
            message = str(caught.value)
            assert f"not an ArrayRecord file, but {name}" in message
            assert f"where:    {path}" in message
            assert ("`gristmill convert`" in message) == (
                name in ("TFRecord", "Parquet", "JSON lines")
            )
            assert "write it again" not in message


@pytest.mark.parametrize("path", ["/etc/passwd", "../d", "a/../../b", "gs://b/c", ""])
def test_paths_that_leave_the_dataset_are_refused(tmp_path, path: str) -> None:
    place = convert(tmp_path, FILES[:2])
    rewrite(place, [path, "d-train.array_record-00001-of-00002"])
    with pytest.raises(InvalidDatasetError, match="outside"):
        loader.open(place)


def test_a_trillion_records_in_a_hundred_thousand_shards(
    tmp_path: pathlib.Path,
) -> None:
    shards, each = 100_000, 10**7
    digest = RecordsDigest(records=each, raw_bytes=each * 2000, low=3, high=5)
    report = ShardReport(
        path="d",
        shard_index=0,
        job="made up",
        file_bytes=1 << 33,
        file_crc32c=google_crc32c.value(b""),
        read=digest,
        written=digest,
    )
    one = ShardTable.of([report])
    columns = {name: np.repeat(column, shards) for name, column in one.columns.items()}
    paths = [f"d-train.array_record-{i:06d}-of-{shards:06d}" for i in range(shards)]
    store(str(tmp_path), ShardTable(paths=paths, columns=columns))
    del columns, paths
    with peak_memory() as peak:
        dataset = loader.open(tmp_path)
        assert len(dataset) == 10**12
        assert len(pickle.dumps(dataset)) < 1_000
    assert peak.bytes < 200 << 20
    shards_found, numbers = dataset.find([0, 10**12 - 1, 123_456_789_012])
    assert shards_found.tolist() == [0, 99_999, 12_345]
    assert numbers.tolist() == [0, 9_999_999, 6_789_012]
    assert dataset.shard(99_999).path.endswith("-099999-of-100000")
