"""Copies of shards in a directory: when they are used, and when deleted."""

import os
import pathlib
import tempfile

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.loader.reading.cached_shards import ShardCache
from gristmill.loader.reading.host_files import EditionFiles

DATA = [bytes([shard]) * (50 + shard) for shard in range(8)]


def cache_of(
    folder: str | pathlib.Path,
    key: str = "a",
    *,
    cache_bytes: int = 10_000,
    **options: float,
) -> ShardCache:
    return ShardCache(
        str(folder),
        files=EditionFiles(str(folder), keys=[key], shards=[len(DATA)]),
        cache_bytes=cache_bytes,
        file_bytes=np.array([len(data) for data in DATA]),
        file_crc32cs=np.array([google_crc32c.value(data) for data in DATA], np.uint32),
        **options,
    )


def write(cache: ShardCache, shard: int, data: bytes | None = None) -> None:
    with cache.write(shard) as file:
        os.pwrite(file, DATA[shard] if data is None else data, 0)


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> ShardCache:
    return cache_of(tmp_path)


def test_a_copy_is_found_when_it_is_complete(cache: ShardCache) -> None:
    assert cache.find(3) is None
    with cache.write(3) as file:
        os.pwrite(file, DATA[3][:20], 0)
        assert cache.find(3) is None
        assert not cache.has(3)
        os.pwrite(file, DATA[3][20:], 20)
    assert cache.has(3)
    found = cache.find(3)
    assert found[0 : found.size_bytes] == DATA[3]
    cache.delete(3)
    assert cache.find(3) is None
    assert found[0 : found.size_bytes] == DATA[3]  # It stays open.


@pytest.mark.parametrize(
    "data", [b"", DATA[3][:-1], DATA[3] + b"!", b"x" + DATA[3][1:]], ids=len
)
def test_bytes_of_another_shard_get_no_name(
    cache: ShardCache, tmp_path: pathlib.Path, data: bytes
) -> None:
    with pytest.raises(CorruptShardError, match="crc32c"):
        write(cache, 3, data)
    assert not cache.has(3)
    with pytest.raises(KeyError), cache.write(3):
        raise KeyError
    assert {path.name for path in tmp_path.rglob("*")} == {"lock", "a", "in_use"}


def test_one_thread_or_process_fills_at_a_time(
    cache: ShardCache, tmp_path: pathlib.Path
) -> None:
    other = cache_of(tmp_path, "b")
    reader, writer = os.pipe()
    with cache.filling() as room:
        assert room is not None
        with other.filling() as second:
            assert second is None
        child = os.fork()
        if not child:  # It has the lock's file as well, and does not close it.
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    with other.filling() as second:
        assert second is not None
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    copies=st.lists(
        st.tuples(
            st.sampled_from("abc"),  # dataset
            st.integers(0, 7),  # shard
            st.integers(0, 5),  # when it was used
        ),
        unique_by=lambda item: item[:2],
    ),
    used=st.sets(st.sampled_from("abc")),
    cache_bytes=st.integers(0, 900),
    wanted_bytes=st.integers(0, 400),
)
def test_least_recently_used_copies_of_unused_datasets_make_room(
    copies: list[tuple[str, int, int]],
    used: set[str],
    cache_bytes: int,
    wanted_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ages = {}
        for key, shard, used_at in copies:
            path = pathlib.Path(folder, key, f"{shard:08d}.shard")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(DATA[shard])
            os.utime(path, (used_at, used_at))
            ages[path] = used_at
        users = [cache_of(folder, key) for key in used]
        filler = cache_of(folder, "z", cache_bytes=cache_bytes)
        sizes = {path: path.stat().st_size for path in ages}
        total = sum(sizes.values())
        free = [path for path in ages if path.parent.name not in used]
        most = cache_bytes - total + sum(sizes[path] for path in free)
        with filler.filling() as room:
            assert room is not None
            assert room.most_bytes() == most
            room.free(wanted_bytes)
            gone = [path for path in ages if not path.exists()]
            left = total - sum(sizes[path] for path in gone)
            assert room.evictions == len(gone)
            assert set(gone) <= set(free)
            if wanted_bytes <= most:
                assert left + wanted_bytes <= cache_bytes
            if gone:
                newest = max(ages[path] for path in gone)
                assert all(ages[path] >= newest for path in free if path not in gone)
                # Not one more than it takes.
                last = max(gone, key=lambda path: (ages[path], sizes[path], str(path)))
                assert left + sizes[last] + wanted_bytes > cache_bytes
            room.trim()
            left = sum(path.stat().st_size for path in ages if path.exists())
            assert left <= cache_bytes
        del users


def test_files_of_dead_processes_are_deleted_at_the_next_fill(
    cache: ShardCache, tmp_path: pathlib.Path
) -> None:
    left = tmp_path / "b" / "00000001.tmp"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with cache.filling() as room:
        assert room is not None
        assert not left.exists()
        assert room.most_bytes() == 10_000
