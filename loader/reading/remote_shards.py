"""Opens shards of a committed dataset in object storage, or local copies of them.

To open a dataset reads no shard. Indexes are fetched once per host. The files are
mapped, so that all processes of a host share them. A file gets its name only when it is
complete and checked.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence

from gristmill.dataset.base.errors import GristmillError, StorageError
from gristmill.dataset.metadata.shard_files import ShardFacts, check_index
from gristmill.dataset.metadata.shard_index import ShardIndex, map_index, parse_index
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.reading.host_cache import (
    EditionFiles,
    cache_root,
    disk_errors,
    locked,
    write_whole,
)
from gristmill.loader.reading.shard_copies import ShardCopies
from gristmill.loader.reading.shard_file import ShardFile, StoredBytes
from gristmill.loader.reading.stored_shards import StoredShards
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import CacheCounter, ReadOptions

# How often to fetch an index that arrives damaged.
_TRIES = 3

_log = logging.getLogger(__name__)


class RemoteShards:
    """Opens shards in object storage. Safe to share by threads.

    Indexes are kept in a directory of `cache_root`; so are copies of whole shards if
    `cache_bytes` is given.

    Attributes:
        copies: The copies of shards; None without them.
    """

    def __init__(
        self,
        *,
        where: str,
        paths: Sequence[str],
        index_paths: Sequence[str],
        table: ShardTable,
        split: Split,
        options: ReadOptions,
        cache_dir: str | None,
        cache_bytes: int | None = None,
        again: bool = False,
    ):
        self._stored = StoredShards(
            where=where,
            paths=paths,
            index_paths=index_paths,
            table=table,
            split=split,
            fetcher=RangeFetcher(options),
            counter=CacheCounter(),
            cache_dir=cache_dir,
        )
        self.copies: ShardCopies | None = None
        if cache_bytes is None:
            return
        try:
            self.copies = ShardCopies(self._stored, cache_bytes)
        except StorageError as e:
            if not again:
                raise
            # In a worker, perhaps in the middle of training, which continues without.
            _log.warning("%s is read without local copies of shards: %s", where, e)

    @property
    def fetcher(self) -> RangeFetcher:
        """Fetches records and indexes."""
        return self._stored.fetcher

    @property
    def counter(self) -> CacheCounter:
        """Counts what copies did."""
        return self._stored.counter

    def share(self, other: RemoteShards) -> None:
        """Uses the fetcher and the counter of another: one limit for all requests."""
        self._stored.fetcher, self._stored.counter = other.fetcher, other.counter

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """Opens shards, or local copies of them.

        A shard that is not the one that was converted is a CorruptShardError.
        """
        self.fetcher.check_process()
        if self._missing(shards):
            # The processes of a host begin together: the first one fetches.
            place = f"{self._files.directories[0]}/lock"
            with disk_errors(place), locked(place):
                self._fetch(self._missing(shards))
        return [self._open(shard) for shard in shards]

    def _open(self, shard: int) -> ShardFile:
        place = self._files.path(shard, ".index")
        try:
            index = map_index(place)
        except GristmillError:  # Deleted or damaged since it was written.
            self._fetch([shard])
            index = map_index(place)
        if (copy := self.copy(shard, index)) is not None:
            return copy
        path, version = self._stored.paths[shard], self._stored.version(shard)
        data = StoredBytes(path, index.file_bytes, version)
        return ShardFile(path=path, data=data, index=index)

    def copy(self, shard: int, index: ShardIndex) -> ShardFile | None:
        """Returns the local copy of a shard, None if there is none."""
        data = None if self.copies is None else self.copies.find(shard)
        if data is None:
            return None
        return ShardFile(path=self._stored.paths[shard], data=data, index=index)

    @functools.cached_property
    def _files(self) -> EditionFiles:
        """Where indexes are kept: only reading makes these directories."""
        parts = self._stored.split.parts
        files = EditionFiles(
            os.path.join(cache_root(self._stored.cache_dir), "index"),
            keys=[part.shards_digest.rpartition(":")[2][:32] for part in parts],
            shards=[part.shards for part in parts],
        )
        for directory in files.directories:
            with disk_errors(directory):
                os.makedirs(directory, exist_ok=True)
        return files

    def _missing(self, shards: Sequence[int]) -> list[int]:
        path = self._files.path
        return [n for n in shards if not os.path.exists(path(n, ".index"))]

    def _fetch(self, shards: Sequence[int], tries: int = _TRIES) -> None:
        """Fetches indexes; again those that arrive damaged."""
        stored, damaged = self._stored, []

        def take(number: int, data: bytes) -> None:
            shard = shards[number]
            try:
                index = parse_index(data, path=stored.index_paths[shard], whole=False)
                index.check()
                crc32c = stored.described(shard).file_crc32c
                check_index(index, ShardFacts(file_crc32c=crc32c))
            except GristmillError:
                if tries == 1:
                    raise
                damaged.append(shard)
            else:
                write_whole(self._files.path(shard, ".index"), data)

        sizes = stored.table.index_bytes
        ranges = [
            ByteRange(stored.index_paths[i], end=int(sizes[i]) or None) for i in shards
        ]
        self.fetcher.fetch(ranges, take)
        if damaged:
            self._fetch(damaged, tries - 1)
