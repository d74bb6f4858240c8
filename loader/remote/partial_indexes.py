"""Partial indexes: entries fetched from indexes that are too large for this host.

An index is a table of small entries. It becomes an anonymous memory map of the size of
the file, into which the needed parts are read: the head, which is fetched once and
kept, and for each record the place of its chunk and its checksum.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Sequence

import numpy as np

from gristmill.dataset.metadata.shard_index import HEADER_BYTES, ShardIndex, parse_index
from gristmill.dataset.storage.base import FileInfo
from gristmill.loader.base.indices import IntArray
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

# Entries are a few bytes: reading a gap costs less than another request.
_GAP_BYTES = 16 << 10


class PartialIndexes:
    """Indexes of one dataset, read by ranges. Safe to share by threads.

    Memory: the heads, 1/8 of a byte for each record of the shards that were read, and
    some pages for each record of a batch.

    Args:
        paths: The indexes.
        check: Raises an error if an index does not belong to its shard.
        stat: Returns the size and version of an index.
        fetcher: Fetcher of their parts.
    """

    def __init__(
        self,
        *,
        paths: Sequence[str],
        check: Callable[[int, ShardIndex], None],
        stat: Callable[[str], FileInfo],
        fetcher: RangeFetcher,
    ):
        self._paths, self._check = paths, check
        self._stat, self._fetcher = stat, fetcher
        self._heads: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def open(
        self, shards: Sequence[int], records: Sequence[IntArray]
    ) -> list[ShardIndex]:
        """Returns indexes with the entries of only some records of each shard."""
        # The lock keeps two threads from fetching the same head.
        with self._lock:
            self._fetch_heads([shard for shard in shards if shard not in self._heads])
        maps = [self._map(shard) for shard in shards]
        indexes = self._parse(shards, maps)
        wanted = zip(indexes, records, strict=True)
        self._fill(shards, maps, [index.entry_ranges(some) for index, some in wanted])
        return indexes

    def _parse(
        self, shards: Sequence[int], maps: Sequence[mmap.mmap]
    ) -> list[ShardIndex]:
        return [
            parse_index(data, path=self._paths[shard])
            for shard, data in zip(shards, maps, strict=True)
        ]

    def _map(self, shard: int) -> mmap.mmap:
        size = self._stat(self._paths[shard]).size_bytes
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
        indexes = self._parse(shards, maps)
        rest = []
        for index in indexes:
            ranges = np.array([(HEADER_BYTES, index.head_bytes), index.report_range()])
            rest.append((ranges[:, 0], ranges[:, 1]))
        self._fill(shards, maps, rest)
        for shard, data, index in zip(shards, maps, indexes, strict=True):
            self._check(shard, index)
            self._heads[shard] = data[: index.head_bytes]

    def _fill(
        self,
        shards: Sequence[int],
        maps: Sequence[mmap.mmap],
        wanted: Sequence[tuple[IntArray, IntArray]],
    ) -> None:
        """Fetches ranges of the indexes of all shards at once, into the maps."""
        ranges: list[ByteRange] = []
        targets: list[mmap.mmap] = []
        for shard, data, (begins, ends) in zip(shards, maps, wanted, strict=True):
            path = self._paths[shard]
            version = self._stat(path).version
            for begin, end in _joined(begins, ends):
                ranges.append(ByteRange(path, begin, end, version))
                targets.append(data)

        def take(number: int, piece: bytes) -> None:
            targets[number][ranges[number].begin : ranges[number].end] = piece

        self._fetcher.fetch(ranges, take)


def _joined(begins: IntArray, ends: IntArray) -> list[tuple[int, int]]:
    """Joins ranges that overlap or are close together; leaves out empty ones."""
    filled = ends > begins
    order = np.argsort(begins[filled], kind="stable")
    begins, ends = begins[filled][order], np.maximum.accumulate(ends[filled][order])
    if not len(begins):
        return []
    far = np.flatnonzero(begins[1:] - ends[:-1] > _GAP_BYTES) + 1
    firsts, lasts = np.append(0, far), np.append(far, len(begins)) - 1
    return list(zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True))
