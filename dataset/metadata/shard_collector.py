"""Reports of the shards of a job, gathered from many workers into one table.

A report takes two kilobytes as an object, about 200 bytes as a row of a table, and
about 80 compressed.
"""

from __future__ import annotations

import copy
from typing import Any, Self

from gristmill.dataset.base.columns import last_of_each
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable

_FEW_REPORTS = 64


class ShardCollector:
    """Collects reports of one job in any order, and pickles compactly.

    Args:
        job: Fingerprint of the job.
        block_reports: How many reports are compressed together.
    """

    def __init__(self, job: str, *, block_reports: int = 4096):
        self.job = job
        self._block_reports = block_reports
        self._pending: list[ShardReport] = []
        self._blocks: list[bytes] = []

    def add(self, report: ShardReport) -> None:
        """Adds a report. A later one of the same shard replaces it."""
        self._check(report.job)
        self._pending.append(report)
        if len(self._pending) >= self._block_reports:
            self._pack()

    def extend(self, other: Self) -> None:
        """Adds the reports of another collector of the job, in no certain order."""
        self._check(other.job)
        self._blocks += other._blocks
        for report in other._pending:
            self.add(report)

    def emptied(self) -> Self:
        """Returns a collector of the same job without reports."""
        other = copy.copy(self)
        other._pending, other._blocks = [], []
        return other

    def table(self) -> ShardTable:
        """Returns the table of the shards, with one row of each, by number."""
        self._pack()
        where = f"reports of job {self.job}"
        blocks = [ShardTable.decode(block, where=where) for block in self._blocks]
        table = ShardTable.joined(blocks or [ShardTable.of(())])
        return table.taken(last_of_each(table.numbers))

    def _check(self, job: str) -> None:
        if job != self.job:
            raise ValueError(f"report of job {job} among those of {self.job}")

    def _pack(self) -> None:
        if self._pending:
            self._blocks.append(ShardTable.of(self._pending).encode(gathered=True))
            self._pending = []

    def __getstate__(self) -> dict[str, Any]:
        # Those of a bundle of few: as columns these would take more, and longer.
        if len(self._pending) >= _FEW_REPORTS:
            self._pack()
        return self.__dict__
