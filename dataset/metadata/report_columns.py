"""The reports of all shards of a job, as columns, for a million shards.

A report takes two kilobytes as an object, about 200 bytes as a row of columns, and
about 80 compressed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import RowCollector, columns_of, last_of_each
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable, total_digest

_BLOCK_REPORTS = 4096

# Fields of a report that are not in the table of shards.
_MORE_COLUMNS = {
    "shard_index": "<i8",
    "read_records": "<i8",
    "read_raw_bytes": "<i8",
    "read_low": "<u8",
    "read_high": "<u8",
    "changed_records": "<i8",
    "null_rows": "<i8",
}
_READ_COLUMNS = ("read_records", "read_raw_bytes", "read_low", "read_high")
_WRITTEN_COLUMNS = ("records", "raw_bytes", "digest_low", "digest_high")
_more_values = operator.attrgetter(
    *("shard_index", "read.records", "read.raw_bytes", "read.low", "read.high"),
    *("changed_records", "null_rows"),
)


class ShardReports(Sequence[ShardReport]):
    """The reports of one job by number of shard, made on access.

    Attributes:
        table: The table of shards that they make.
        shard_indices: int64 [reports], the numbers of their shards, ascending.
    """

    def __init__(
        self,
        table: ShardTable,
        more: dict[str, npt.NDArray[Any]],
        *,
        job: str,
        block_reports: int = _BLOCK_REPORTS,
    ):
        self.table = table
        self._more = more
        self._job = job
        self._block_reports = block_reports
        self.shard_indices: npt.NDArray[np.int64] = more["shard_index"]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        rows = range(len(self))[index]
        if isinstance(rows, int):
            return next(self._reports(rows, rows + 1))
        return [self[row] for row in rows]

    def __iter__(self) -> Iterator[ShardReport]:
        step = self._block_reports
        for begin in range(0, len(self), step):
            yield from self._reports(begin, min(begin + step, len(self)))

    def _reports(self, begin: int, end: int) -> Iterator[ShardReport]:
        fields = self.table.report_fields(begin, end)
        more = [self._more[name][begin:end].tolist() for name in _MORE_COLUMNS]
        for own, shard_index, *numbers in zip(fields, *more, strict=True):
            read, (changed, nulls) = numbers[:4], numbers[4:]
            yield ShardReport(
                shard_index=shard_index,
                job=self._job,
                read=_digest_of(*read),
                changed_records=changed,
                null_rows=nulls,
                **own,
            )

    def miscounted(self, *, mapped: bool) -> list[int]:
        """Returns the rows of shards that differ from the records read for them.

        Args:
            mapped: Whether a function of the user's may have changed records.
        """
        table, more = self.table.columns, self._more
        kept = more["read_records"] - table["dropped_records"]
        packed = self.table.is_packed
        found = table["records"]
        if packed:
            found = table["packed_documents"] + table["packed_empty_documents"]
        wrong = found != kept + table["added_records"]
        if not (mapped or packed):
            for ours, theirs in zip(_WRITTEN_COLUMNS, _READ_COLUMNS, strict=True):
                wrong |= table[ours] != more[theirs]
        rows: list[int] = np.flatnonzero(wrong).tolist()
        return rows

    @property
    def read(self) -> RecordsDigest:
        """The digest of all records read."""
        return total_digest(*(self._more[name] for name in _READ_COLUMNS))

    @property
    def changed_records(self) -> int:
        """Records that the user's function replaced by others."""
        return int(self._more["changed_records"].sum())

    @property
    def null_rows(self) -> int:
        """Rows that were left out for their nulls."""
        return int(self._more["null_rows"].sum())


def _digest_of(records: int, raw_bytes: int, low: int, high: int) -> RecordsDigest:
    return RecordsDigest(records=records, raw_bytes=raw_bytes, low=low, high=high)


class ReportCollector(RowCollector[ShardReport]):
    """Collects reports of one job in any order, and pickles compactly.

    Args:
        job: Fingerprint of the job.
        block_reports: How many reports are compressed together.
    """

    def __init__(self, job: str, *, block_reports: int = _BLOCK_REPORTS):
        super().__init__(block_rows=block_reports)
        self.job = job

    def add(self, report: ShardReport) -> None:
        """Adds a report. A later one of the same shard replaces it."""
        self._check(report.job)
        super().add(report)

    def extend(self, other: Self) -> None:
        """Adds the reports of another collector of the job, in any order."""
        self._check(other.job)
        super().extend(other)

    def _check(self, job: str) -> None:
        if job != self.job:
            raise ValueError(f"report of job {job} among those of {self.job}")

    def _encode(self, rows: Sequence[ShardReport]) -> bytes:
        return _with_more(rows).encode()

    def reports(self) -> ShardReports:
        """Returns one report for each shard."""
        where = f"reports of job {self.job}"
        blocks = [ShardTable.decode(block, where=where) for block in self._packed()]
        table = ShardTable.joined(blocks or [_with_more(())])
        table = table.taken(last_of_each(table.columns["shard_index"]))
        more = {name: table.columns.pop(name) for name in _MORE_COLUMNS}
        return ShardReports(table, more, job=self.job, block_reports=self._block_rows)


def _with_more(reports: Sequence[ShardReport]) -> ShardTable:
    """The table of some shards, with the other numbers of a report as columns."""
    table = ShardTable.of(reports)
    table.columns.update(columns_of(_MORE_COLUMNS, map(_more_values, reports)))
    return table
