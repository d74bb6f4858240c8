"""`loader.open`: datasets of any kind and size, joined ones, and what is no dataset."""

import gc
import json
import logging
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import google_crc32c
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    CorruptShardError,
    GristmillError,
    InputError,
    InvalidDatasetError,
    Manifest,
    NotADatasetError,
    OutOfRangeError,
    RecordsDigest,
    ShardReport,
    ShardTable,
    Split,
    StorageError,
    read_manifest,
    read_table,
)
from gristmill.loader.reading.host_cache import FooterCache
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
from tests.support.told import told

FILES = (text_records(30, seed=1), [], text_records(25, seed=2), text_records(1), [])
RECORDS = [record for file in FILES for record in file]
WEEK = [text_records(17, seed=3), text_records(13, seed=4)]
BOTH = [*RECORDS, *WEEK[0], *WEEK[1]]
NAMES = [f"d-train.array_record-{i:05d}-of-00005" for i in range(5)]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A dataset with the splits train and week2."""
    folder = tmp_path_factory.mktemp("converted")
    convert(folder, WEEK, split="week2")
    return convert(folder, FILES, group_size=4)


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("second"), WEEK)


@pytest.fixture(scope="module")
def tfds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for name, records in zip(NAMES, FILES, strict=True):
        write_array_records(folder / name, records)
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(len(records)) for records in FILES],
    }
    info = {"name": "d", "version": "1.0.0", "fileFormat": "array_record"}
    (folder / "dataset_info.json").write_text(json.dumps(info | {"splits": [split]}))
    return folder


def store(dataset, table, **source):
    """Commits a dataset of a table, whatever files there are."""
    encoded = table.encode()
    split = Split.of_table(
        table,
        encoded,
        path="index/d-train.shards.npz",
        writer_options="group_size:1",
        source=source,
    )
    pathlib.Path(dataset, "index").mkdir(parents=True, exist_ok=True)
    pathlib.Path(dataset, split.table).write_bytes(encoded)
    text = Manifest(name="d", splits={"train": split}).encode()
    pathlib.Path(dataset, "dataset.json").write_bytes(text)


def test_records_and_what_is_known_of_them(converted):
    dataset = loader.open(converted, "train")
    assert [*dataset] == RECORDS
    lengths = np.array([len(record) for record in RECORDS])
    digest = RecordsDigest.of(checksums(RECORDS), lengths)
    assert dataset.facts.records_digest == digest.hex
    shards = [dataset.shard(number) for number in range(dataset.facts.shards)]
    assert [shard.records for shard in shards] == [30, 0, 25, 1, 0]
    assert [shard.first_record for shard in shards] == [0, 30, 30, 55, 56]
    sizes = [pathlib.Path(shard.path).stat().st_size for shard in shards]
    assert [shard.file_bytes for shard in shards] == sizes
    assert shards[2].spans[0].records == 25
    assert "56 records in 5 shards" in repr(dataset)


@pytest.mark.parametrize(
    "index",
    [
        *(0, -1, np.uint64(55), [], [55, 0, -1, 30, 0, -56], range(5, 9)),
        *(np.array([9, 2], np.uint64), slice(None), slice(40, -60, -7)),
        *(slice(90, 99), 56, -57, [0, 56], [-57], 1 << 62, np.uint64(56)),
    ],
    ids=repr,
)
def test_it_is_indexed_as_a_list(converted, index):
    dataset, records = loader.open(converted, "train"), np.array(RECORDS, object)
    try:
        expected = records[index if isinstance(index, slice) else np.array(index, int)]
    except (IndexError, OverflowError):
        with told(OutOfRangeError, "out of range"):
            dataset[index]
        return
    assert dataset[index] == (expected if type(expected) is bytes else [*expected])


def test_a_split_is_named_where_there_are_several(converted, second):
    assert loader.open(second).facts.split == "train"
    assert loader.open(converted, "week2")[:] == BOTH[56:]
    for given, message in ((None, "week2"), ("test", r"got: .*test")):
        with pytest.raises(InputError, match=message):
            loader.open(converted, given)
    with told(InputError, "no splits"):
        loader.open(second + "/*.array_record-*", "train")


@pytest.mark.parametrize("kind", ["splits", "datasets", "same split"])
def test_joined_datasets_are_as_one(kind, converted, second, tmp_path):
    if kind == "splits":
        joined = loader.open(converted, ["train", "week2"])
    else:
        split = "train" if kind == "same split" else ["train", "train"]
        joined = loader.open([converted, second], split)
    whole = loader.open(convert(tmp_path, [*FILES, *WEEK]))
    assert joined[:] == BOTH
    assert joined.facts.records_digest == whole.facts.records_digest
    assert joined.facts.order_digest == whole.facts.order_digest
    assert joined.facts.edition is None
    shards, numbers = joined.find([0, 55, 56, 85])
    assert (shards.tolist(), numbers.tolist()) == ([0, 3, 5, 6], [0, 0, 0, 12])
    assert [joined.shard(n).first_record for n in (3, 5, 6)] == [55, 56, 73]
    batches, other = (loader.global_batches(d, batch_size=8) for d in (joined, whole))
    with other.feed(host=(0, 1)) as feed:
        feed.set_state(batches.feed(host=(0, 1), start_step=3).get_state())
        assert next(feed) == batches.read(3)


def test_files_and_datasets_are_joined_and_damage_names_its_own(second, tmp_path):
    path = tmp_path / "more.array_record"
    write_array_records(path, FILES[0])
    joined = loader.open([second, path], ["train", None])
    assert joined[:] == [*BOTH[56:], *FILES[0]]
    assert joined.facts.records_digest is None
    data = bytearray(path.read_bytes())
    data[140] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match=path.name):
        joined[30:60]
    assert joined[:17] == WEEK[0]


def test_what_cannot_be_joined_is_refused(converted, second):
    for paths, split, message in (
        (converted, ["train", "week2", "train"], "there twice"),
        ([converted, second], ["train"], "not as many as the datasets"),
        (converted, [], "not as many as the datasets"),
        ([converted, second], None, "no split given"),
        ([second, converted], ["train", "week3"], "no such split"),
    ):
        with pytest.raises(InputError, match=message):
            loader.open(paths, split)
    with pytest.raises(NotADatasetError):
        loader.open([converted, f"{second}/nothing"], "train")


def test_tfds_directories_and_plain_files(tfds, tmp_path):
    dataset = loader.open(tfds, "train")
    assert dataset[:] == RECORDS
    assert dataset.facts.records_digest is None
    assert dataset.shard(2).records == 25
    for given, expected in (
        (f"{tfds}/d-train*", RECORDS),
        (tfds / NAMES[2], FILES[2]),
        ([tfds / NAMES[2], f"{tfds}/d-*0-of*"], FILES[2] + FILES[0]),
    ):
        assert loader.open(given)[:] == expected
    for nothing, message in (
        (f"{tfds}/nothing*", "nothing"),
        ([], "no files"),
        (tfds / "nowhere", "nowhere"),
    ):
        with pytest.raises(NotADatasetError, match=message):
            loader.open(nothing)
    copy = shutil.copytree(tfds, tmp_path / "copy")
    path = copy / "dataset_info.json"
    path.write_text(path.read_text().replace('"25"', '"26"'))
    with told(GristmillError, "26 records"):
        loader.open(copy)[40]


@pytest.mark.parametrize("open_it", [loader.open, loader.ArrayRecordDataSource])
def test_splits_are_joined_by_a_list_and_not_by_a_pattern(tmp_path, caplog, open_it):
    for split in ("train", "validation"):
        path = tmp_path / f"d-{split}.array_record-00000-of-00001"
        write_array_records(path, [split.encode()])
    with told(InputError, "several splits"):
        open_it(f"{tmp_path}/d-*")
    assert not caplog.records
    both = open_it([f"{tmp_path}/d-train*", path])
    assert [*both] == [b"train", b"validation"]
    pickle.loads(pickle.dumps(both))
    (record,) = caplog.records
    assert "splits are joined: train (1 file), validation (1 file)" in record.message


@pytest.mark.parametrize("name", ["TFRecord", "Parquet", "JSON lines"])
def test_files_of_other_formats_are_named(tmp_path, name):
    data = frames_of([b"a"] * 9) if name == "TFRecord" else MAKERS[name]()
    # Also of a size that an ArrayRecord file can have.
    for size in (0, 1 << 17):
        path = tmp_path / "in"
        path.write_bytes(data.ljust(size, b" "))
        for open_it in (loader.open, loader.ArrayRecordDataSource):
            with told(
                CorruptShardError,
                f"not an ArrayRecord file, but {name}",
                "`gristmill convert`",
                where=str(path),
            ):
                open_it(str(path))


@pytest.mark.parametrize("path", ["/etc/passwd", "../d", "a/../../b", "gs://b/c", ""])
def test_paths_that_leave_the_dataset_are_refused(tmp_path, path):
    place = convert(tmp_path, FILES[:2])
    split = read_manifest(place).splits["train"]  # type: ignore[union-attr]
    columns = read_table(place, split).columns
    paths = [path, "d-train.array_record-00001-of-00002"]
    store(place, ShardTable(paths=paths, columns=columns), **split.source)
    with told(InvalidDatasetError, "outside"):
        loader.open(place)


def test_files_are_closed_when_a_dataset_is_let_go(second):
    gc.disable()  # Not by the way, when memory is searched for circles.
    try:
        dataset = loader.open(second)
        assert dataset.read([0]) == WEEK[0][:1]
        held = {each for each in open_files() if second in each[1]}
        assert held
        del dataset
        assert not held & open_files()
    finally:
        gc.enable()


@pytest.mark.slow
def test_it_pickles_small_and_opens_in_another_process(second, tfds):
    plain = [tfds / name for name in NAMES]
    datasets = [loader.open(place) for place in (second, tfds, plain)]
    pickled = pickle.dumps(datasets)
    assert len(pickled) < 6_000
    code = (
        "import pickle, sys; found = pickle.load(sys.stdin.buffer);"
        "sys.stdout.buffer.write(pickle.dumps([each[[5, -1, 20]] for each in found]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=pickled, stdout=subprocess.PIPE, check=True)
    assert pickle.loads(done.stdout) == [each[[5, -1, 20]] for each in datasets]


@pytest.mark.parametrize("joined", [False, True])
def test_a_worker_refuses_a_dataset_that_was_replaced(second, tmp_path, joined):
    place = convert(tmp_path / "a", FILES)
    pickled = pickle.dumps(loader.open([second, place] if joined else place, "train"))
    other = convert(tmp_path / "b", FILES[:3])
    shutil.rmtree(place)
    shutil.copytree(other, place)
    with told(InvalidDatasetError, "replaced"):
        pickle.loads(pickled)


def test_a_trillion_records_in_a_hundred_thousand_shards(tmp_path):
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
    found, numbers = dataset.find([10**12 - 1, 123_456_789_012])
    assert found.tolist() == [99_999, 12_345]
    assert numbers.tolist() == [9_999_999, 6_789_012]
    assert dataset.shard(99_999).path.endswith("-099999-of-100000")


class TestFootersOfPlainFiles:
    """Each is read once per host; the cache is repaired, and not required."""

    @pytest.fixture
    def path(self, tmp_path):
        write_array_records(tmp_path / "plain.array_record", RECORDS)
        return tmp_path / "plain.array_record"

    @pytest.fixture
    def cache(self, tmp_path):
        return tmp_path / "cache"

    def test_they_are_read_again_for_another_file(self, path, cache):
        of_grain = loader.ArrayRecordDataSource
        for records in (RECORDS, text_records(56, seed=9)):
            about = path.stat()
            write_array_records(path, records)
            # As old as before.
            os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
            for open_it, end in (
                (loader.open, ""),
                (of_grain, ""),
                (of_grain, "[0:56]"),
            ):
                assert [*open_it(f"{path}{end}", cache_dir=cache)] == records
        assert len([*cache.glob("footers/*")]) == 2

    def test_damage_is_noticed_and_repaired(self, path, cache):
        loader.open(path, cache_dir=cache)
        (entry,) = cache.glob("footers/*")
        good = entry.read_bytes()
        bad = [good[:cut] for cut in (0, 1, 79, 80, len(good) - 1)]
        for at in range(0, len(good), 7):
            bad.append(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        for data in bad:
            entry.write_bytes(data)
            assert loader.open(path, cache_dir=cache)[::3] == RECORDS[::3]
            assert entry.read_bytes() == good

    @pytest.mark.slow
    def test_many_open_at_once_and_map_the_same_pages(self, path, cache):
        paths = [shutil.copy(path, f"{path}-{i}") for i in range(8)]
        program = """
import sys
from gristmill import loader
dataset = loader.open(sys.argv[2:], cache_dir=sys.argv[1])
right = dataset[::56] == dataset[:1] * 8
with open("/proc/self/maps") as file:
    print(len(dataset), right, file.read().count(".footer"))
"""
        command = [sys.executable, "-c", program, str(cache), *paths]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        assert {run.communicate()[0] for run in runs} == {b"448 True 8\n"}
        kept = {entry.suffix for entry in cache.glob("footers/*")}
        assert kept == {".footer"}

    def test_those_of_least_recent_use_are_deleted_first(self, path, cache):
        paths = [shutil.copy(path, f"{path}-{i}") for i in range(4)]
        datasets = [loader.open(one, cache_dir=cache) for one in paths]
        entries = cache.glob("footers/*")
        by_age = sorted(entries, key=lambda one: one.stat().st_mtime_ns)
        for age, entry in enumerate(by_age):
            os.utime(entry, (10**9 + age, 10**9 + age))
        loader.open(paths[0], cache_dir=cache)  # Has been used now.
        size = by_age[0].stat().st_blocks * 512
        FooterCache(str(cache / "footers")).trim(most_bytes=2 * size)
        assert {*cache.glob("footers/*")} == {by_age[0], by_age[3]}
        assert [dataset[5] for dataset in datasets] == [RECORDS[5]] * 4

    def test_an_unusable_cache_is_told_and_not_required(
        self, path, tmp_path, monkeypatch, caplog
    ):
        (tmp_path / "file").write_bytes(b"")
        place = str(tmp_path / "file" / "cache")
        monkeypatch.setenv("GRISTMILL_CACHE_DIR", place)
        with caplog.at_level(logging.WARNING):
            assert loader.open(path)[7] == RECORDS[7]
        assert re.search(r"not cached.*file/cache", caplog.text, re.DOTALL)
        with pytest.raises(StorageError, match=r"(?s)/file/cache.*as cache_dir"):
            loader.open(path, cache_dir=place)
