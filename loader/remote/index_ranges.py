"""Indexes that are too large for this host: only the entries of a batch are fetched.

An index is a table of small entries. Here it is a map of memory of the size of the
file, into which what a batch needs is read: the head once, which is kept, and for each
record the places of its chunk and its checksum.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import CorruptShardError
from gristmill.dataset.metadata.shard_index import HEADER_BYTES, ShardIndex, parse_index
from gristmill.dataset.storage.base import FileInfo
from gristmill.loader.indices import IntArray
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetch import RangeFetcher

# Entries are a few bytes: what lies between two costs less than another request.
_GAP_BYTES = 16 << 10


class RangedIndexes:
    """Indexes of one dataset, read by ranges. Safe to share by threads.

    Memory: the heads, 1/8 of a byte for each record of the shards that were touched,
    and some pages for each record of a batch.

    Args:
        paths: Where each index is.
        file_crc32cs: Of each shard: an index knows the one of its own.
        about: Returns size and version of the index at a path.
        fetcher: What reads them.
    """

    def __init__(
        self,
        *,
        paths: Sequence[str],
        file_crc32cs: npt.NDArray[np.uint32],
        about: Callable[[str], FileInfo],
        fetcher: RangeFetcher,
    ):
        self._paths, self._file_crc32cs = paths, file_crc32cs
        self._about, self._fetcher = about, fetcher
        self._heads: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def open(
        self, shards: Sequence[int], records: Sequence[IntArray]
    ) -> list[ShardIndex]:
        """Returns indexes that know some records, and nothing of the others.

        Args:
            shards: Numbers of shards.
            records: Of each shard, int64 [n] the numbers of records in it.

        Raises:
            InvalidDatasetError: An index is damaged.
            CorruptShardError: It is the index of another shard.
            StorageError: It cannot be read.
        """
        # Under the lock, so that no head is fetched twice.
        with self._lock:
            self._fetch_heads([shard for shard in shards if shard not in self._heads])
        maps = [self._map(shard) for shard in shards]
        indexes = [
            parse_index(data, path=self._paths[shard])
            for shard, data in zip(shards, maps, strict=True)
        ]
        self._fill(
            shards,
            maps,
            [
                index.entry_ranges(wanted)
                for index, wanted in zip(indexes, records, strict=True)
            ],
        )
        return indexes

    def _map(self, shard: int) -> mmap.mmap:
        size = self._about(self._paths[shard]).size_bytes
        data = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        head = self._heads.get(shard, b"")
        data[: len(head)] = head
        return data

    def _fetch_heads(self, shards: Sequence[int]) -> None:
        if not shards:
            return
        maps = [self._map(shard) for shard in shards]
        zero = np.zeros(1, np.int64)
        self._fill(shards, maps, [(zero, zero + HEADER_BYTES)] * len(shards))
        indexes = [
            parse_index(data, path=self._paths[shard])
            for shard, data in zip(shards, maps, strict=True)
        ]
        rest = []
        for index in indexes:
            begin, end = index.report_range()
            ranges = np.array([(HEADER_BYTES, index.head_bytes), (begin, end)])
            rest.append((ranges[:, 0], ranges[:, 1]))
        self._fill(shards, maps, rest)
        for shard, data, index in zip(shards, maps, indexes, strict=True):
            expected, got = int(self._file_crc32cs[shard]), index.report().file_crc32c
            if got != expected:
                raise CorruptShardError(
                    "index is not the one of its shard",
                    where=self._paths[shard],
                    expected=f"of a shard with crc32c {expected:#010x}",
                    got=f"of one with {got:#010x}",
                    cure="restore the index from a copy, or convert this shard again",
                )
            self._heads[shard] = data[: index.head_bytes]

    def _fill(
        self,
        shards: Sequence[int],
        maps: Sequence[mmap.mmap],
        wanted: Sequence[tuple[IntArray, IntArray]],
    ) -> None:
        """Fetches ranges of the files of all shards at once, into the maps."""
        ranges: list[ByteRange] = []
        targets: list[mmap.mmap] = []
        for shard, data, (begins, ends) in zip(shards, maps, wanted, strict=True):
            path = self._paths[shard]
            version = self._about(path).version
            for begin, end in _joined(begins, ends):
                ranges.append(ByteRange(path, begin, end, version))
                targets.append(data)

        def take(number: int, piece: bytes) -> None:
            targets[number][ranges[number].begin : ranges[number].end] = piece

        self._fetcher.fetch(ranges, take)


def _joined(begins: IntArray, ends: IntArray) -> list[tuple[int, int]]:
    """Returns the ranges that hold all of some, near ones joined; empty ones not."""
    filled = ends > begins
    order = np.argsort(begins[filled], kind="stable")
    begins, ends = begins[filled][order], np.maximum.accumulate(ends[filled][order])
    if not len(begins):
        return []
    far = np.flatnonzero(begins[1:] - ends[:-1] > _GAP_BYTES) + 1
    firsts, lasts = np.append(0, far), np.append(far, len(begins)) - 1
    return list(zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True))
