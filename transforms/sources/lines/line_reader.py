"""A forward reader of the lines of a stream, as records."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import google_crc32c
import numpy as np

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.streams.inflated_stream import Readable
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.formats.streams.stream_reader import End, StreamReader
from gristmill.dataset.formats.tfrecord.frame_layout import MAX_RECORD_BYTES
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.lines.parser import (
    BadLineError,
    LineParser,
    Lines,
    Made,
)

BLOCK_BYTES = 1 << 20
_crc32c = google_crc32c.value
_FEW_LINES = 16  # After a bad line others may follow.
_MOST_BYTES = 1 << 30  # Maximum bytes of several lines: parsers count in 32 bits.


class LineReader(StreamReader):
    """Reads lines forward from one stream, and continues after bad ones.

    Memory: some blocks, or one line, whichever is larger.

    Args:
        stream: Bytes from `offset` on.
        path: Path of the file, for messages.
        parser: Makes records from lines.
        offset: Offset in the (decompressed) file of the stream's first byte.
        size_bytes: Size of the file if known; None for compressed streams.
        block_bytes: How much to read at a time.
    """

    item = "line"
    # The previous byte tells whether a line begins at a byte.
    lookback_bytes: ClassVar[int] = 1

    def __init__(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        parser: LineParser,
        offset: int = 0,
        size_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
    ):
        self._path = path
        super().__init__(stream, offset=offset, block_bytes=block_bytes)
        self._parser = parser
        self._size_bytes = size_bytes
        self._lines_at_once = sys.maxsize
        # The line at which the reader began, counted from 1, if known.
        self._line: int | None = 1 if offset == 0 else None
        self._newlines = 0  # Lines passed since the reader began.
        self._begin = offset
        self._header_at = 0  # Only empty lines come before it.

    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        """Yields the records of lines that begin before `end`; see `StreamReader`."""
        while (lines := self._lines(end)) is not None:
            base = self.offset
            given, header = lines.without_mark() if base == 0 else lines, 0
            if base == self._header_at:
                found = self._parser.header_lines(given, self._path)
                if found is None or not given.data:  # Only a mark, or empty lines.
                    self._pass(lines.data)
                    self._header_at = self.offset
                    continue
                header = found
                given = given.part(header, len(given.ends))
            (records, rows, nulls), bad = self._parsed(given)
            stop = len(lines.ends) if bad is None else header + bad.index
            starts = lines.starts
            self._pass(lines.first(stop).data)
            if records or nulls:
                places = (base + starts[header + rows]).tolist()
                yield RecordBatch(places, records, list(map(_crc32c, records)), nulls)
            if bad is not None:
                self._lines_at_once = _FEW_LINES
                raise self._bad(bad, int(lines.ends[stop] - starts[stop])) from None
            self._lines_at_once = min(2 * self._lines_at_once, sys.maxsize)

    def _parsed(self, lines: Lines) -> tuple[Made, BadLineError | None]:
        """Returns the records up to the first bad line, and its fault."""
        bad: BadLineError | None = None
        while len(lines.ends):
            try:
                return self._parser.records(lines), bad
            except BadLineError as error:
                # An earlier one may be found later.
                bad, lines = error, lines.first(error.index)
        return Made([], np.zeros(0, np.int64)), bad

    def _lines(self, end: End) -> Lines | None:
        """Returns the next whole lines that begin before `end`, None at the end."""
        wanted_bytes = self._block_bytes
        while True:
            filled = self._fill(wanted_bytes)
            known = end() if callable(end) else end
            if known is not None and self.offset >= known:
                if self.offset == self._size_bytes:
                    self._check_stream()  # All lines are there, and not their end.
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
                self._check_stream()
                return None
            wanted_bytes = min(2 * len(data), MAX_RECORD_BYTES + 1)
            if len(data) > MAX_RECORD_BYTES:
                break
        if len(data) > MAX_RECORD_BYTES and (
            not len(ends) or int(ends[0]) > MAX_RECORD_BYTES
        ):
            raise self._too_long()
        if known is not None:
            starts = Lines(data, ends).starts
            ends = ends[: int(starts.searchsorted(known - self.offset))]
        together = max(1, int(ends.searchsorted(_MOST_BYTES, "right")))
        return Lines(data, ends).first(min(self._lines_at_once, together))

    def _pass(self, data: bytes) -> None:
        super()._pass(data)
        self._newlines += data.count(b"\n")

    def _line_number(self) -> int | None:
        """Returns the line at `offset`, counted from 1, None if it cannot be known."""
        if self._line is None:
            with contextlib.suppress(OSError):
                self._line = 1 + _count_newlines(self._path, self._begin)
        return None if self._line is None else self._line + self._newlines

    def _where(self) -> str:
        line = self._line_number()
        named = "" if line is None else f"{self.item} {line:,}, "
        return f"{self._path}, {named}byte offset {self.offset:,}"

    def _corrupt(
        self,
        reason: str,
        what: str,
        *,
        expected: str,
        got: str,
        cure: str | None = None,
        end: int | None = None,
    ) -> CorruptRecordError:
        error = CorruptRecordError(
            what,
            where=self._where(),
            expected=expected,
            got=got,
            cure=f"{cure or 'repair the file'}, or keep what can be read with "
            "--on-corrupt skip",
        )
        error.reason, error.offset, error.end = reason, self.offset, end
        error.line = self._line_number() if self.item == "line" else None
        error.detail = f"{what}: expected {expected}, got {got}"
        return error

    def _bad(self, bad: BadLineError, length: int) -> CorruptRecordError:
        return self._corrupt(
            "data",
            bad.what,
            expected=bad.expected,
            got=bad.got,
            cure=bad.cure,
            end=self.offset + length,
        )

    def _too_long(self) -> CorruptRecordError:
        return self._corrupt(
            "length",
            f"line of a {self._parser.format_name} file is impossibly long",
            expected=f"a line of at most {MAX_RECORD_BYTES:,} bytes",
            got="more bytes without its end",
        )

    def _check_stream(self) -> None:
        if (error := self._taken_error()) is not None:
            inflated = bool(error.detail)
            raise self._corrupt(
                "compressed" if inflated else "truncated",
                "compressed file is damaged, or ends too early"
                if inflated
                else error.what,
                expected="an intact compressed stream"
                if inflated
                else str(error.expected),
                got=error.detail or str(error.got),
            ) from error

    def begins_at(self, offset: int) -> bool:
        """Returns whether a line begins, or the file ends, at an offset ahead."""
        distance = offset - self.offset
        if not self._fill(distance + 1):
            return len(self._buffer) - self._position == distance
        before = self._position + distance - 1
        return distance == 0 or self._buffer[before : before + 1] == b"\n"

    def resync(self, *, limit: int | None = None) -> bool:
        """Moves forward past the next newline; to the end if that can be in a line.

        Args:
            limit: File offset at which the search gives up, exclusive.

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
        while end > 0 and (piece := file.read(min(end, BLOCK_BYTES))):
            count += piece.count(b"\n")
            end -= len(piece)
    return count
