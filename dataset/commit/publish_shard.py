"""Giving a finished shard its name, and then its index."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Self

from gristmill.dataset.arrayrecord.shard_writer import WrittenShard
from gristmill.dataset.errors import InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import encode_index, parse_index
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlace:
    """Where a shard and what belongs to it go, and what is there before work begins.

    Every write names the version that it replaces: what another worker writes there
    afterwards stays.

    Attributes:
        output: The dataset's directory.
        path: The shard, relative to it.
        seen: The files that were there, by path relative to the dataset.
    """

    output: str
    path: str
    seen: Mapping[str, FileInfo]

    @classmethod
    def at(cls, output: str, path: str) -> Self:
        """Returns the place of a shard, with the files that are there now."""
        names = [path, layout.index_path(path), *layout.quarantine_paths(path)]
        found = storage_for(output).stat_all(
            [layout.join(output, name) for name in names]
        )
        seen = zip(names, found, strict=True)
        return cls(
            output=output,
            path=path,
            seen={name: info for name, info in seen if info is not None},
        )

    def version(self, path: str) -> str:
        """Returns the version of a file that was there, "" for none."""
        return self.seen[path].version if path in self.seen else ""

    def finished(self, fingerprint: str) -> ShardReport | None:
        """Returns the report of the shard if this job has finished it, else None."""
        report = self.report()
        return report if report and report.job == fingerprint else None

    def report(self) -> ShardReport | None:
        """Returns the report of a finished shard, whose job it names, or None.

        The index is written after the shard.
        """
        info, index_path = self.seen.get(self.path), layout.index_path(self.path)
        if info is None or index_path not in self.seen:
            return None
        index = layout.join(self.output, index_path)
        content = storage_for(self.output).load(index)
        if content is None:
            return None
        try:
            opened = parse_index(content.data, path=index)
            opened.check()
            report = opened.report()
        except InvalidDatasetError:
            return None  # Cut short by a crash of the machine: made again.
        whole = info.size_bytes == report.file_bytes
        if not whole or info.crc32c not in (None, report.file_crc32c):
            return None
        return report

    def publish(self, local: str, written: WrittenShard, report: ShardReport) -> None:
        """Moves a shard from `Storage.temporary` to its place, and writes its index.

        Raises StorageError if that fails, or another writer was there meanwhile.
        """
        storage = storage_for(self.output)
        # In this order: where there is an index, the shard is whole.
        storage.publish(
            local,
            layout.join(self.output, self.path),
            replaces=self.version(self.path),
            crc32c=written.file_crc32c,
        )
        data = encode_index(
            footer=written.footer, crc32cs=written.crc32cs, report=report
        )
        index = layout.index_path(self.path)
        storage.write(
            layout.join(self.output, index), data, replaces=self.version(index)
        )
