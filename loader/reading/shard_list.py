"""The shards of a dataset, opened when first needed and kept open, and cache counts."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.shards.shard_reader import ShardFacts, check_index, check_shard
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.cached_indexes import FooterCache
from gristmill.loader.reading.shard_file import (
    READ_LIMITS,
    ReadLimits,
    ShardFile,
    open_shard,
)
from gristmill.loader.remote.range_fetcher import RangeFetcher


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """Counts of a cache of shards, in one process or more.

    Attributes:
        hits: Records that were read from local copies.
        misses: Records that were read from object storage.
        filled_bytes: Bytes of shards that were fetched for copies.
        evictions: Copies that were deleted to make room.
    """

    hits: int = 0
    misses: int = 0
    filled_bytes: int = 0
    evictions: int = 0

    def __add__(self, other: CacheCounts) -> CacheCounts:
        if other is NOT_CACHED:
            return self  # As for every batch without a cache.
        added = {name: vars(self)[name] + vars(other)[name] for name in vars(self)}
        return CacheCounts(**added)

    def __sub__(self, other: CacheCounts) -> CacheCounts:
        left = {name: vars(self)[name] - vars(other)[name] for name in vars(self)}
        return CacheCounts(**left)


NOT_CACHED = CacheCounts()


class CacheCounter:
    """Adds up the counts of a process. Safe to share by threads.

    Attributes:
        counts: All counts so far.
    """

    def __init__(self) -> None:
        self.counts = self._taken = NOT_CACHED
        self._lock = threading.Lock()

    def add(self, counts: CacheCounts) -> None:
        """Adds counts."""
        with self._lock:
            self.counts += counts

    def take(self) -> CacheCounts:
        """Returns the additions since the last call."""
        with self._lock:
            new, self._taken = self.counts - self._taken, self.counts
        return new


# File descriptors that are left to the rest of the process.
_SPARE_FILES = 256
_COUNTING_THREADS = 32
# What a storage answers that holds something else than was expected.
_ANSWERS = CorruptShardError, StorageChangedError, StorageMissingError


class StoredShards(Protocol):
    """What opens shards in object storage: `remote_shards.RemoteShards`."""

    fetcher: RangeFetcher
    counter: CacheCounter

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """Opens shards, or local copies of them."""

    def copy(self, shard: int, index: ShardIndex) -> ShardFile | None:
        """Returns the local copy of a shard, None if there is none."""

    def delete_copy(self, shard: int) -> None:
        """Deletes the local copy of a shard."""

    def count_records(
        self, *, copied: Mapping[int, int], fetched: Mapping[int, int]
    ) -> None:
        """Counts records that were read, by shard, and asks for copies of others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardList:
    """Which records of which files make a dataset, in order. Arrays are [shards].

    Attributes:
        paths: The files.
        starts: First record of each file that is part of the dataset.
        ends: One past the last record of each file, in the numbering of the dataset.
        file_records: Records in each file, -1 where they were not counted.
        file_bytes: Size of each file, -1 where it is not known.
        name: The dataset, for messages.
        file_crc32cs: uint32 [shards], checksum of each file, None if it is not known.
        check_current: Raises InvalidDatasetError if the dataset that names these files
            names others by now.
        index_paths: Their indexes, or None for those that `open_shard` finds.
        remote: Opens the shards of a dataset in object storage; None for others.
        footers: Keeps the indexes of plain files.
    """

    paths: Sequence[str]
    starts: IntArray
    ends: IntArray
    file_records: IntArray
    file_bytes: IntArray
    name: str
    file_crc32cs: npt.NDArray[np.uint32] | None = None
    check_current: Callable[[], None] | None = None
    index_paths: Sequence[str] | None = None
    remote: StoredShards | None = None
    footers: FooterCache | None = None

    @property
    def records(self) -> int:
        """Number of records in the dataset."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def first_record(self, shard: int) -> int:
        """Returns the number, in the dataset, of the first record of a shard."""
        return int(self.ends[shard - 1]) if shard else 0

    def find(self, records: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the shard of each record in range, and its number in that file."""
        shards = np.searchsorted(self.ends, records, side="right")
        before = np.where(shards > 0, self.ends[shards - 1], 0)
        return shards, records - before + self.starts[shards]

    def find_one(self, record: int) -> tuple[int, int]:
        """Returns the shard of one record, and its number in the shard's file."""
        # Without numpy, which would release the interpreter's lock for a few steps.
        shard = bisect.bisect_right(self.ends.data, record)
        return shard, record - self.first_record(shard) + int(self.starts[shard])

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """Opens shards and compares each with the dataset's description.

        Raises:
            CorruptShardError: A shard is not the one that the dataset describes.
            InvalidDatasetError: The dataset was replaced since it was opened.
        """
        try:
            if self.remote is None:
                opened = [self._open_local(shard) for shard in shards]
            else:
                opened = self.remote.open(shards)
            for shard, file in zip(shards, opened, strict=True):
                self._compare(shard, file)
        except (CorruptShardError, StorageError) as error:
            # A bucket that does not answer is not asked for minutes once more.
            known = self.remote is None or isinstance(error, _ANSWERS)
            if known and self.check_current is not None:
                self.check_current()  # That says more, if it is the reason.
            raise
        return opened

    def _open_local(self, shard: int) -> ShardFile:
        index_path = None if self.index_paths is None else self.index_paths[shard]
        path = self.paths[shard]
        opened = open_shard(path, index_path=index_path, footers=self.footers)
        if self.file_crc32cs is not None:
            # The shard was opened before its index, in which order they are replaced.
            facts = ShardFacts(file_crc32c=int(self.file_crc32cs[shard]))
            check_index(opened.index, facts)
        return opened

    def _compare(self, shard: int, opened: ShardFile) -> None:
        taken = int(self.ends[shard]) - self.first_record(shard)
        end = int(self.starts[shard]) + taken
        records, size = int(self.file_records[shard]), int(self.file_bytes[shard])
        found = ShardFacts(opened.index.records, opened.index.file_bytes)
        if records < 0 and end > opened.index.records:
            records = end
        check_shard(
            ShardFacts(records if records >= 0 else None, size if size >= 0 else None),
            found,
            where=f"{self.name}, shard {opened.path}",
        )


class OpenShards:
    """The shards of a list that are open, within limits. Safe to share by threads."""

    def __init__(self, shards: ShardList, limits: ReadLimits = READ_LIMITS):
        self._shards, self._limits = shards, limits
        self._open: dict[int, ShardFile] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @functools.cached_property
    def most(self) -> int:
        """How many are kept open, and how many more a reader may use."""
        return most_open(len(self._shards.paths), self._limits)

    def get(self, shard: int) -> ShardFile:
        """Returns a shard, opened."""
        found = self._open.get(shard)
        if found is not None:
            return found
        (opened,) = self._shards.open([shard])
        self.keep({shard: opened})
        return opened

    def get_many(self, shards: Sequence[int]) -> dict[int, ShardFile]:
        """Returns shards; opens together those that are not open."""
        remote = self._shards.remote
        found = {shard: self._open.get(shard) for shard in shards}
        missing = [shard for shard, file in found.items() if file is None]
        opened = dict(zip(missing, self._shards.open(missing), strict=True))
        if remote is not None:
            for shard, file in found.items():
                if file is not None and file.version is not None:
                    # A copy may have been made since it was opened.
                    copy = remote.copy(shard, file.index)
                    if copy is not None:
                        found[shard] = opened[shard] = copy
        self.keep(opened)
        return {shard: file or opened[shard] for shard, file in found.items()}

    def keep(self, opened: Mapping[int, ShardFile]) -> None:
        """Keeps shards that are open, as many as may be."""
        with self._lock:
            for shard, file in opened.items():
                while len(self._open) >= self.most:
                    # The one opened first: in random order it is as good as any.
                    # Readers that still use it keep it open.
                    del self._open[next(iter(self._open))]
                self._open[shard] = file

    def without_copy(self, shard: int) -> ShardFile:
        """Deletes the local copy of a shard in object storage; returns the shard."""
        if self._shards.remote is not None:
            self._shards.remote.delete_copy(shard)
        with self._lock:
            self._open.pop(shard, None)
        return self.get_many([shard])[shard]

    def drop(self, files: Sequence[ShardFile]) -> None:
        """Closes some shards: they are opened again when they are needed."""
        dropped = set(map(id, files))
        with self._lock:
            for shard, file in list(self._open.items()):
                if id(file) in dropped:
                    del self._open[shard]

    def close(self) -> None:
        """Closes all shards. Reading opens them again."""
        with self._lock:
            self._open.clear()


def most_open(shards: int, limits: ReadLimits = READ_LIMITS) -> int:
    """Returns the number of shards to keep open, after raising the process's limit.

    A shard keeps a descriptor, and the map of its index another. The usual soft limit
    of 1,024 is meant for programs that use select(). To open and close files at every
    batch would cost more than to decode them, so the limit is raised as far as needed
    and allowed.
    """
    kept = min(shards, limits.open_shards)
    used = min(shards - kept, limits.used_shards)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return max(kept, 1)
    needed = 2 * (kept + used) + _SPARE_FILES
    if needed > soft:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # Then it stays as it is.
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = (soft - min(_SPARE_FILES, soft // 2)) // 2
    # If that is not enough for all, a reader uses as many as are kept.
    return kept if room >= kept + used else max(1, room // 2)


class CountedFile(NamedTuple):
    """A file whose records were counted; open unless too many others are."""

    records: int
    file_bytes: int
    opened: ShardFile | None


def count_files(
    paths: Sequence[str],
    *,
    footers: FooterCache | None,
    limits: ReadLimits = READ_LIMITS,
) -> list[CountedFile]:
    """Counts the records of ArrayRecord files by their footers, many at a time.

    A file that is damaged, or no ArrayRecord file, is a CorruptShardError.
    """
    if not paths:
        return []
    most = most_open(len(paths), limits)

    def count(number: int) -> CountedFile:
        opened = open_shard(paths[number], footers=footers)
        index = opened.index
        kept = opened if number < most else None
        return CountedFile(index.records, index.file_bytes, kept)

    with ThreadPoolExecutor(min(len(paths), _COUNTING_THREADS)) as pool:
        return list(pool.map(count, range(len(paths))))
