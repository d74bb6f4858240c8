"""Indexes of object storage, kept on this host.

Each is fetched once per host. The files are mapped, so that all processes of a host
share them. A file gets its name only when it is complete and checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.shard_index import (
    ShardIndex,
    map_index,
    parse_index,
)
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.host_files import (
    EditionFiles,
    disk_errors,
    locked,
    write_whole,
)
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

# How often to fetch an index that arrives damaged.
_TRIES = 3


class IndexCache:
    """Indexes of one dataset, in directories of this host.

    Args:
        files: Where they are.
        paths: The indexes.
        check: Raises if an index is not the one of its shard.
        index_bytes: How many bytes of each are fetched, 0 for all.
        fetcher: Fetches indexes.
    """

    def __init__(
        self,
        files: EditionFiles,
        *,
        paths: Sequence[str],
        check: Callable[[int, ShardIndex], None],
        index_bytes: IntArray,
        fetcher: RangeFetcher,
    ):
        self._files, self._paths, self._index_bytes = files, paths, index_bytes
        self._check, self._fetcher = check, fetcher
        for directory in files.directories:
            with disk_errors(directory):
                os.makedirs(directory, exist_ok=True)

    def open(self, shards: Sequence[int]) -> list[ShardIndex]:
        """Returns indexes of shards; those that are missing are fetched together."""
        if missing := self._missing(shards):
            # The processes of a host begin together: the first one fetches.
            place = f"{self._files.directories[0]}/lock"
            with disk_errors(place), locked(place):
                self._fetch(self._missing(missing))
        return [self._map(shard) for shard in shards]

    def _missing(self, shards: Sequence[int]) -> list[int]:
        return [shard for shard in shards if not os.path.exists(self._local(shard))]

    def _local(self, shard: int) -> str:
        return self._files.path(shard, ".index")

    def _map(self, shard: int) -> ShardIndex:
        try:
            return map_index(self._local(shard))
        except GristmillError:  # Deleted or damaged since it was written.
            self._fetch([shard])
            return map_index(self._local(shard))

    def _fetch(self, shards: list[int]) -> None:
        for tries in reversed(range(_TRIES)):
            shards = self._fetch_once(shards, last=not tries)

    def _fetch_once(self, shards: list[int], *, last: bool) -> list[int]:
        """Returns the shards whose indexes arrived damaged; the last time it raises."""
        damaged = []

        def take(number: int, data: bytes) -> None:
            shard = shards[number]
            try:
                index = parse_index(data, path=self._paths[shard], whole=False)
                index.check()
                self._check(shard, index)
            except GristmillError:
                if last:
                    raise
                damaged.append(shard)
            else:
                write_whole(self._local(shard), data)

        ranges = [
            ByteRange(self._paths[i], end=int(self._index_bytes[i]) or None)
            for i in shards
        ]
        self._fetcher.fetch(ranges, take)
        return damaged
