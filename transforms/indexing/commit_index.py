"""The end of an index: the indexed files become splits of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.storage.lookup import version_of
from gristmill.transforms.indexing.index_shard import JOB, IndexedShard
from gristmill.transforms.indexing.plan_index import IndexTask


class _IndexedSplit(NamedTuple):
    """The files of one split: their reports, and how they were written."""

    reports: ReportCollector
    writer_options: set[str]


class IndexedShards:
    """Any number of indexed files of one directory. Adds up in any order.

    Attributes:
        task: Any of their tasks; None while there is none.
        splits: The files of each split, by its name.
    """

    def __init__(self) -> None:
        self.task: IndexTask | None = None
        self.splits: dict[str, _IndexedSplit] = {}

    def add(self, indexed: IndexedShard) -> None:
        """Takes a file."""
        task, report, writer_options = indexed
        self.task = task
        split = self._of(task.split)
        split.reports.add(report)
        split.writer_options.add(writer_options)

    def extend(self, other: IndexedShards) -> None:
        """Takes all files of another collection."""
        self.task = self.task or other.task
        for name, (reports, writer_options) in other.splits.items():
            split = self._of(name)
            split.reports.extend(reports)
            split.writer_options.update(writer_options)

    @classmethod
    def of(cls, indexed: Iterable[IndexedShard]) -> Self:
        """Gathers files."""
        gathered = cls()
        for each in indexed:
            gathered.add(each)
        return gathered

    def _of(self, split: str) -> _IndexedSplit:
        if split not in self.splits:
            self.splits[split] = _IndexedSplit(ReportCollector(JOB), set())
        return self.splits[split]


def commit_index(indexed: IndexedShards, *, inputs: Sequence[str]) -> Manifest:
    """Makes the directory a dataset.

    Args:
        indexed: All files that were planned.
        inputs: The patterns, for the record.
    """
    if indexed.task is None:
        raise ValueError("no file was indexed")
    dataset, name = indexed.task.dataset, indexed.task.name
    splits = {}
    for split, (reports, writer_options) in sorted(indexed.splits.items()):
        splits[split] = write_table(
            dataset,
            name,
            split,
            reports.reports().table,
            replaces=version_of(layout.join(dataset, layout.table_path(name, split))),
            writer_options=" | ".join(sorted(writer_options)),
            source={"indexed": list(inputs)},
        )
    return commit_dataset(
        dataset, name, splits, check=lambda: check_files(dataset, splits)
    )
