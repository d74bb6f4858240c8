"""Lines that are rows of a table, as records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from gristmill.dataset.errors import RowError
from gristmill.transforms.sources.lines.csv_rows import CsvRows
from gristmill.transforms.sources.lines.csv_split import CsvSplitter
from gristmill.transforms.sources.lines.json_rows import JsonRows
from gristmill.transforms.sources.lines.parser import (
    BadLineError,
    Lines,
    Positions,
    newline_ends,
    without_newline,
)
from gristmill.transforms.sources.lines.text_lines import split_lines

# Makes records of rows; None for the lines as they are.
MakeRecords = Callable[[pa.RecordBatch], list[bytes]] | None


class _Rows(Protocol):
    def rows(self, lines: Lines) -> tuple[Any, Positions]: ...


def _made(
    rows: _Rows, lines: Lines, make: MakeRecords
) -> tuple[list[bytes] | None, Positions]:
    batch, kept = rows.rows(lines)
    if make is None:
        return None, kept
    try:
        return make(batch), kept
    except RowError as error:
        raise BadLineError(
            int(kept[error.row]),
            error.what,
            expected=error.expected or "a value that a record can hold",
            got=error.got or "another",
            cure="leave out the column with --columns",
        ) from None


class JsonLines:
    """Makes a record of each JSON object; blank lines are passed over.

    Args:
        rows: Reads the objects.
        make: Makes the records.
    """

    format_name = "JSON lines"
    sure = True

    def __init__(self, rows: JsonRows, make: MakeRecords):
        self._rows, self._make = rows, make

    def ends(self, data: bytes) -> Positions:
        """See `LineParser`."""
        return newline_ends(data)

    def header_lines(self, lines: Lines, path: str) -> int:
        """See `LineParser`."""
        del lines, path
        return 0

    def records(self, lines: Lines) -> tuple[list[bytes], Positions]:
        """See `LineParser`."""
        made, kept = _made(self._rows, lines, self._make)
        if made is None:
            texts = split_lines(lines)
            blank = len(kept) < len(texts)
            made = [texts[line] for line in kept.tolist()] if blank else texts
        return made, kept

    def next_start(self, data: bytes, *, final: bool) -> int | None:
        """See `LineParser`."""
        del final
        return data.find(b"\n") + 1 or None


class CsvLines:
    """Makes a record of each row behind the header; empty lines are passed over.

    Args:
        rows: Reads the rows.
        splitter: Finds them.
        make: Makes the records.
    """

    format_name = "CSV"
    sure = False

    def __init__(self, rows: CsvRows, splitter: CsvSplitter, make: MakeRecords):
        self._rows, self._splitter, self._make = rows, splitter, make

    def ends(self, data: bytes) -> Positions:
        """See `LineParser`."""
        return self._splitter.ends(data)

    def header_lines(self, lines: Lines, path: str) -> int:
        """See `LineParser`."""
        self._rows.check_header(lines.line(0), path)
        return 1

    def records(self, lines: Lines) -> tuple[list[bytes], Positions]:
        """See `LineParser`."""
        made, kept = _made(self._rows, lines, self._make)
        if made is None:
            data, starts, ends = lines.data, lines.starts.tolist(), lines.ends.tolist()
            made = [
                without_newline(data[starts[row] : ends[row]]) for row in kept.tolist()
            ]
        return made, kept

    def next_start(self, data: bytes, *, final: bool) -> int | None:
        """See `LineParser`."""
        return self._splitter.next_start(data, final=final)
