"""Opens shards of a committed dataset in object storage, or local copies of them.

Opening a dataset reads no shard. Indexes are fetched once per host. The files are
mapped, so that all processes of a host share them. A file gets its name only when it is
complete and checked.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Sequence

from gristmill.dataset.base.errors import GristmillError, StorageError
from gristmill.dataset.metadata.shard_files import ShardFacts, check_index
from gristmill.dataset.metadata.shard_index import ShardIndex, map_index, parse_index
from gristmill.loader.reading.host_cache import (
    EditionFiles,
    cache_root,
    disk_errors,
    locked,
    write_whole,
)
from gristmill.loader.reading.shard_copies import ShardCopies, StoredShards
from gristmill.loader.reading.shard_file import ShardFile, StoredBytes
from gristmill.loader.remote.object_reads import ByteRange

# How often to fetch an index that arrives damaged.
_TRIES = 3

_log = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True, eq=False)
class RemoteShards(StoredShards):
    """Opens shards in object storage. Safe to share by threads.

    Indexes are kept in a directory of `cache_root`; so are copies of whole shards if
    `cache_bytes` is given.

    Attributes:
        cache_bytes: Maximum bytes of all copies on this host, None for no copies.
        again: Whether it was open before, in another process.
        copies: The copies of shards; None without them.
    """

    cache_bytes: int | None = None
    again: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.copies: ShardCopies | None = None
        if self.cache_bytes is None:
            return
        try:
            self.copies = ShardCopies(self, self.cache_bytes)
        except StorageError as e:
            if not self.again:
                raise
            # In a worker, perhaps in the middle of training, which continues without.
            text = "%s is read without local copies of shards: %s"
            _log.warning(text, self.where, e)

    def share(self, other: RemoteShards) -> None:
        """Uses the fetcher and the counter of another: one limit for all requests."""
        self.fetcher, self.counter = other.fetcher, other.counter

    def open(self, shards: Sequence[int]) -> list[ShardFile]:
        """Opens shards, or local copies of them.

        A shard that is not the one that was converted is a CorruptShardError.
        """
        self.fetcher.check_process()
        if self._missing(shards):
            # The processes of a host begin together: one of them fetches.
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
        path, version = self.paths[shard], self.version(shard)
        data = StoredBytes(path, index.file_bytes, version)
        return ShardFile(path=path, data=data, index=index)

    def copy(self, shard: int, index: ShardIndex) -> ShardFile | None:
        """Returns the local copy of a shard, None if there is none."""
        data = None if self.copies is None else self.copies.find(shard)
        if data is None:
            return None
        return ShardFile(path=self.paths[shard], data=data, index=index)

    @functools.cached_property
    def _files(self) -> EditionFiles:
        """The directories of indexes, which the first read makes."""
        root = os.path.join(cache_root(self.cache_dir), "index")
        files = EditionFiles(root, self.split)
        for directory in files.directories:
            with disk_errors(directory):
                os.makedirs(directory, exist_ok=True)
        return files

    def _missing(self, shards: Sequence[int]) -> list[int]:
        path = self._files.path
        return [n for n in shards if not os.path.exists(path(n, ".index"))]

    def _fetch(self, shards: Sequence[int], tries: int = _TRIES) -> None:
        """Fetches indexes; again those that arrive damaged."""
        damaged: list[int] = []

        def take(number: int, data: bytes) -> None:
            shard = shards[number]
            try:
                index = parse_index(data, path=self.index_paths[shard], whole=False)
                index.check()
                crc32c = self.described(shard).file_crc32c
                check_index(index, ShardFacts(file_crc32c=crc32c))
            except GristmillError:
                if tries == 1:
                    raise
                damaged.append(shard)
            else:
                write_whole(self._files.path(shard, ".index"), data)

        sizes = self.table.index_bytes
        ranges = [
            ByteRange(self.index_paths[i], end=int(sizes[i]) or None) for i in shards
        ]
        self.fetcher.fetch(ranges, take)
        if damaged:
            self._fetch(damaged, tries - 1)
