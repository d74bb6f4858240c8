"""The shards of a committed dataset in object storage, and their generations.

Before a shard is read, the bucket is asked for its size, checksum and generation. Size
and checksum must be those of the table of shards; the generation is requested from then
on.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from gristmill.dataset.base.errors import StorageMissingError
from gristmill.dataset.metadata.shard_files import ShardFacts, check_shard
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import CacheCounter

_ASKED_ALONE = 2


@dataclasses.dataclass(kw_only=True, eq=False)
class StoredShards:
    """The shards of a dataset in object storage, their table, and their fetcher.

    Attributes:
        where: The dataset, for messages.
        paths: The shards.
        index_paths: Their indexes.
        table: Their table.
        split: Their split.
        fetcher: Fetches records and indexes.
        cache_dir: The directory of the host's caches, None for the default.
        counter: Counts the use of copies.
    """

    where: str
    paths: Sequence[str]
    index_paths: Sequence[str]
    table: ShardTable
    split: Split
    fetcher: RangeFetcher
    cache_dir: str | None
    counter: CacheCounter = dataclasses.field(default_factory=CacheCounter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listed: dict[str, dict[str, FileInfo]] = {}
        self._asked = 0

    def described(self, shard: int) -> ShardFacts:
        """Returns the size and checksum that a shard has by the table."""
        return ShardFacts(
            file_bytes=int(self.table.file_bytes[shard]),
            file_crc32c=int(self.table.file_crc32cs[shard]),
        )

    def version(self, shard: int) -> str:
        """Returns the generation of a shard, which must be the one of the table."""
        path = self.paths[shard]
        found = self._stat(path)
        stored = ShardFacts(file_bytes=found.size_bytes, file_crc32c=found.crc32c)
        check_shard(self.described(shard), stored, where=path)
        return found.version

    def _stat(self, path: str) -> FileInfo:
        """Returns size and version of an object of the dataset.

        The first few are requested singly, enough to trace a row. Then a listing of
        their directory gives a thousand at once.
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
