"""The results of many shards, gathered as columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.transforms.conversion.shard_tasks import ShardResult, ShardTask


class GatheredSplit(NamedTuple):
    """The finished shards of one split, and any of their tasks."""

    task: ShardTask
    reports: ReportCollector


class GatheredResults:
    """The results of any number of shards of one conversion. Adds up in any order.

    Attributes:
        splits: What was made of each split.
        committed_before: Splits for which there was nothing to do.
    """

    def __init__(self) -> None:
        self.splits: dict[str, GatheredSplit] = {}
        self.committed_before: set[str] = set()

    def add(self, result: ShardResult) -> None:
        """Takes the result of a shard."""
        task, report = result
        if report is None:
            self.committed_before.add(task.split)
        else:
            self._of(task).add(report)

    def extend(self, other: GatheredResults) -> None:
        """Takes all results of another collection."""
        self.committed_before |= other.committed_before
        for task, reports in other.splits.values():
            self._of(task).extend(reports)

    @classmethod
    def of(cls, results: Iterable[ShardResult]) -> Self:
        """Gathers results."""
        gathered = cls()
        for result in results:
            gathered.add(result)
        return gathered

    def _of(self, task: ShardTask) -> ReportCollector:
        if task.split not in self.splits:
            collector = ReportCollector(task.fingerprint)
            self.splits[task.split] = GatheredSplit(task, collector)
        return self.splits[task.split].reports
