"""Giving a finished shard its name, and then its index."""

from __future__ import annotations

import dataclasses
from typing import Self

from gristmill.dataset import layout
from gristmill.dataset.shard_index import encode_index
from gristmill.dataset.shard_report import ShardReport
from gristmill.dataset.shard_writer import WrittenShard
from gristmill.dataset.storage import storage_for, version_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlace:
    """Where a shard and its index go, and what is there before the work begins.

    Attributes:
        output: The dataset's directory.
        path: The shard, relative to it.
        shard_version: Of the file in the shard's place; see `version_of`.
        index_version: Of the file in the index's place.
    """

    output: str
    path: str
    shard_version: str
    index_version: str

    @classmethod
    def look(cls, output: str, path: str) -> Self:
        """Looks at a place. What another worker writes there afterwards stays."""
        return cls(
            output=output,
            path=path,
            shard_version=version_of(layout.join(output, path)),
            index_version=version_of(layout.join(output, layout.index_path(path))),
        )

    def publish(self, local: str, written: WrittenShard, report: ShardReport) -> None:
        """Moves a finished shard to its place, and writes its index.

        Args:
            local: The shard's file, from `Storage.temporary`.
            written: What is in it.
            report: What was counted.

        Raises:
            StorageError: It failed, or another writer was there meanwhile.
        """
        storage = storage_for(self.output)
        # In this order: whoever finds an index finds a whole shard.
        final = layout.join(self.output, self.path)
        storage.publish(local, final, replaces=self.shard_version)
        data = encode_index(
            footer=written.footer, crc32cs=written.crc32cs, report=report
        )
        index = layout.join(self.output, layout.index_path(self.path))
        storage.write(index, data, replaces=self.index_version)
