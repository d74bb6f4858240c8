"""Shards of a committed dataset in object storage: which version of each is meant.

Opening a dataset touches no shard. Before a shard is read, its directory is listed,
which tells size, checksum and generation of a thousand objects in one request: the
first two must be those of the table of shards, the third is asked for from then on.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence

from gristmill.dataset.errors import CorruptShardError, StorageError
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.cache.counts import CacheCounts, CacheMeter
from gristmill.loader.cache.filler import RANGES_IN_FLIGHT, CacheFill
from gristmill.loader.cache.indexes import IndexCache, cache_root
from gristmill.loader.cache.shards import ShardCache
from gristmill.loader.indices import IntArray
from gristmill.loader.remote.index_ranges import RangedIndexes
from gristmill.loader.remote.range_fetch import RangeFetcher, ReadOptions

# A record has a checksum of 4 bytes, and at worst a chunk of its own: 4.125 bytes.
_INDEX_BYTES_PER_RECORD = 8.125


class RemoteShards:
    """What it takes to read shards from object storage. Safe to share by threads.

    Args:
        paths: The shards.
        index_paths: Their indexes.
        table: What the dataset says of them.
        options: How to read.
        cache_dir: Where to keep indexes; see `cache_root`.
        cache: Where to keep whole shards, if anywhere.

    Attributes:
        fetcher: What reads them.
        cache: As given.
        meter: What the cache did.
    """

    def __init__(
        self,
        *,
        paths: Sequence[str],
        index_paths: Sequence[str],
        table: ShardTable,
        options: ReadOptions,
        cache_dir: str | None,
        cache: ShardCache | None = None,
    ):
        self._paths, self._index_paths, self._table = paths, index_paths, table
        self._cache_dir = cache_dir
        self.fetcher = RangeFetcher(options)
        self._lock = threading.Lock()
        self._listed: dict[str, dict[str, FileInfo]] = {}
        self._indexes: IndexCache | None = None
        self.cache, self.meter = cache, CacheMeter()
        self._fill: CacheFill | None = None
        if cache is not None:
            few = dataclasses.replace(
                options, in_flight=RANGES_IN_FLIGHT, hedge_factor=None
            )
            self._fill = CacheFill(
                cache,
                paths=paths,
                version=self.version,
                fetcher=RangeFetcher(few),
                requests=lambda: self.fetcher.counts.requests,
                meter=self.meter,
            )
        self._by_range: RangedIndexes | None = None

    def count(self, *, near: Mapping[int, int], far: Mapping[int, int]) -> None:
        """Counts records that were read, and has copies made of shards without.

        Args:
            near: How many from local copies, of each shard.
            far: How many by ranges.
        """
        if self.cache is not None and self._fill is not None:
            hits, misses = sum(near.values()), sum(far.values())
            self.meter.add(CacheCounts(hits=hits, misses=misses))
            self.cache.touch(near)
            self._fill.want(far)

    def version(self, shard: int) -> str:
        """Returns the generation of a shard, which is the one that was converted.

        Raises:
            CorruptShardError: It is not.
            StorageError: There is none, or it cannot be found out.
        """
        path = self._paths[shard]
        found = self._about(path)
        size = int(self._table.file_bytes[shard])
        crc32c = int(self._table.file_crc32cs[shard])
        if found.size_bytes != size or found.crc32c not in (None, crc32c):
            raise CorruptShardError(
                "shard is not the one that the dataset describes",
                where=path,
                expected=f"{size:,} bytes, crc32c {crc32c:#010x}",
                got=f"{found.size_bytes:,} bytes, crc32c {found.crc32c or 0:#010x}",
                cure="restore the shard from a copy, or convert it again",
            )
        return found.version

    def _about(self, path: str) -> FileInfo:
        """Returns what a listing says of an object of the dataset."""
        directory = path.rpartition("/")[0]
        with self._lock:
            if directory not in self._listed:
                listed = storage_for(directory).list(directory)
                self._listed[directory] = {info.path: info for info in listed}
        found = self._listed[directory].get(path)
        if found is None:
            raise StorageError(
                "no such object in the dataset",
                where=path,
                cure="restore it from a copy, or convert its shard again",
            )
        return found

    def indexes(
        self, shards: Sequence[int], records: Sequence[IntArray]
    ) -> list[ShardIndex]:
        """Returns indexes of shards, which know at least some of their records.

        Args:
            shards: Numbers of shards.
            records: Of each shard, int64 [n] the records that matter.

        Raises:
            GristmillError: An index is damaged, or cannot be read.
        """
        self.fetcher.check_process()
        if self.keeps_indexes:
            return self._kept().open(shards)
        return self._ranged().open(shards, records)

    @property
    def keeps_indexes(self) -> bool:
        """Whether this host has room for the indexes as a whole."""
        most = _INDEX_BYTES_PER_RECORD * int(self._table.records.sum())
        return most <= self.fetcher.options.index_bytes

    def _ranged(self) -> RangedIndexes:
        with self._lock:
            if self._by_range is None:
                self._by_range = RangedIndexes(
                    paths=self._index_paths,
                    file_crc32cs=self._table.file_crc32cs,
                    about=self._about,
                    fetcher=self.fetcher,
                )
            return self._by_range

    def _kept(self) -> IndexCache:
        with self._lock:
            if self._indexes is None:
                name = self._table.shards_digest.rpartition(":")[2][:32]
                self._indexes = IndexCache(
                    os.path.join(cache_root(self._cache_dir), "index", name),
                    paths=self._index_paths,
                    file_crc32cs=self._table.file_crc32cs,
                    fetcher=lambda: self.fetcher,
                )
            return self._indexes
