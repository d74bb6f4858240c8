"""The shards of a dataset, opened when first needed and kept open."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.base.system import allowed_files
from gristmill.dataset.metadata.shard_files import ShardFacts, check_index, check_shard
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.host_cache import FooterCache
from gristmill.loader.reading.shard_file import ShardFile, open_shard

if TYPE_CHECKING:
    from gristmill.loader.reading.remote_shards import RemoteShards


# Linux allows a process 65,530 maps, and a shard's index takes one.
_OPEN_SHARDS = 24_000
USED_SHARDS = 4_000
"""Maximum shards that a reader uses at a time besides those that stay open."""

# File descriptors that are left to the rest of the process.
_SPARE_FILES = 256
_COUNTING_THREADS = 32
# Errors from a storage that answers.
_ANSWERS = CorruptShardError, StorageChangedError, StorageMissingError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardList:
    """The files of a dataset and their records, in order. Arrays are [shards].

    Attributes:
        paths: The files; none of joined lists.
        starts: The first record of each file that belongs to the dataset.
        ends: One past the last record of each file, in the numbering of the dataset.
        file_records: Records in each file, -1 where they were not counted.
        file_bytes: Size of each file, -1 where it is not known.
        name: The dataset, for messages.
        file_crc32cs: uint32 [shards], checksum of each file, None if it is not known.
        check_current: Raises InvalidDatasetError if the dataset that names these files
            names others by now.
        index_paths: Their indexes, or None for those that `open_shard` finds.
        remote: Opens the shards of a dataset in object storage; None for others. Joined
            lists have that of the first, whose fetcher and counter all have.
        footers: Keeps the indexes of plain files.
        parts: The lists that were joined, each of which opens its own shards.
    """

    starts: IntArray
    ends: IntArray
    file_records: IntArray
    file_bytes: IntArray
    name: str
    paths: Sequence[str] = ()
    file_crc32cs: npt.NDArray[np.uint32] | None = None
    check_current: Callable[[], None] | None = None
    index_paths: Sequence[str] | None = None
    remote: RemoteShards | None = None
    footers: FooterCache | None = None
    parts: tuple[ShardList, ...] = ()

    @classmethod
    def joined(cls, lists: Sequence[ShardList]) -> ShardList:
        """Joins lists of shards; a single one stays as it is.

        Raises:
            InputError: Some are read from object storage by their tables, others not.
        """
        if len(lists) == 1:
            return lists[0]
        remotes = [one.remote for one in lists if one.remote is not None]
        if 0 < len(remotes) < len(lists):
            raise InputError(
                "datasets in a bucket are not joined with others",
                got=some_of([one.name for one in lists]),
                cure="copy them to one place, or make a mixture of them",
            )
        sizes = [one.records for one in lists]
        for remote in remotes:
            # One limit for the requests of all.
            remote.share(remotes[0])
        before = itertools.accumulate(sizes, initial=0)
        ends = [one.ends + first for one, first in zip(lists, before, strict=False)]
        return cls(
            starts=np.concatenate([one.starts for one in lists]),
            ends=np.concatenate(ends),
            file_records=np.concatenate([one.file_records for one in lists]),
            file_bytes=np.concatenate([one.file_bytes for one in lists]),
            name=" + ".join(one.name for one in lists),
            remote=remotes[0] if remotes else None,
            parts=tuple(lists),
        )

    def __len__(self) -> int:
        return len(self.ends)

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

    def part_of(self, shard: int) -> tuple[int, int]:
        """Returns the number of the list that has a shard, and the shard's there."""
        for part, one in enumerate(self.parts):
            if shard < len(one):
                return part, shard
            shard -= len(one)
        return 0, shard

    def owner(self, shard: int) -> tuple[ShardList, int]:
        """Returns the list that opens a shard, and the shard's number there."""
        part, number = self.part_of(shard)
        return (self.parts or (self,))[part], number

    def path(self, shard: int) -> str:
        """Returns the file of a shard."""
        owner, number = self.owner(shard)
        return owner.paths[number]

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """Opens shards and compares each with the dataset's description.

        Raises:
            CorruptShardError: A shard is not the one that the dataset describes.
            InvalidDatasetError: The dataset was replaced since it was opened.
        """
        if self.parts:
            opened: dict[int, ShardFile] = {}
            places = {shard: self.part_of(shard) for shard in shards}
            for number, part in enumerate(self.parts):
                own = {shard: n for shard, (at, n) in places.items() if at == number}
                opened.update(zip(own, part.open([*own.values()]), strict=True))
            return [opened[shard] for shard in shards]
        try:
            if self.remote is None:
                files = [self._open_local(shard) for shard in shards]
            else:
                files = self.remote.open(shards)
            for shard, file in zip(shards, files, strict=True):
                self._compare(shard, file)
        except (CorruptShardError, StorageError) as error:
            # A bucket that does not answer would take minutes once more.
            known = self.remote is None or isinstance(error, _ANSWERS)
            if known and self.check_current is not None:
                self.check_current()  # That says more, if it is the reason.
            raise
        return files

    def count_records(self, shard: int, records: int, *, fetched: bool) -> None:
        """Counts records that were read, and asks for a copy if they were fetched."""
        part, number = self.owner(shard)
        if part.remote is not None and part.remote.copies is not None:
            part.remote.copies.count(number, records, fetched=fetched)

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
        found = ShardFacts(opened.index.records, opened.index.file_bytes)
        records, size = int(self.file_records[shard]), int(self.file_bytes[shard])
        if records < 0:
            records = max(end, opened.index.records)
        check_shard(
            ShardFacts(records, size if size >= 0 else None),
            found,
            where=f"{self.name}, shard {opened.path}",
        )


class OpenShards:
    """The shards of a list that are open, within limits. Safe to share by threads."""

    def __init__(self, shards: ShardList):
        self._shards = shards
        self._open: dict[int, ShardFile] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    @functools.cached_property
    def most(self) -> int:
        """Maximum shards that are kept open."""
        return most_open(len(self._shards))

    def get(self, shard: int) -> ShardFile:
        """Returns a shard, opened."""
        return self._open.get(shard) or self.get_many([shard])[shard]

    def get_many(self, shards: Sequence[int]) -> dict[int, ShardFile]:
        """Returns shards; opens together those that are not open."""
        found = {shard: self._open.get(shard) for shard in shards}
        missing = [shard for shard, file in found.items() if file is None]
        opened = dict(zip(missing, self._shards.open(missing), strict=True))
        known = {shard: file for shard, file in found.items() if file is not None}
        if self._shards.remote is not None:
            for shard, file in known.items():
                part, number = self._shards.owner(shard)
                # A copy may have been made since it was opened.
                if file.version is not None and part.remote is not None:
                    opened[shard] = part.remote.copy(number, file.index) or file
        self.keep(opened)
        return {**known, **opened}

    def keep(self, opened: Mapping[int, ShardFile]) -> None:
        """Keeps open shards, within the limit."""
        with self._lock:
            for shard, file in opened.items():
                while len(self._open) >= self.most:
                    # The one opened first: in random order it is as good as any.
                    # Readers that still use it keep it open.
                    del self._open[next(iter(self._open))]
                self._open[shard] = file

    def without_copy(self, shard: int) -> ShardFile:
        """Deletes the local copy of a shard in object storage; returns the shard."""
        part, number = self._shards.owner(shard)
        if part.remote is not None and part.remote.copies is not None:
            part.remote.copies.delete(number)
        with self._lock:
            self._open.pop(shard, None)
        return self.get(shard)

    def close(self) -> None:
        """Closes all shards. Reading opens them again."""
        with self._lock:
            self._open.clear()


def most_open(shards: int) -> int:
    """Returns the number of shards to keep open, after raising the process's limit.

    A shard keeps a descriptor, and the map of its index another. Opening and closing
    files at every batch would cost more than decoding them.
    """
    kept = min(shards, _OPEN_SHARDS)
    used = min(shards - kept, USED_SHARDS)
    allowed = allowed_files(2 * (kept + used) + _SPARE_FILES)
    room = (allowed - min(_SPARE_FILES, allowed // 2)) // 2
    # If that is not enough for all, a reader uses as many as are kept.
    return max(1, kept if room >= kept + used else room // 2)


def count_files(
    paths: Sequence[str],
    *,
    footers: FooterCache | None,
) -> tuple[IntArray, IntArray, dict[int, ShardFile]]:
    """Counts the records of ArrayRecord files by their footers, many at a time.

    A file that is damaged, or no ArrayRecord file, is a CorruptShardError.

    Returns:
        int64 [files], the records of each; int64 [files], its bytes; and those that
        stay open, by number.
    """
    most, opened = most_open(len(paths)), {}

    def count(number: int) -> tuple[int, int]:
        file = open_shard(paths[number], footers=footers)
        if number < most:
            opened[number] = file
        return file.index.records, file.index.file_bytes

    with ThreadPoolExecutor(_COUNTING_THREADS) as pool:
        found = list(pool.map(count, range(len(paths))))
    records, file_bytes = np.array(found, np.int64).reshape(-1, 2).T
    return records, file_bytes, opened
