"""What the formats of lines have in common: whole lines in, records out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

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
        ends: int64 [lines], where each ends in `data`, its newline included.
    """

    data: bytes
    ends: Positions

    @property
    def starts(self) -> Positions:
        """Where each line begins: int64 [lines]."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    def first(self, count: int) -> Lines:
        """Returns the first lines, at most so many."""
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
        r"""Returns the lines of a file's begin without a byte order mark.

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
        index: The first bad line of those that were given.
        what: What is wrong, one sentence without a final full stop.
        expected: What should be there.
        got: What is there.
        cure: What helps besides quarantine; None for nothing.
    """

    def __init__(
        self, index: int, what: str, *, expected: str, got: str, cure: str | None = None
    ):
        super().__init__(what)
        self.index = index
        self.what, self.expected, self.got, self.cure = what, expected, got, cure


class Made(NamedTuple):
    """What lines became.

    Attributes:
        records: The records.
        rows: From which line each is: int64 [records].
        null_rows: How many lines were left out for their nulls.
    """

    records: list[bytes]
    rows: Positions
    null_rows: int = 0


class LineParser(Protocol):
    """Turns whole lines of one format into records.

    Attributes:
        format_name: Name of the format, for messages.
        sure: Whether the first newline behind any byte ends a line. Otherwise a search
            for a line can go wrong, which the commit finds out.
    """

    format_name: str
    sure: bool

    def ends(self, data: bytes) -> Positions:
        """Returns where the lines end that begin with `data`, those without end not."""

    def header_lines(self, lines: Lines, path: str) -> int | None:
        """Returns how many lines of a file's begin are no records.

        None if all of them are, and others may follow.

        Raises:
            InputError: They are not as in the other files of the job.
        """

    def records(self, lines: Lines) -> Made:
        """Returns the records of lines, at least one.

        Raises:
            BadLineError: A line that is none of this format, and no record of it, or
                of the lines behind it, was made. Lines before it can be bad too.
        """

    def next_start(self, data: bytes, *, final: bool) -> int | None:
        """Returns where a line seems to begin in bytes of a file, None for nowhere.

        Args:
            data: Bytes from any place of a file.
            final: Whether they reach to the end of the file.
        """


def newline_ends(data: bytes) -> Positions:
    r"""Returns the positions behind newlines.

    >>> newline_ends(b"a\n\nb").tolist()
    [2, 3]
    """
    return np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE) + 1


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
        records.pop()  # What is behind the last newline.
    return records


def check_text(lines: Lines) -> None:
    """Raises BadLineError at the first line that is no UTF-8, or holds a zero byte.

    What a crash leaves of a file are often zeros.
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
    """Returns the first line that cannot be read, of lines that cannot.

    Args:
        lines: The lines.
        read: Reads lines.
        errors: What it raises where it cannot.
    """
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
