"""The bounds of CSV rows, with quotes taken into account."""

from __future__ import annotations

import functools
import re

import numpy as np
import numpy.typing as npt

from gristmill.transforms.sources.lines.parser import NEWLINE, Positions, newline_ends

_QUOTE, _RETURN = b'"\r'
# A group is never repeated possessively: before 3.11.5, Python matched too little then
# (https://github.com/python/cpython/issues/106052). There is one way to match anyway:
# the last quote is not the first of two.
_QUOTED = rb'"[^"]*+(?:""[^"]*+)*"(?!")'


class CsvSplitter:
    r"""Splits CSV into rows by RFC 4180: a row can have line breaks within quotes.

    Quotes within a field that does not begin with one stand for themselves, as in
    Python's `csv`. Bytes after a closing quote are an error.

    >>> CsvSplitter(b",").ends(b'a,"b\n"\nc,d\n"').tolist()
    [7, 11]
    """

    def __init__(self, delimiter: bytes):
        self._delimiter = delimiter[0]
        d = re.escape(delimiter)
        quoted = _QUOTED + rb"(?=" + d + rb"|\r?\n|\r?\Z)"
        bare = rb'(?!")[^' + d + rb"\n]*+"
        field = rb"(?:" + quoted + rb"|" + bare + rb")"
        self._field = re.compile(field + rb"\r?+")
        self._row = re.compile(rb"(?:" + field + d + rb")*" + field + rb"\r?+(?:\n|\Z)")

    def ends(self, data: bytes) -> Positions:
        """Returns the ends of the rows that begin in `data`, except unfinished ones.

        An invalid row ends with the first newline after the fault.
        """
        ends = newline_ends(data)
        quotes = _places(data, _QUOTE)
        if not len(quotes):
            return ends
        if self._intact(data, quotes):
            found: Positions = ends[quotes.searchsorted(ends) % 2 == 0]
            return found
        return np.array(self.slow_ends(data), np.int64)

    def slow_ends(self, data: bytes) -> list[int]:
        """Returns the ends that `ends` finds, row by row, in any data."""
        ends: list[int] = []
        at, size = 0, len(data)
        while at < size:
            match = self._row.match(data, at)
            if match is not None:
                at = match.end()
                if not data.endswith(b"\n", 0, at):
                    break
            else:
                wrong = self._wrong_at(data, at)
                at = 0 if wrong is None else data.find(b"\n", wrong) + 1
                if at == 0:
                    break
            ends.append(at)
        return ends

    def _wrong_at(self, data: bytes, at: int) -> int | None:
        """Returns the place of the fault in a row; None if the row only continues."""
        while True:
            if (match := self._field.match(data, at)) is None:
                closing = re.compile(_QUOTED).match(data, at)
                return None if closing is None else closing.end()
            at = match.end()
            if at == len(data) or data[at] != self._delimiter:
                return at if at < len(data) else None
            at += 1

    def field_end(self, row: bytes, at: int) -> int:
        """Returns the end of the field that begins at a place of a row."""
        match = self._field.match(row, at)
        return len(row) if match is None else match.end()

    def is_row(self, row: bytes) -> bool:
        """Returns whether bytes are one row, with or without its newline."""
        match = self._row.match(row)
        return match is not None and match.end() == len(row)

    def never_closes(self, row: bytes) -> bool:
        """Returns whether a row is still within quotes at the end of its file."""
        return not self.is_row(row) and self._wrong_at(row, 0) is None

    def all_pair(self, data: bytes) -> bool:
        """Returns whether whole rows are intact, and all their quotes are paired."""
        quotes = _places(data, _QUOTE)
        return len(quotes) % 2 == 0 and self._intact(data, quotes)

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
        allowed[[self._delimiter, NEWLINE, _QUOTE]] = True
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
        before = _places(data, _QUOTE).searchsorted(returns)
        bare: Positions = returns[before % 2 == 0]
        return bare


def _places(data: bytes, byte: int) -> Positions:
    return np.flatnonzero(np.frombuffer(data, np.uint8) == byte)
