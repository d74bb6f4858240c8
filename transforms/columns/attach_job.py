"""The job of attaching columns: their values are written beside the records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.commit.attached_split import AttachedSplit, Attachment, ShardTask
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.transforms.jobs.job import Begun, Step
from gristmill.transforms.sources.shards.open_shard import open_shard
from gristmill.transforms.sources.shards.shard_list import ListedShard
from gristmill.transforms.sources.shards.shard_range import ShardRange


class AttachResult(NamedTuple):
    """The result of attaching columns.

    Attributes:
        manifest: The dataset as it is now.
        split: The name of the split.
        columns: The types of the columns, by name.
        file_bytes: Size of the files of their values.
        done_before: Whether the same was attached already.
    """

    manifest: Manifest
    split: str
    columns: Mapping[str, ColumnType]
    file_bytes: int
    done_before: bool = False


class BegunColumns(NamedTuple):
    """Columns whose values are being written, or are there already.

    Attributes:
        target: The split, as it was when they were begun.
        attachment: Their description.
        kinds: Their types.
        source: What attaches them, and from what.
    """

    target: AttachedSplit
    attachment: Attachment
    kinds: Mapping[str, ColumnType]
    source: Mapping[str, Any]

    def gather(self, gathered: Gathered) -> None:
        """Notes what was begun."""
        gathered.notes["begun"][""] = self

    def begin(self) -> Begun[Any]:
        """Describes them beside the dataset, unless they are there already."""
        target = self.target
        tasks: Iterable[ShardTask] = ()
        if not target.has(self.attachment):
            self.attachment.begin()
            tasks = target.tasks(self.attachment)
        return Begun.on(target.dataset, "writing", tasks, self)


def commit_columns(gathered: Gathered) -> AttachResult:
    """Commits columns of which all shards are written; see `AttachedSplit.commit`."""
    target, attachment, kinds, source = gathered.notes["begun"][""]
    now = AttachedSplit(target.dataset, target.name, overwrite=target.overwrite)
    if now.has(attachment):
        return attached_before(now, attachment)
    manifest, size = target.commit(attachment, kinds, gathered, source=source)
    return AttachResult(manifest, target.name, kinds, size)


def attached_before(target: AttachedSplit, attachment: Attachment) -> AttachResult:
    """Returns the result of attaching columns that are there already."""
    parts, names = target.entries(), attachment.columns
    return AttachResult(
        target.manifest,
        target.name,
        {name: parts[0][name].kind for name in names},
        sum(part[name].file_bytes for part in parts for name in names),
        done_before=True,
    )


@dataclasses.dataclass(frozen=True)
class WriteColumns:
    """The job of which the columns are known.

    Attributes:
        columns: The columns.
        step: How the values of a shard are found.
    """

    columns: BegunColumns
    step: Step[ShardTask]

    commit = staticmethod(commit_columns)

    def begin(self) -> Begun[ShardTask]:
        """Describes the columns."""
        return self.columns.begin()


def batches_of(task: ShardTask, stop: int | None = None) -> Iterator[RecordBatch]:
    """Yields the records of a shard, at most some first ones."""
    dataset = task.attachment.write.output
    path = layout.join(dataset, task.shard)
    chars = len(path) - len(task.shard)
    opened = open_shard(ListedShard(path, task.file_bytes, chars, task.digest.records))
    yield from ShardRange(opened, 0, stop or opened.records).batches()
