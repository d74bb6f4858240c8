"""Keeps the indexes of a dataset in object storage: each fetched once per host.

The files are mapped, so that all processes of a host share them. A file gets its name
only when it is complete and checked. A lock keeps two processes from fetching the same
index.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.shard_index import ShardIndex, map_index, parse_index
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.edition_files import EditionFiles
from gristmill.loader.reading.host_files import disk_errors, locked, write_whole
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
        fetcher: Fetches indexes.
    """

    def __init__(
        self,
        files: EditionFiles,
        *,
        paths: Sequence[str],
        check: Callable[[int, ShardIndex], None],
        fetcher: RangeFetcher,
    ):
        self._files, self._paths = files, paths
        self._check, self._fetcher = check, fetcher
        for directory in files.directories:
            with disk_errors(directory):
                os.makedirs(directory, exist_ok=True)

    def open(
        self, shards: Sequence[int], records: Sequence[IntArray]
    ) -> list[ShardIndex]:
        """Returns indexes of shards; those that are missing are fetched together.

        They have all records of their shards.
        """
        if missing := self._missing(shards):
            with self._locked(missing):
                self._fetch(self._missing(missing))
        return [self._map(shard) for shard in shards]

    def _missing(self, shards: Sequence[int]) -> list[int]:
        return [shard for shard in shards if not os.path.exists(self._local(shard))]

    def _local(self, shard: int) -> str:
        return self._files.path(shard, ".index")

    @contextlib.contextmanager
    def _locked(self, shards: Sequence[int]) -> Iterator[None]:
        """Keeps other processes and threads from fetching indexes of these shards."""
        directories = {os.path.dirname(self._local(shard)) for shard in shards}
        with contextlib.ExitStack() as stack:
            # All take them in the same order, so that none waits forever.
            for directory in sorted(directories):
                stack.enter_context(disk_errors(directory))
                stack.enter_context(locked(f"{directory}/lock"))
            yield

    def _map(self, shard: int) -> ShardIndex:
        try:
            return map_index(self._local(shard))
        except GristmillError:
            # Deleted or damaged since it was written: fetch it again.
            with self._locked([shard]):
                self._fetch([shard])
            return map_index(self._local(shard))

    def _fetch(self, shards: list[int]) -> None:
        for tries in range(1, _TRIES + 1):
            shards = self._fetch_once(shards, last=tries == _TRIES)

    def _fetch_once(self, shards: list[int], *, last: bool) -> list[int]:
        """Returns the shards whose indexes arrived damaged; the last time it raises."""
        damaged = []

        def take(number: int, data: bytes) -> None:
            shard = shards[number]
            try:
                index = parse_index(data, path=self._paths[shard])
                index.check()
                self._check(shard, index)
            except GristmillError:
                if last:
                    raise
                damaged.append(shard)
            else:
                write_whole(self._local(shard), data)

        self._fetcher.fetch([ByteRange(self._paths[i]) for i in shards], take)
        return damaged
