"""Opens shards of a committed dataset in object storage, in the version to read.

To open a dataset reads no shard. Before a shard is read, the bucket is asked for its
size, checksum and generation. Size and checksum must be those of the table of shards;
the generation is requested from then on.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Sequence

from gristmill.dataset.base.errors import StorageError, StorageMissingError
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.shards.shard_reader import ShardFacts, check_index, check_shard
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.reading.cached_indexes import IndexCache
from gristmill.loader.reading.host_files import EditionFiles, cache_root
from gristmill.loader.reading.shard_copies import REQUESTS_IN_FLIGHT, ShardCopies
from gristmill.loader.reading.shard_file import ShardFile, StoredBytes
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import CacheCounter, ReadOptions

_ASKED_ALONE = 2

_log = logging.getLogger(__name__)


class RemoteShards:
    """Opens shards in object storage. Safe to share by threads.

    Indexes are kept in a directory of `cache_root`; so are copies of whole shards if
    `cache_bytes` is given.

    Attributes:
        fetcher: Fetches records and indexes.
        counter: Counts what copies did.
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
        self._paths, self._index_paths, self._table = paths, index_paths, table
        self._split, self._cache_dir = split, cache_dir
        self.fetcher, self.counter = RangeFetcher(options), CacheCounter()
        self._lock = threading.Lock()
        self._listed: dict[str, dict[str, FileInfo]] = {}
        self._asked = 0
        self._indexes: IndexCache | None = None
        self.copies: ShardCopies | None = None
        if cache_bytes is None:
            return
        few = dataclasses.replace(
            options, in_flight=REQUESTS_IN_FLIGHT, hedge_factor=None
        )
        try:
            self.copies = ShardCopies(
                table,
                split,
                paths=paths,
                where=where,
                cache_dir=cache_dir,
                cache_bytes=cache_bytes,
                fetcher=RangeFetcher(few),
                version=self._version,
                requests=lambda: self.fetcher.counts.requests,
                counter=lambda: self.counter,
            )
        except StorageError as e:
            if not again:
                raise
            # In a worker, perhaps in the middle of training, which continues without.
            _log.warning("%s is read without local copies of shards: %s", where, e)

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """Opens shards, or local copies of them.

        A shard that is not the one that was converted is a CorruptShardError.
        """
        self.fetcher.check_process()
        indexes = self._index_cache().open(shards)
        return [
            self.copy(shard, index) or self._stored(shard, index)
            for shard, index in zip(shards, indexes, strict=True)
        ]

    def copy(self, shard: int, index: ShardIndex) -> ShardFile | None:
        """Returns the local copy of a shard, None if there is none."""
        data = None if self.copies is None else self.copies.find(shard)
        if data is None:
            return None
        return ShardFile(path=self._paths[shard], data=data, index=index)

    def _stored(self, shard: int, index: ShardIndex) -> ShardFile:
        path = self._paths[shard]
        return ShardFile(
            path=path,
            data=StoredBytes(path),
            index=index,
            version=self._version(shard),
        )

    def _version(self, shard: int) -> str:
        """Returns the generation of a shard, which must be the one of the table."""
        path = self._paths[shard]
        found = self._stat(path)
        described = ShardFacts(
            file_bytes=int(self._table.file_bytes[shard]),
            file_crc32c=int(self._table.file_crc32cs[shard]),
        )
        stored = ShardFacts(file_bytes=found.size_bytes, file_crc32c=found.crc32c)
        check_shard(described, stored, where=path)
        return found.version

    def _stat(self, path: str) -> FileInfo:
        """Returns size and version of an object of the dataset.

        The first few are asked for one by one, as by who traces a row. Then a listing
        of their directory gives a thousand at once.
        """
        directory = path.rpartition("/")[0]
        storage = storage_for(directory)
        with self._lock:
            self._asked += 1
            if self._asked > _ASKED_ALONE and directory not in self._listed:
                listed = storage.list(directory)
                self._listed[directory] = {info.path: info for info in listed}
            known = self._listed.get(directory)
        found = storage.stat(path) if known is None else known.get(path)
        if found is None:
            raise StorageMissingError(
                "object of the dataset does not exist",
                where=path,
                cure="restore it from a copy, or convert its shard again",
            )
        return found

    def _check_index(self, shard: int, index: ShardIndex) -> None:
        crc32c = int(self._table.file_crc32cs[shard])
        check_index(index, ShardFacts(file_crc32c=crc32c))

    def _index_cache(self) -> IndexCache:
        """Returns the cache of indexes, created at the first read."""
        with self._lock:
            if self._indexes is None:
                digests = [part.shards_digest for part in self._split.parts]
                self._indexes = IndexCache(
                    EditionFiles(
                        os.path.join(cache_root(self._cache_dir), "index"),
                        keys=[digest.rpartition(":")[2][:32] for digest in digests],
                        shards=[part.shards for part in self._split.parts],
                    ),
                    paths=self._index_paths,
                    check=self._check_index,
                    index_bytes=self._table.index_bytes,
                    fetcher=self.fetcher,
                )
            return self._indexes
