"""Shards and indexes that are truncated, or fail to be read, while they are mapped.

Covers: loader/reading/batch_reader.py, loader/reading/open_shard.py,
loader/reading/shard_list.py.
"""

import os
import pathlib
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.errors import (
    CorruptShardError,
    GristmillError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.loader.reading import shard_list
from gristmill.loader.reading.shard_file import ShardFile
from tests.support.datasets import convert
from tests.support.records import text_records, write_array_records

FILES = (text_records(400, seed=1), text_records(500, seed=2))
RECORDS = [record for file in FILES for record in file]
SECOND = range(400, 900)  # The records of the shard that is harmed.
LARGE = [bytes([i]) * 300_000 for i in range(8)]
ALL = np.random.default_rng(0).permutation(len(RECORDS))


@pytest.fixture(
    scope="module",
    params=[(1, "zstd:3"), (16, "zstd:3"), (1, "uncompressed")],
    ids=lambda param: f"{param[1]}-{param[0]}",
)
def converted(request, tmp_path_factory) -> str:
    group_size, compression = request.param
    folder = tmp_path_factory.mktemp("converted")
    return convert(folder, FILES, group_size=group_size, compression=compression)


@pytest.fixture
def copy(converted: str, tmp_path: pathlib.Path) -> str:
    return str(shutil.copytree(converted, tmp_path / "copy"))


def harmed_paths(dataset: loader.Dataset, copy: str) -> tuple[str, str]:
    """Returns the second shard and its index."""
    shard = dataset.shard(1).path
    return shard, f"{copy}/index/{os.path.basename(shard)}.index"


def read_all(dataset: loader.Dataset) -> list[bytes]:
    return dataset.read(ALL)


def read_one_by_one(dataset: loader.Dataset) -> list[bytes]:
    return [dataset[int(i)] for i in ALL]


@pytest.mark.parametrize("read", [read_all, read_one_by_one])
@pytest.mark.parametrize("verify", [None, "never"])
def test_a_shard_that_is_truncated_in_use_is_named(copy, read, verify) -> None:
    dataset = loader.open(copy, verify=verify)
    assert read(dataset) == [RECORDS[i] for i in ALL]
    path, _ = harmed_paths(dataset, copy)
    os.truncate(path, 0)
    for _ in range(2):
        with pytest.raises(CorruptShardError) as raised:
            read(dataset)
        assert raised.value.where == path
        assert raised.value.got == "0 bytes"
        assert "restore it from a copy" in str(raised.value)
    # The other shards can still be read.
    assert dataset[0:400] == RECORDS[0:400]


@pytest.mark.parametrize("read", [read_all, read_one_by_one])
def test_an_index_that_is_truncated_in_use_is_named(copy, read) -> None:
    dataset = loader.open(copy)
    assert read(dataset) == [RECORDS[i] for i in ALL]
    _, index = harmed_paths(dataset, copy)
    os.truncate(index, 0)
    for use in (read, lambda dataset: dataset.offset_bytes(SECOND[-1])):
        with pytest.raises(InvalidDatasetError) as raised:
            use(dataset)
        assert raised.value.where == index
    assert dataset[0:400] == RECORDS[0:400]


@pytest.mark.parametrize("which", ["shard", "index"])
@pytest.mark.parametrize("read", [read_all, read_one_by_one])
def test_what_can_be_read_again_is_read_again(copy, read, which) -> None:
    """A file that was away for a moment, as on a network mount."""
    dataset = loader.open(copy)
    assert dataset[SECOND[0]] == RECORDS[SECOND[0]]
    path = harmed_paths(dataset, copy)[which == "index"]
    data = pathlib.Path(path).read_bytes()
    os.truncate(path, 0)
    (opened,) = dataset._reader.open_shards._open.values()
    view = opened.data if which == "shard" else opened.index._body
    assert view[100] == 0  # Somebody reads a page of it meanwhile.
    pathlib.Path(path).write_bytes(data)
    assert opened.damaged
    assert read(dataset) == [RECORDS[i] for i in ALL]


def test_large_chunks_are_decoded_from_the_map_itself(tmp_path) -> None:
    dataset = loader.open(convert(tmp_path, [LARGE], compression="uncompressed"))
    order = np.arange(len(LARGE))
    assert dataset.read(order) == LARGE
    os.truncate(dataset.shard(0).path, 1 << 20)
    with pytest.raises(CorruptShardError, match="1,048,576 bytes"):
        dataset.read(order)


@pytest.mark.parametrize("cached", [False, True])
def test_a_plain_file_that_is_truncated_in_use_is_named(tmp_path, cached) -> None:
    path = tmp_path / "plain.array_record"
    write_array_records(path, RECORDS)
    dataset = loader.open(path, cache_dir=str(tmp_path / "cache") if cached else "")
    assert dataset.read(ALL) == [RECORDS[i] for i in ALL]
    os.truncate(path, 1 << 16)
    for _ in range(2):
        with pytest.raises(CorruptShardError) as raised:
            dataset.read(ALL)
        assert raised.value.where == str(path)
        assert "65,536 bytes" in str(raised.value)


def test_a_cached_footer_that_is_truncated_in_use_is_made_again(tmp_path) -> None:
    path = tmp_path / "plain.array_record"
    write_array_records(path, RECORDS)
    dataset = loader.open(path, cache_dir=str(tmp_path / "cache"))
    assert dataset.read(ALL) == [RECORDS[i] for i in ALL]
    (footer,) = (tmp_path / "cache").rglob("*.footer")
    os.truncate(footer, 0)
    assert dataset.read(ALL) == [RECORDS[i] for i in ALL]
    assert footer.stat().st_size > 0


def test_a_disk_that_fails_each_time_is_an_error_that_names_the_files(
    copy, monkeypatch
) -> None:
    """The second shard is there whenever it is opened, and gone when it is read."""
    dataset = loader.open(copy)
    path, index = harmed_paths(dataset, copy)
    data = pathlib.Path(path).read_bytes()
    opened_paths = []

    def open_shard(shard: str, **options: object) -> ShardFile:
        if shard != path:
            return real(shard, **options)
        opened_paths.append(shard)
        pathlib.Path(path).write_bytes(data)
        opened = real(shard, **options)
        os.truncate(path, 0)
        return opened

    real = shard_list.open_shard
    monkeypatch.setattr(shard_list, "open_shard", open_shard)
    with pytest.raises(StorageError, match="the disk cannot read") as raised:
        dataset.read(ALL)
    assert path in str(raised.value)
    assert index in str(raised.value)
    assert "dmesg" in str(raised.value)
    assert len(opened_paths) == 2


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_trainer_survives_and_goes_on_when_the_shard_is_back(
    tmp_path, workers
) -> None:
    copy = convert(tmp_path, FILES)
    batches = loader.global_batches(loader.open(copy), batch_size=90, epochs=2)
    path, _ = harmed_paths(batches.datasets[0], copy)
    data = pathlib.Path(path).read_bytes()
    with batches.feed(process_index=0, process_count=1, workers=workers) as feed:
        assert next(feed) == batches.read(0)
        os.truncate(path, 0)
        with pytest.raises(GristmillError) as raised:
            for _ in feed:
                pass
        assert isinstance(raised.value, CorruptShardError)
        assert raised.value.where == path
        assert "in the batch of step" in raised.value.__notes__[0]
        pathlib.Path(path).write_bytes(data)
        feed.set_state(feed.get_state())
        step = feed.get_state()["step"]
        expected = [batches.read(step) for step in range(step, batches.steps)]
        assert list(feed) == expected
