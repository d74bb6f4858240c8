"""Lines as records: read forward from a stream, and found from any byte."""

from __future__ import annotations

import abc
import contextlib
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptRecordError, RowError
from gristmill.dataset.formats.streams import (
    OR_SKIP,
    READ_BYTES,
    End,
    Readable,
    RecordBatch,
    StreamReader,
    end_of,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import FORMATS, SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.stream_range import StreamSource

Positions = npt.NDArray[np.int64]

NEWLINE, RETURN, SPACE, TAB = b"\n\r \t"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
REPAIR = "repair the file"


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
        if not self.data.startswith(BYTE_ORDER_MARK):
            return self
        length = len(BYTE_ORDER_MARK)
        return Lines(self.data[length:], self.ends - length)


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
            RowError: A line is not of this format, or cannot become a record; `row` is
                its place. Earlier lines can be bad too.
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
    """Raises RowError at the first line that is not UTF-8, or has a zero byte.

    A crash often leaves zeros in a file.
    """
    data, index = lines.data, len(lines.ends)
    error: RowError | None = None
    try:
        data.decode()
    except UnicodeDecodeError as e:
        index = lines.index_at(e.start)
        column = e.start - int(lines.starts[index])
        got = f"the byte {data[e.start]:#04x} at byte {column:,} of the line"
        error = RowError(
            "text is not valid UTF-8",
            expected="UTF-8",
            got=f"{got}: {e.reason}",
            cure="convert the file with iconv if it is of another encoding",
            row=index,
        )
    at = data.find(b"\0")
    if at >= 0 and (zero := lines.index_at(at)) < index:
        error = RowError(
            "text has zero bytes",
            expected="UTF-8 without zero bytes",
            got=f"{lines.line(zero).count(0):,} of them in this line",
            cure=REPAIR,
            row=zero,
        )
    if error is not None:
        raise error


_crc32c = google_crc32c.value
_FEW_LINES = 16  # After a bad line others may follow.
# Maximum bytes of one line, and of several: pyarrow counts those of a block in 32 bits.
_LONGEST_BYTES, _MOST_BYTES = (1 << 31) - 64, 1 << 30


class LineReader(StreamReader):
    """Reads lines forward from one stream, and continues after bad ones."""

    item = "line"

    def __init__(
        self,
        stream: Readable | BinaryIO,
        *,
        parser: LineParser,
        offset: int = 0,
        **options: Any,
    ):
        super().__init__(stream, offset=offset, **options)
        self._parser = parser
        self._lines_at_once = sys.maxsize
        # The line at which the reader began, counted from 1, if known.
        self._line: int | None = 1 if offset == 0 else None
        self._newlines = 0  # Lines passed since the reader began.
        self._begin = offset
        self._header_at = 0  # Only empty lines come before it.

    @classmethod
    def as_lines(cls, data: bytes, path: str) -> bytes:
        """Returns the first bytes of a file, with each item on a line of its own."""
        del path
        return data

    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        while (lines := self._lines(end)) is not None:
            base = self.offset
            given, header = lines.without_mark() if base == 0 else lines, 0
            if base == self._header_at:
                found = self._parser.header_lines(given, self.path)
                if found is None or not given.data:  # Only a mark, or empty lines.
                    self._pass(lines.data)
                    self._header_at = self.offset
                    continue
                header = found
                given = given.part(header, len(given.ends))
            (records, rows, nulls), bad = self._parsed(given)
            stop = len(lines.ends) if bad is None else header + bad.row
            starts = lines.starts
            self._pass(lines.part(0, stop).data)
            if records or nulls:
                places = (base + starts[header + rows]).tolist()
                yield RecordBatch(places, records, list(map(_crc32c, records)), nulls)
            if bad is not None:
                self._lines_at_once = _FEW_LINES
                raise self._bad(bad, int(lines.ends[stop] - starts[stop])) from None
            self._lines_at_once = min(2 * self._lines_at_once, sys.maxsize)

    def _parsed(self, lines: Lines) -> tuple[Made, RowError | None]:
        """Returns the records up to the first bad line, and its fault."""
        bad: RowError | None = None
        while len(lines.ends):
            try:
                return self._parser.records(lines), bad
            except RowError as error:
                # An earlier one may be found later.
                bad, lines = error, lines.part(0, error.row)
        return Made([], np.zeros(0, np.int64)), bad

    def _lines(self, end: End) -> Lines | None:
        """Returns the next whole lines that begin before `end`, None at the end."""
        wanted_bytes = self._block_bytes
        while True:
            filled = self._fill(wanted_bytes)
            known = end_of(end)
            if known is not None and self.offset >= known:
                if self.offset == self.size_bytes:
                    self.check_stream()  # All lines are there, and not their end.
                return None
            data = self._buffer[self._position :]
            ends = self._parser.ends(data)
            whole = int(ends[-1]) if len(ends) else 0
            if not filled and self._stream_error is None and len(data) > whole:
                # The last line of a file may lack its newline.
                ends = np.append(ends, len(data))
            if len(ends):
                break
            if not filled:
                self.check_stream()
                return None
            wanted_bytes = min(2 * len(data), _LONGEST_BYTES + 1)
            if len(data) > _LONGEST_BYTES:
                break
        if len(data) > _LONGEST_BYTES and (
            not len(ends) or int(ends[0]) > _LONGEST_BYTES
        ):
            what = f"line of a {self._parser.format_name} file is impossibly long"
            expected = f"a line of at most {_LONGEST_BYTES:,} bytes"
            got = "more bytes without its end"
            error = RowError(what, expected=expected, got=got, cure=REPAIR)
            raise self._bad(error, None)
        if known is not None:
            starts = Lines(data, ends).starts
            ends = ends[: int(starts.searchsorted(known - self.offset))]
        together = max(1, int(ends.searchsorted(_MOST_BYTES, "right")))
        return Lines(data, ends).part(0, min(self._lines_at_once, together))

    def _pass(self, data: bytes) -> None:
        super()._pass(data)
        self._newlines += data.count(b"\n")

    def _line_number(self) -> int | None:
        """Returns the line at `offset`, counted from 1, None if it cannot be known."""
        if self._line is None:
            with contextlib.suppress(OSError):
                self._line = 1 + _count_newlines(self.path, self._begin)
        return None if self._line is None else self._line + self._newlines

    def place(self, offset: int) -> str:
        line = self._line_number()
        named = "" if line is None else f"{self.item} {line:,}, "
        return named + super().place(offset)

    def _bad(self, bad: RowError, length: int | None) -> CorruptRecordError:
        """Returns the error of a line here; its length is None if it has no end."""
        error = self.corrupt(
            "length" if length is None else "data",
            bad.what,
            expected=bad.expected or "a value that a record can hold",
            got=bad.got or "another",
            cure=f"{bad.cure}{OR_SKIP}",
            end=None if length is None else self.offset + length,
        )
        error.line = self._line_number() if self.item == "line" else None
        return error

    def begins_at(self, offset: int) -> bool:
        distance = offset - self.offset
        if not self._fill(distance + 1):
            return len(self._buffer) - self._position == distance
        before = self._position + distance - 1
        return distance == 0 or self._buffer[before : before + 1] == b"\n"

    def resync(self, *, limit: int | None = None) -> bool:
        """Moves forward past the next newline; to the end if that can be in a line.

        Returns:
            Whether a line was found; if not, the reader is at `limit` or at the end.
        """
        if not self._parser.newlines:
            self.skip(sys.maxsize)
        while limit is None or self.offset < limit:
            if not self._fill(1):
                return False
            at = self._buffer.find(b"\n", self._position)
            end = len(self._buffer) if at < 0 else at + 1
            self.skip(self._buffer_offset + end)
            if at >= 0:
                break
        if limit is not None and self.offset >= limit:
            return False
        return not self.at_end()


def _count_newlines(path: str, end: int) -> int:
    """Returns the number of newlines in the first bytes of a plain file."""
    count = 0
    with storage_for(path).open(path, offset=0, end=end) as file:
        while end > 0 and (piece := file.read(min(end, READ_BYTES))):
            count += piece.count(b"\n")
            end -= len(piece)
    return count


class LineSource(StreamSource):
    """Lines, found by newlines; see `Source`.

    Attributes:
        reader: Reads the lines.
    """

    reader: type[LineReader] = LineReader
    lookback_bytes = 1  # The previous byte tells whether a line begins at a byte.
    sure = True

    def __init__(self, spec: SourceSpec, parser: LineParser):
        super().__init__(spec)
        self._parser = parser

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges that begin and end at lines."""
        size = file.size_bytes
        if file.compression != "none" or FORMATS[self.spec.format].stream:
            yield from super().cut(file, range_bytes=range_bytes)
            return
        begin = 0
        while size - begin > range_bytes:
            end = self._next_line(file, begin + range_bytes)
            if end >= size:
                break
            yield begin, end
            begin = end
        yield begin, size

    def _next_line(self, file: InputFile, offset: int) -> int:
        """Returns where the first line at or after an offset begins."""
        offset -= self.lookback_bytes
        with file.open(offset, offset + 1) as stream:
            reader = self.open_reader(
                stream, path=file.path, offset=offset, size_bytes=file.size_bytes
            )
            reader.resync()
            return reader.offset

    def open_reader(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        offset: int,
        size_bytes: int | None,
    ) -> LineReader:
        """Returns a reader of lines."""
        parser = self._parser
        return self.reader(
            stream, path=path, parser=parser, offset=offset, size_bytes=size_bytes
        )


class TextSource(LineSource):
    """Text: a record is a line."""

    def __init__(self, spec: SourceSpec):
        super().__init__(spec, TextLines())


class TextLines(LineParser):
    """Makes a record from each line, empty or not: its bytes without the newline."""

    def records(self, lines: Lines) -> Made:
        check_text(lines)
        return Made(split_lines(lines), np.arange(len(lines.ends)))
