"""The bounds and the fields of CSV rows, quotes taken into account."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gristmill.transforms.sources.lines.parser import NEWLINE, Positions, newline_ends

_QUOTE, _RETURN = b'"\r'
_RETURN_ALONE = re.compile(rb"\r(?!\n)")
_MOST_FIELD_BYTES = (1 << 31) - 1


class CsvSplitter:
    r"""Splits CSV into rows by RFC 4180: a row can have line breaks within quotes.

    Python's strict `csv` decides. Where quotes stand only around fields, arrays of
    their places tell the same faster.

    >>> CsvSplitter(b",").ends(b'a,"b\n"\nc,d\n"').tolist()
    [7, 11]

    Args:
        delimiter: The byte between fields.
        quoted: Whether fields can be quoted; if not, quotes are as other characters.
    """

    def __init__(self, delimiter: bytes, *, quoted: bool = True):
        self.delimiter, self.quoted = delimiter, quoted

    def ends(self, data: bytes) -> Positions:
        """Returns the ends of the rows that begin in `data`, except unfinished ones.

        An invalid row ends with the first newline after the fault.
        """
        ends = newline_ends(data)
        quotes = self._quotes(data)
        if not len(quotes):
            return ends
        if self._intact(data, quotes):
            even: Positions = ends[quotes.searchsorted(ends) % 2 == 0]
            return even
        # One alone is refused elsewhere; here it must not end a row.
        rows = self.rows(_RETURN_ALONE.sub(b" ", data))
        found: Positions = np.array([end for end, _ in rows], np.int64)
        return found[np.isin(found, ends)]

    def rows(self, data: bytes) -> Iterator[tuple[int, list[str] | None]]:
        """Yields the end and the fields, as Latin-1, of each row; None if invalid.

        One that is still within quotes at the end of the data is not yielded.
        """
        csv.field_size_limit(_MOST_FIELD_BYTES)
        at, ended = 0, False

        def lines() -> Iterator[str]:
            nonlocal at, ended
            for line in io.StringIO(data.decode("latin-1"), newline="\n"):
                at += len(line)
                yield line
            ended = True

        reader = csv.reader(
            lines(),
            delimiter=self.delimiter.decode(),
            strict=True,
            quotechar='"' if self.quoted else None,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
        )
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                if ended:
                    return
                yield at, None
            else:
                yield at, row

    def row(self, data: bytes) -> list[bytes] | None:
        """Returns the fields of bytes that are one row, with or without newline."""
        found = [*self.rows(data)]
        fields = found[0][1] if len(found) == 1 else None
        return None if fields is None else [each.encode("latin-1") for each in fields]

    def all_rows(self, data: bytes, ends: Positions) -> bool:
        """Returns whether bytes are rows that end at some places, all of them valid."""
        quotes = self._quotes(data)
        if len(quotes) % 2 == 0 and self._intact(data, quotes):
            return True
        found = [end for end, row in self.rows(data) if row is not None]
        return np.array_equal(found, ends)

    def _intact(self, data: bytes, quotes: Positions) -> bool:
        """Returns whether each quote of a text stands where a field begins or ends.

        Then every second quote ends a field, and a row ends with a newline that has an
        even number of quotes before it.
        """
        array = np.frombuffer(data, np.uint8)
        opening, closing = quotes[::2], quotes[1::2]
        before = array[opening[opening > 0] - 1]
        after = array[closing[closing < len(data) - 1] + 1]
        return bool(self._borders[before].all() and self._after[after].all())

    @functools.cached_property
    def _borders(self) -> npt.NDArray[np.bool_]:
        """Whether a byte can be before an opening quote: bool [256]."""
        allowed = np.zeros(256, np.bool_)
        allowed[[self.delimiter[0], NEWLINE, _QUOTE]] = True
        return allowed

    @functools.cached_property
    def _after(self) -> npt.NDArray[np.bool_]:
        """Whether a byte can follow a closing quote: bool [256]."""
        allowed = self._borders.copy()
        allowed[_RETURN] = True
        return allowed

    def bare_returns(self, data: bytes) -> Positions:
        r"""Returns the place of a `\r` outside of quotes without a newline after it."""
        if b"\r" not in data:
            return np.zeros(0, np.int64)
        returns = _places(data, _RETURN)
        array = np.frombuffer(data + b"\n", np.uint8)
        returns = returns[array[returns + 1] != NEWLINE]
        before = self._quotes(data).searchsorted(returns)
        bare: Positions = returns[before % 2 == 0]
        return bare

    def _quotes(self, data: bytes) -> Positions:
        return _places(data, _QUOTE) if self.quoted else np.zeros(0, np.int64)

    def merged(self, row: bytes, columns: int) -> bool:
        """Returns whether a quoted field of a row seems to be several rows.

        Files of tabs often have quotes as plain characters: then each line of the row
        has the tabs of one.
        """
        lines = row.strip(b"\r\n").split(b"\n")
        counts = {line.count(self.delimiter) for line in lines}
        several = len(lines) > 1 and columns > 1
        return self.delimiter == b"\t" and several and counts == {columns - 1}


def _places(data: bytes, byte: int) -> Positions:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == byte)
