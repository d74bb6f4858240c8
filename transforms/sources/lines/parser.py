"""The common part of line formats: whole lines in, records out."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

NEWLINE, RETURN, SPACE, TAB = b"\n\r \t"
MOST_BYTES = (1 << 31) - 64  # pyarrow counts the bytes of a block in 32 bits.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Lines(NamedTuple):
    """Whole lines, end to end.

    A line is one row of its format: in CSV it can have line breaks within quotes.

    Attributes:
        data: Their bytes. The last one of a file may lack its newline.
        ends: int64 [lines], end of each in `data`, its newline included.
    """

    data: bytes
    ends: Positions

    @property
    def starts(self) -> Positions:
        """Where each line begins: int64 [lines]."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    def first(self, count: int) -> Lines:
        """Returns at most `count` first lines."""
        ends = self.ends[:count]
        return Lines(self.data[: int(ends[-1])] if len(ends) else b"", ends)

    def part(self, begin: int, end: int) -> Lines:
        """Returns the lines of a half-open range."""
        if begin >= end:
            return Lines(b"", self.ends[:0])
        at = int(self.ends[begin - 1]) if begin else 0
        ends = self.ends[begin:end]
        return Lines(self.data[at : int(ends[-1])], ends - at)

    def line(self, index: int) -> bytes:
        """Returns one line, without the bytes that end it."""
        return without_newline(self.part(index, index + 1).data)

    def index_at(self, position: int) -> int:
        """Returns the line that holds a byte of `data`."""
        return int(self.ends.searchsorted(position, "right"))

    def without_mark(self) -> Lines:
        r"""Returns the first lines of a file without a byte order mark.

        >>> Lines(b"\xef\xbb\xbfa\n", np.array([5])).without_mark().data
        b'a\n'
        """
        if not self.data.startswith(_BYTE_ORDER_MARK):
            return self
        length = len(_BYTE_ORDER_MARK)
        return Lines(self.data[length:], self.ends - length)


class BadLineError(Exception):
    """A line that is not what its format says; caught by the reader, which knows where.

    Attributes:
        index: The first bad line of those given.
        what: What is wrong, one sentence without a final full stop.
        expected: The expected content.
        got: The actual content.
        cure: A cure besides leaving it out, or None.
    """

    def __init__(
        self, index: int, what: str, *, expected: str, got: str, cure: str | None = None
    ):
        super().__init__(what)
        self.index = index
        self.what, self.expected, self.got, self.cure = what, expected, got, cure


class Made(NamedTuple):
    """The records of some lines.

    Attributes:
        records: The records.
        rows: The line of each: int64 [records].
        null_rows: Number of lines that were left out for their nulls.
    """

    records: list[bytes]
    rows: Positions
    null_rows: int = 0


def newline_ends(data: bytes) -> Positions:
    r"""Returns the positions after newlines.

    >>> newline_ends(b"a\n\nb").tolist()
    [2, 3]
    """
    return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE) + 1


class LineParser(abc.ABC):
    """Turns whole lines of one format into records.

    Attributes:
        format_name: Name of the format, for messages.
        newlines: Whether every newline ends a line.
    """

    format_name = "text"
    newlines = True

    def ends(self, data: bytes) -> Positions:
        """Returns the ends of the lines that begin in `data`, if they are there."""
        return newline_ends(data)

    def header_lines(self, lines: Lines, path: str) -> int | None:
        """Returns the number of lines at the start of a file that are not records.

        None if none of the lines is a record, and others may follow.

        Raises:
            InputError: They are not as in the other files of the job.
        """
        del lines, path
        return 0

    @abc.abstractmethod
    def records(self, lines: Lines) -> Made:
        """Returns the records of lines, at least one.

        Raises:
            BadLineError: A line is not of this format. No record was made from it or
                from later lines. Earlier lines can be bad too.
        """


def without_newline(line: bytes) -> bytes:
    r"""Returns a line without the `\n` or `\r\n` that ends it."""
    if not line.endswith(b"\n"):
        return line
    return line[:-2] if line.endswith(b"\r\n") else line[:-1]


def split_lines(lines: Lines) -> list[bytes]:
    """Returns each line without the bytes that end it."""
    data = lines.data
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    records = data.split(b"\n")
    if len(records) > len(lines.ends):
        records.pop()  # The rest after the last newline.
    return records


def check_text(lines: Lines) -> None:
    """Raises BadLineError at the first line that is not UTF-8, or has a zero byte.

    A crash often leaves zeros in a file.
    """
    data, index = lines.data, len(lines.ends)
    error: BadLineError | None = None
    try:
        data.decode()
    except UnicodeDecodeError as e:
        index = lines.index_at(e.start)
        column = e.start - int(lines.starts[index])
        got = f"the byte {data[e.start]:#04x} at byte {column:,} of the line"
        error = BadLineError(
            index,
            "text is not valid UTF-8",
            expected="UTF-8",
            got=f"{got}: {e.reason}",
            cure="convert the file with iconv if it is of another encoding",
        )
    at = data.find(b"\0")
    if at >= 0 and (zero := lines.index_at(at)) < index:
        error = BadLineError(
            zero,
            "text has zero bytes",
            expected="UTF-8 without zero bytes",
            got=f"{lines.line(zero).count(0):,} of them in this line",
        )
    if error is not None:
        raise error


def first_bad(
    lines: Lines,
    read: Callable[[Lines], object],
    *,
    errors: tuple[type[Exception], ...],
) -> int:
    """Returns the first of some lines that cannot be read."""
    begin, end = 0, len(lines.ends)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            read(lines.part(begin, middle))
        except errors:
            end = middle
        else:
            begin = middle
    return begin
