"""Parquet as a format of inputs: rows are cut anywhere, and counted by footers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gristmill.dataset.base.errors import CorruptRecordError, RowError
from gristmill.dataset.formats.parquet_file import ParquetFile, RowGroup, corrupt_rows
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata.features import encode_features
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.source import (
    RangeReader,
    ReadRequest,
    Source,
)
from gristmill.transforms.sources.table_records import (
    RowRecords,
    find_spec,
    open_table,
)

if TYPE_CHECKING:
    import pyarrow as pa


_AHEAD_BYTES = 256 << 10  # Bytes read on opening: the footer.


@dataclasses.dataclass(frozen=True)
class _GroupPass:
    """A partly read row group of an open file.

    Attributes:
        table: The file.
        group: The row group.
        rows: Its remaining rows, some at a time, with the first of each; those read
            last come again.
    """

    table: ParquetFile
    group: RowGroup
    rows: Iterator[tuple[int, pa.RecordBatch]]

    def close(self) -> None:
        self.table.close()


class ParquetRange(RangeReader[ParquetFile]):
    """Reads the rows of one range of a file, in order.

    Damage belongs to the range of its first row: from there to the end of its row group
    nothing can be read. The next range then begins after it.
    """

    def __init__(self, request: ReadRequest, rows: RowRecords):
        super().__init__(request)
        self._begun: _GroupPass | None = None  # Rows taken by the previous range.
        self._left: _GroupPass | None = None  # Rows for the next range.
        self._rows = rows
        self._start = self._stop = 0

    def _waiting_bytes(self) -> int:
        return min(_AHEAD_BYTES, self._file.size_bytes)

    def _open(self) -> ParquetFile:
        return open_table(self._file)

    def batches(self) -> Iterator[RecordBatch]:
        if self._kept is not None:
            self._begun = self._kept.take(self._source)
        table = self._opened() if self._begun is None else self._begun.table
        if table is None:
            self._check_unchanged()
            return
        try:
            yield from self._table_records(table)
            self._check_unchanged()
        except BaseException:
            table.close()
            raise
        if self._kept is None or self._left is None:
            table.close()
        else:
            self._kept.keep(self._left, self._source)

    def _opened(self) -> ParquetFile | None:
        """Returns the open file; None if it cannot be opened, and that is accepted."""
        try:
            return self._coming()
        except CorruptRecordError as error:
            self._check_unchanged()
            if storage_for(self.path).remote:
                # It may have been damaged in transit.
                with contextlib.suppress(CorruptRecordError):
                    return self._open()
            if self._skipped is None:
                raise
            # The first range of the file takes all of it.
            if not self._source.begin_bytes:
                whole = 0, self._file.size_bytes
                self._skipped.add(error, self.path, region=whole)
            self._whole = True
            return None

    def _table_records(self, table: ParquetFile) -> Iterator[RecordBatch]:
        source, places = self._source, table.places
        first = places.rows_before(source.begin_bytes)
        end_bytes = self._file.size_bytes if source.end_bytes < 0 else source.end_bytes
        last = max(first, min(places.rows_before(end_bytes), places.rows))
        self._start, self._stop = first, last
        columns = self._rows.columns(table.schema, self.path)
        for group in places.groups_from(first):
            if group.first_row >= last:
                break
            try:
                yield from self._group_records(table, group, columns, first, last)
            except CorruptRecordError as error:
                if self._skipped is None:
                    raise
                if error.offset >= first:
                    rows = error.offset, group.end_row
                    self._skipped.add(error, self.path, region=(0, 0), rows=rows)
                else:
                    # It belongs to the range before, up to the end of the row group.
                    self._start = group.end_row
                self._stop = max(self._stop, group.end_row)
        self._whole = self._stop >= places.rows

    def _group_records(
        self,
        table: ParquetFile,
        group: RowGroup,
        columns: list[str],
        first: int,
        last: int,
    ) -> Iterator[RecordBatch]:
        rows = self._group_rows(table, group, columns)
        if self._begun is not None and self._begun.group == group:
            rows = self._begun.rows
        for row, batch in rows:
            begin, end = max(first - row, 0), min(last - row, batch.num_rows)
            if begin < end:
                yield from self._records_of(
                    batch.slice(begin, end - begin), row + begin, group
                )
            if row + batch.num_rows >= last:
                if last < group.end_row:
                    left = itertools.chain([(row, batch)], rows)
                    self._left = _GroupPass(table, group, left)
                return

    def _group_rows(
        self, table: ParquetFile, group: RowGroup, columns: list[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the rows of a row group, some at a time, with their first.

        On remote storage, data that seem damaged are read once more: they may have been
        damaged in transit.
        """
        reached, doubted = group.first_row, -1
        while True:
            row = group.first_row
            try:
                for batch in table.batches(group, columns):
                    if row >= reached:
                        reached = row + batch.num_rows
                        yield row, batch
                    row += batch.num_rows
            except CorruptRecordError:
                self._check_unchanged()
                if doubted == reached or not storage_for(self.path).remote:
                    raise
                doubted = reached
                table.forget()
            else:
                return

    def _records_of(
        self, batch: pa.RecordBatch, row: int, group: RowGroup
    ) -> Iterator[RecordBatch]:
        while batch.num_rows:
            good, error = batch.num_rows, None
            while True:  # Of several columns, another can have an earlier fault.
                try:
                    made = self._rows.made(batch.slice(0, good), row)
                except RowError as e:
                    good, error = e.row, e
                else:
                    break
            self._records += len(made.records)
            if made.records or made.null_rows:
                yield made
            if error is None:
                return
            self._refuse_row(error, row + good, group)
            batch, row = batch.slice(good + 1), row + good + 1

    def _refuse_row(self, error: RowError, row: int, group: RowGroup) -> None:
        """Leaves out a row that cannot become a record."""
        damage = corrupt_rows(
            "row",
            error.what,
            where=f"{self.path}, row group {group.number:,}, row {row:,}",
            expected=error.expected or "a row that can become a record",
            got=error.got or "another",
            place=(row, row + 1),
        )
        damage.cure = error.cure
        if self._skipped is None:
            raise damage from error
        self._skipped.add(damage, self.path, region=(0, 0), rows=(row, row + 1))


class ParquetSource(Source):
    """Parquet files; see `Source` for what its methods do."""

    place_noun = "row"

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self._rows = RowRecords(spec)

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for making records, with the columns of all files."""
        return find_spec(files, options)

    def open_range(self, request: ReadRequest) -> ParquetRange:
        return ParquetRange(request, self._rows)

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin with row groups, in order."""
        cuts: list[int] = []
        # A damaged file has one range: its reader reports the damage.
        with contextlib.suppress(CorruptRecordError), open_table(file) as table:
            cuts += table.places.cuts(range_bytes)
        yield from itertools.pairwise((0, *cuts, file.size_bytes))

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether there is a record for each row of the range."""
        del raw_bytes
        if span.start_bytes is None or span.stop_bytes is None:
            return False
        rows = span.stop_bytes - span.start_bytes
        return rows == span.records or (
            self.spec.nulls == "skip" and rows > span.records
        )

    def described(self) -> dict[str, Any]:
        columns = {"columns": list(self.spec.columns)} if self.spec.columns else {}
        return super().described() | columns

    def features(self) -> dict[str, Any] | None:
        return encode_features(self._rows.features) or None
