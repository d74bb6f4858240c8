"""JSON lines, and rows of CSV and TSV, as records."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from gristmill.dataset.base.errors import RowError
from gristmill.dataset.metadata.features import encode_features
from gristmill.transforms.sources.lines.csv_table import CsvRows, CsvSplitter
from gristmill.transforms.sources.lines.json_table import JsonRows
from gristmill.transforms.sources.lines.line_reader import (
    BadLineError,
    LineParser,
    Lines,
    Made,
    Positions,
    split_lines,
    without_newline,
)
from gristmill.transforms.tables.example_rows import (
    check_column,
    encode_rows,
    one_column,
)
from gristmill.transforms.tables.leaves import rows_without_nulls
from gristmill.transforms.tables.table_features import features_of

# Makes records from rows; None for plain lines.
MakeRecords = Callable[[pa.RecordBatch], list[bytes]] | None


# Names the features whose nulls leave a row out; None for no such features.
Skip = Callable[[str], bool] | None


class _Rows(Protocol):
    def rows(self, lines: Lines) -> tuple[Any, Positions]: ...


def _made(
    rows: _Rows,
    lines: Lines,
    make: MakeRecords,
    skip: Skip = None,
    *,
    as_text: bool = False,
) -> tuple[list[bytes] | None, Positions, int]:
    batch, kept = rows.rows(lines)
    if make is None:
        return None, kept, 0
    found = len(kept)
    if skip is not None:
        whole = rows_without_nulls(batch, skip)
        if len(whole) < found:
            batch, kept = batch.take(whole), kept[whole]
    try:
        return make(batch), kept, found - len(kept)
    except RowError as error:
        cure = error.cure or "leave out the column with --columns"
        if as_text and error.column:
            column = error.column.partition(".")[0]
            cure = f"keep it as JSON, with --columns '*,{column}:json'; or {cure}"
        raise BadLineError(
            int(kept[error.row]),
            error.what,
            expected=error.expected or "a value that a record can hold",
            got=error.got or "another",
            cure=cure,
        ) from None


class JsonLines(LineParser):
    """Makes a record from each JSON object; skips blank lines.

    Args:
        rows: Reads the objects.
        make: Makes the records.
        skip: The features whose nulls leave a row out.
        as_text: Whether any field can be kept as JSON.
        strips: Whether lines that are records lose blanks at their ends.
    """

    format_name = "JSON lines"

    def __init__(
        self,
        rows: JsonRows,
        make: MakeRecords,
        skip: Skip = None,
        *,
        as_text: bool = False,
        strips: bool = False,
    ):
        self._rows, self._make, self._skip = rows, make, skip
        self._as_text, self._strips = as_text, strips

    def records(self, lines: Lines) -> Made:
        """See `LineParser`."""
        made, kept, nulls = _made(
            *(self._rows, lines, self._make, self._skip), as_text=self._as_text
        )
        if made is None:
            texts = split_lines(lines)
            blank = len(kept) < len(texts)
            made = [texts[line] for line in kept.tolist()] if blank else texts
            if self._strips:
                made = [text.strip(b" \t\r") for text in made]
        return Made(made, kept, nulls)


def is_empty(line: bytes) -> bool:
    """Returns whether a line before the header of CSV is skipped."""
    return not line.strip(b" \r")


class CsvLines(LineParser):
    """Makes a record from each row after the header; skips empty lines.

    Args:
        rows: Reads the rows.
        splitter: Finds the rows.
        make: Makes the records.
    """

    format_name = "CSV"
    newlines = False

    def __init__(self, rows: CsvRows, splitter: CsvSplitter, make: MakeRecords):
        self._rows, self._splitter, self._make = rows, splitter, make

    def ends(self, data: bytes) -> Positions:
        """See `LineParser`."""
        return self._splitter.ends(data)

    def header_lines(self, lines: Lines, path: str) -> int | None:
        """See `LineParser`."""
        for line in range(len(lines.ends)):
            if not is_empty(lines.line(line)):
                self._rows.check_header(lines.line(line), path)
                return line + 1
        return None

    def records(self, lines: Lines) -> Made:
        """See `LineParser`."""
        made, kept, _ = _made(self._rows, lines, self._make)
        if made is None:
            data, starts, ends = lines.data, lines.starts.tolist(), lines.ends.tolist()
            made = [
                without_newline(data[starts[row] : ends[row]]) for row in kept.tolist()
            ]
        return Made(made, kept)


def column_of(record: str) -> str | None:
    """Returns the column whose values are the records, None for other records."""
    kind, _, column = record.partition(":")
    return column if kind == "column" else None


def make_records(record: str, fields: pa.Schema) -> MakeRecords:
    """Returns the maker of records from rows; None for plain lines.

    Args:
        record: `example`, `column:NAME` or `line`.
        fields: The columns.

    Raises:
        InputError: The columns do not fit such records.
    """
    if record == "line":
        return None
    column = column_of(record)
    if column is not None:
        check_column(fields, column)
        return functools.partial(one_column, name=column)
    return functools.partial(encode_rows, features=features_of(fields))


def described(record: str, fields: pa.Schema) -> dict[str, Any] | None:
    """Returns the features of such records, for `dataset.json`."""
    return encode_features(features_of(fields)) if record == "example" else None
