"""A shard with its indexes: opened, refused if it is another one, and published."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple, Self

import google_crc32c

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.arrayrecord.shard_writer import WrittenShard
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InvalidDatasetError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import ShardIndex, encode_index, parse_index
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import stat_all, storage_for

_CURE = (
    "restore the shard and its index from a copy, or run the conversion again; if the "
    "dataset was replaced meanwhile, open it again"
)


class ShardFacts(NamedTuple):
    """The known facts of a shard; None for unknown ones.

    Attributes:
        records: Its records.
        file_bytes: Its size.
        file_crc32c: The crc32c of its bytes.
    """

    records: int | None = None
    file_bytes: int | None = None
    file_crc32c: int | None = None

    def __str__(self) -> str:
        crc32c = self.file_crc32c
        facts = (
            None if self.records is None else f"{self.records:,} records",
            None if self.file_bytes is None else f"{self.file_bytes:,} bytes",
            None if crc32c is None else f"crc32c {crc32c:#010x}",
        )
        return ", ".join(fact for fact in facts if fact is not None)


def check_shard(
    described: ShardFacts,
    found: ShardFacts,
    *,
    where: str,
    what: str = "shard is not the one that the dataset describes",
) -> None:
    """Raises CorruptShardError if a fact that both know differs."""
    pairs = [*zip(described, found, strict=True)]
    expected, got = (
        ShardFacts(*(None if None in pair else pair[side] for pair in pairs))
        for side in (0, 1)
    )
    if expected != got:
        raise CorruptShardError(
            what, where=where, expected=expected, got=got, cure=_CURE
        )


def check_index(index: ShardIndex, described: ShardFacts) -> None:
    """Raises CorruptShardError if an index is not the one of a shard."""
    found = ShardFacts(index.records, index.file_bytes, index.file_crc32c)
    what = "shard index is not the one of this shard"
    check_shard(described, found, where=index.path, what=what)


def read_index(path: str, described: ShardFacts) -> ShardIndex:
    """Reads the whole index of a shard.

    Raises:
        CorruptShardError: It belongs to another shard.
        InvalidDatasetError: It is damaged.
        StorageError: It cannot be read.
    """
    index = parse_index(storage_for(path).read(path), path=path)
    index.check()
    check_index(index, described)
    return index


def stored_footer(path: str, size_bytes: int, *, hashed: bool = True) -> Footer:
    """Reads the footer of a shard of a size, by ranges.

    Raises:
        CorruptShardError: The file has another size, or its footer is damaged.
        StorageError: It cannot be read.
    """
    read = functools.partial(storage_for(path).read, path)
    return read_footer(read, size_bytes, path=path, hashed=hashed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlace:
    """The place of a shard and its indexes, and the files there before work begins.

    Every write names the version that it replaces, so that a file written by another
    worker meanwhile stays.

    Attributes:
        output: The dataset's directory.
        path: The shard, relative to it.
        seen: The files that were there, by path relative to the dataset.
        packed: Whether the shard is to hold packed rows, and has a segment index.
    """

    output: str
    path: str
    seen: Mapping[str, FileInfo]
    packed: bool = False

    @classmethod
    def at(
        cls, output: str, path: str, *, packed: bool = False, fresh: bool = False
    ) -> Self:
        """Returns the place of a shard, with the files that are there now.

        Args:
            output: The dataset's directory.
            path: The shard.
            packed: Whether it is to hold packed rows.
            fresh: Whether there was none when the job took the output. Then they are
                looked for only if there is an index, which is written last: a file
                without one holds the same bytes, or another writer's, and a write that
                replaces no file tells these apart.
        """
        storage = storage_for(output)
        index = layout.index_path(path)
        names = [path, index, layout.errors_path(path)]
        if packed:
            names.append(layout.segments_path(path))
        if fresh and storage.remote and not storage.stat(layout.join(output, index)):
            names = []
        found = stat_all([layout.join(output, name) for name in names])
        seen = zip(names, found, strict=True)
        return cls(
            output=output,
            path=path,
            seen={name: info for name, info in seen if info is not None},
            packed=packed,
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

        The index is written after the shard and the segment index.
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
            opened.places()  # Raises if they are damaged.
            report = opened.report()
        except InvalidDatasetError:
            return None  # Cut short by a crash of the machine: it is made again.
        if not _is_whole(info, report.file_bytes, report.file_crc32c):
            return None
        segments = self.seen.get(layout.segments_path(self.path))
        # A shard of another job, which may hold no rows, is reported and not replaced.
        if (
            self.packed
            and report.packed is not None
            and not _is_whole(segments, report.segments_bytes, report.segments_crc32c)
        ):
            return None
        return report

    def publish(
        self,
        local: str,
        written: WrittenShard,
        report: ShardReport,
        *,
        segments: bytes | None = None,
        places: Places | None = None,
    ) -> ShardReport:
        """Moves a shard from `Storage.temporary` to its place, and writes its indexes.

        Args:
            local: The shard.
            written: Its facts.
            report: Its report, without sizes of indexes.
            segments: The file of its segment index, if it holds packed rows.
            places: The sources of its records, if they are known.

        Returns:
            The report, with the sizes of the indexes.

        Raises:
            StorageError: This fails, or another writer has written there meanwhile.
        """
        storage = storage_for(self.output)
        # In this order: where there is an index, all else is whole.
        storage.publish(
            local,
            layout.join(self.output, self.path),
            replaces=self.version(self.path),
            crc32c=written.file_crc32c,
        )
        if segments is not None:
            report = dataclasses.replace(
                report,
                segments_bytes=len(segments),
                segments_crc32c=google_crc32c.value(segments),
            )
            path = layout.segments_path(self.path)
            storage.write(
                layout.join(self.output, path), segments, replaces=self.version(path)
            )
        section = b"" if places is None else places.encode()
        data = encode_index(
            footer=written.footer,
            crc32cs=written.crc32cs,
            report=report,
            places=section,
        )
        index = layout.index_path(self.path)
        storage.write(
            layout.join(self.output, index), data, replaces=self.version(index)
        )
        index_bytes = len(data) - len(section) if section else 0
        return dataclasses.replace(report, index_bytes=index_bytes)


def _is_whole(info: FileInfo | None, size_bytes: int, crc32c: int) -> bool:
    """Returns whether a file seems to be as it was written, by its listing."""
    return (
        info is not None
        and info.size_bytes == size_bytes
        and info.crc32c in (None, crc32c)
    )
