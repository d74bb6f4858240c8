"""Keeps copies of shards from object storage on a local disk, shared by all processes.

A copy gets its name only when it is complete and has the checksum of its shard. The
directory of an edition is named after the content of its shards, so editions of other
content do not share copies.

Files of a cache directory:

    lock                    held by the one process of the host that adds copies
    <edition>/in_use        held, shared, by every process that reads the edition
    <edition>/00000007.shard
    <edition>/00000009.tmp  being fetched; without the lock, left by a dead process

All locks end with the processes that hold them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import math
import os
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.shards.shard_reader import ShardFacts, check_shard
from gristmill.dataset.storage.open_file import OpenFile, open_regular
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.reading.host_files import (
    EditionFiles,
    cache_root,
    disk_errors,
    locked,
)

_COPY, _TEMPORARY, _IN_USE = ".shard", ".tmp", "in_use"
# The time of last use of a copy is this exact.
_TOUCH_SECONDS = 60.0
# Other threads wait for the checksum of a piece.
_PIECE_BYTES = 1 << 20


class ShardCache:
    """Copies of the shards of one dataset. Safe to share by threads.

    It makes the directories, and counts as in use from then on.

    Args:
        directory: The cache directory of all datasets.
        files: Where in it the copies of each edition are.
        cache_bytes: Maximum bytes of all copies in the directory.
        file_bytes: int64 [shards], the size of each shard.
        file_crc32cs: uint32 [shards], its crc32c.
        touch_seconds: The time of last use of a copy is this exact.
    """

    def __init__(
        self,
        directory: str,
        *,
        files: EditionFiles,
        cache_bytes: int,
        file_bytes: IntArray,
        file_crc32cs: npt.NDArray[np.uint32],
        touch_seconds: float = _TOUCH_SECONDS,
    ):
        self.directory, self.cache_bytes = directory, cache_bytes
        self.file_bytes, self._file_crc32cs = file_bytes, file_crc32cs
        self._touch_seconds = touch_seconds
        self._lock_path = os.path.join(directory, "lock")
        self._files = files
        self._touched: dict[int, float] = {}
        with disk_errors(directory):
            os.makedirs(directory, exist_ok=True)
            open_regular(self._lock_path, "ab").close()
            for own in files.directories:
                os.makedirs(own, exist_ok=True)
                in_use = open_regular(os.path.join(own, _IN_USE), "ab")
                weakref.finalize(self, in_use.close)
                fcntl.flock(in_use, fcntl.LOCK_SH)

    def _path(self, shard: int, suffix: str = _COPY) -> str:
        return self._files.path(shard, suffix)

    def has(self, shard: int) -> bool:
        """Returns whether there is a copy."""
        return os.path.exists(self._path(shard))

    def find(self, shard: int) -> OpenFile | None:
        """Returns an opened copy; None if there is none.

        It stays readable when the copy is deleted.
        """
        try:
            file = OpenFile(self._path(shard))
        except OSError:
            return None  # Not there, or just deleted.
        if file.size_bytes == int(self.file_bytes[shard]) > 0:
            self.touch([shard])
            return file
        self.delete(shard)  # It was truncated.
        return None

    def touch(self, shards: Iterable[int]) -> None:
        """Marks copies as just used. The least recently used ones are deleted first."""
        now = time.monotonic()
        for shard in shards:
            if now - self._touched.get(shard, -math.inf) >= self._touch_seconds:
                self._touched[shard] = now
                with contextlib.suppress(OSError):
                    os.utime(self._path(shard))

    def delete(self, shard: int) -> None:
        """Deletes a copy."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(shard))

    @contextlib.contextmanager
    def filling(self) -> Iterator[CacheRoom | None]:
        """Keeps other processes and threads from adding copies.

        Yields the room for copies; None if another process or thread adds copies now.
        """
        with locked(self._lock_path, wait=False) as free:
            yield CacheRoom(self.directory, self.cache_bytes) if free else None

    @contextlib.contextmanager
    def write(self, shard: int) -> Iterator[int]:
        """Makes a copy of a shard. Only while `filling`.

        Yields a descriptor to write to, with all the space allocated. Other bytes than
        those of the shard are a CorruptShardError.
        """
        temporary = self._path(shard, _TEMPORARY)
        try:
            with open_regular(temporary, "w+b") as file:
                if hasattr(os, "posix_fallocate"):  # macOS has none.
                    os.posix_fallocate(file.fileno(), 0, int(self.file_bytes[shard]))
                yield file.fileno()
                self._compare(file, shard)
                # After a power failure, a file with its name must have its bytes.
                os.fsync(file.fileno())
            os.replace(temporary, self._path(shard))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _compare(self, file: IO[bytes], shard: int) -> None:
        crc32c, size = 0, 0
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            crc32c = google_crc32c.extend(crc32c, piece)
            size += len(piece)
        described = ShardFacts(
            file_bytes=int(self.file_bytes[shard]),
            file_crc32c=int(self._file_crc32cs[shard]),
        )
        fetched = ShardFacts(file_bytes=size, file_crc32c=crc32c)
        check_shard(described, fetched, where=self._path(shard))


def shard_cache(
    table: ShardTable,
    split: Split,
    *,
    where: str,
    cache_dir: str | None,
    cache_bytes: int | None,
) -> ShardCache | None:
    """Returns the cache of a split's shards, None if `cache_bytes` is None.

    Raises:
        InputError: No directory is given, or no shard fits into `cache_bytes`.
        StorageError: The directory cannot be used.
    """
    if cache_bytes is None:
        return None
    if not (cache_dir or os.environ.get("GRISTMILL_CACHE_DIR")):
        raise InputError(
            "no directory given for copies of shards",
            where=where,
            cure="give a directory on a fast local disk as cache_dir, or as "
            "GRISTMILL_CACHE_DIR",
        )
    sizes = table.file_bytes[table.records > 0]
    smallest = int(sizes.min(initial=2**62))
    if checked_count(cache_bytes, what="cache_bytes") < smallest and len(sizes):
        raise InputError(
            "cache_bytes is smaller than the smallest shard",
            where=where,
            expected=f"cache_bytes of at least {smallest:,}, the size of that shard",
            got=f"{cache_bytes:,}",
            cure="give more, or leave cache_bytes out",
        )
    contents = [f"{part.shards_digest} {part.records_digest}" for part in split.parts]
    directory = os.path.join(cache_root(cache_dir), "shards")
    return ShardCache(
        directory,
        files=EditionFiles(
            directory,
            keys=[hashlib.sha256(one.encode()).hexdigest()[:32] for one in contents],
            shards=[part.shards for part in split.parts],
        ),
        cache_bytes=cache_bytes,
        file_bytes=table.file_bytes,
        file_crc32cs=table.file_crc32cs,
    )


def no_shards_to_cache(where: str) -> InputError:
    """Returns the error that cache_bytes has no effect on this input."""
    return InputError(
        "cache_bytes is only for converted datasets in object storage",
        expected="the directory of one, as in gs://bucket/c4",
        got=where,
        cure="leave cache_bytes out",
    )


class _Copy(NamedTuple):
    used_at: float
    size_bytes: int
    path: str


class CacheRoom:
    """The copies of all datasets in a directory, and the room for more.

    Copies of an edition that a process reads are not deleted for others. Every epoch
    reads each record once, so all shards in use are worth the same: to replace one
    costs a fetch and gains nothing. If shards are read one after the other, to replace
    the least recently used one would even lose all hits.

    Attributes:
        evictions: Copies that were deleted here.
    """

    def __init__(self, directory: str, cache_bytes: int):
        self._cache_bytes, self.evictions = cache_bytes, 0
        places = [os.path.join(directory, name) for name in os.listdir(directory)]
        self._copies = {
            place: _copies(place) for place in places if os.path.isdir(place)
        }
        self._bytes = sum(copy.size_bytes for copy in self._all())

    def most_bytes(self) -> int:
        """Returns the largest possible size of a copy."""
        with self._unused() as copies:
            unused_bytes = sum(copy.size_bytes for copy in copies)
        return self._cache_bytes - self._bytes + unused_bytes

    def trim(self) -> None:
        """Deletes copies until they fit into `cache_bytes`, those in use last.

        A job may give the cache fewer bytes than the job before.
        """
        self.free(0)
        self._evict(self._all(), 0)

    def _all(self) -> list[_Copy]:
        return list(itertools.chain.from_iterable(self._copies.values()))

    def free(self, size_bytes: int) -> None:
        """Deletes unused copies to make room, the least recently used first."""
        if self._bytes + size_bytes > self._cache_bytes:
            with self._unused() as copies:
                self._evict(copies, size_bytes)

    def add(self, size_bytes: int) -> None:
        """Counts a new copy."""
        self._bytes += size_bytes

    def _evict(self, copies: list[_Copy], size_bytes: int) -> None:
        for copy in sorted(copies):
            if self._bytes + size_bytes <= self._cache_bytes:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(copy.path)
                self.evictions += 1
            self._copies[os.path.dirname(copy.path)].remove(copy)
            self._bytes -= copy.size_bytes

    @contextlib.contextmanager
    def _unused(self) -> Iterator[list[_Copy]]:
        """Yields the copies of unused editions, and keeps other processes from them."""
        with contextlib.ExitStack() as stack:
            unused = []
            for place, copies in self._copies.items():
                if copies:
                    path = os.path.join(place, _IN_USE)
                    if stack.enter_context(locked(path, wait=False)):
                        unused += copies
            yield unused


def _copies(place: str) -> list[_Copy]:
    """Returns the copies of an edition; deletes what dead processes have left."""
    found = []
    for name in os.listdir(place):
        path = os.path.join(place, name)
        with contextlib.suppress(FileNotFoundError):
            if name.endswith(_TEMPORARY):
                os.unlink(path)
            elif name.endswith(_COPY):
                about = os.stat(path)
                found.append(_Copy(about.st_mtime, about.st_size, path))
    return found
