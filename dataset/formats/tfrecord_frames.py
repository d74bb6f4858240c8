"""The layout of a TFRecord frame: its checksums, and how to find one anywhere.

A file is a sequence of frames and nothing else (little-endian):

| bytes    | content                                |
| -------- | -------------------------------------- |
| 8        | length of the record, uint64           |
| 4        | masked crc32c of the 8 length bytes    |
| `length` | the record                             |
| 4        | masked crc32c of the record            |

Source: tensorflow/core/lib/io/record_writer.h. Because the first 12 bytes carry a
checksum of themselves, a frame can be found from any byte offset.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptFrameError, CorruptRecordError
from gristmill.dataset.formats.streams import End, RecordBatch, StreamReader, end_of

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

# Length of the longest record accepted: no ArrayRecord chunk could hold more.
MAX_RECORD_BYTES = 1 << 31

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
_MASK_DELTA = 0xA282EAD8
_HEADER_DTYPE = np.dtype([("length", "<u8"), ("masked_crc32c", "<u4")])

_SEARCH_BYTES = 1 << 18  # Searched at a time: its arrays fit the processor's cache.
_crc32c = google_crc32c.value

Positions = Sequence[int] | npt.NDArray[np.int64]


@overload
def mask(crc32c: int) -> int: ...
@overload
def mask(crc32c: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]: ...
def mask(crc32c: Any) -> Any:
    """Returns the masked form of a checksum, or of many, as TFRecord files store it."""
    return ((crc32c >> 15 | crc32c << 17) + _MASK_DELTA) & 0xFFFFFFFF


def encode_frame(record: bytes) -> bytes:
    """Returns one record as a frame.

    >>> len(encode_frame(b"abc"))
    19
    """
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            U32.pack(mask(_crc32c(length))),
            record,
            U32.pack(mask(_crc32c(record))),
        )
    )


def is_header(head: bytes) -> bool:
    """Returns whether bytes begin with the header of a frame."""
    if len(head) < HEADER_BYTES:
        return False
    (stored,) = U32.unpack_from(head, 8)
    return bool(mask(_crc32c(head[:8])) == stored)


@functools.cache
def _length_crc_tables() -> npt.NDArray[np.uint32]:
    """Returns uint32 [8, 256]: what each byte of a length adds to its crc32c.

    crc32c is affine in its input: the checksum of 8 bytes is that of 8 zero bytes,
    exclusive-or one term for each byte.
    """
    zero = _crc32c(bytes(8))
    tables = np.empty((8, 256), np.uint32)
    for index in range(8):
        for byte in range(256):
            word = bytearray(8)
            word[index] = byte
            tables[index, byte] = _crc32c(bytes(word)) ^ zero
    return tables


def headers_at(buffer: Any, positions: Positions) -> npt.NDArray[np.void]:
    """Returns frame headers: [headers] with the fields `length` and `masked_crc32c`.

    Args:
        buffer: Bytes, or uint8 [n].
        positions: int [headers], each followed by the bytes of a header.
    """
    return _at(buffer, positions, _HEADER_DTYPE)


def footers_before(buffer: Any, ends: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Returns the masked checksums of frames that end at `ends`, uint32 [frames]."""
    return _at(buffer, np.array(ends, np.int64) - FOOTER_BYTES, np.dtype("<u4"))


def _at(buffer: Any, positions: Positions, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    # A view with an item at every byte: only the chosen ones are copied.
    count = max(0, len(buffer) - dtype.itemsize + 1)
    everywhere: npt.NDArray[Any] = np.ndarray(count, dtype, buffer, strides=(1,))
    return everywhere[np.asarray(positions, np.int64)]


def header_crc32cs(headers: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """Returns the checksums of lengths, uint32 [headers]."""
    lengths = np.ascontiguousarray(headers["length"])
    crcs = np.full(len(lengths), _crc32c(bytes(8)), np.uint32)
    # The upper bytes of lengths are nearly always zero, which adds nothing.
    used_bytes = (int(lengths.max(initial=0)).bit_length() + 7) // 8
    columns = lengths.view(np.uint8).reshape(-1, 8).T
    for table, column in zip(_length_crc_tables(), columns[:used_bytes], strict=False):
        crcs ^= table[column]
    return crcs


def header_positions(window: npt.NDArray[np.uint8], longest: int) -> Iterator[int]:
    """Yields positions p with a valid checksum in window[p : p + 12], ascending.

    A frame header may begin there. Records longer than `longest` bytes cannot fit.
    """
    if longest < 0:
        return
    # Most bytes of a length are zero: that alone rules out nearly every position.
    zero_from = (longest.bit_length() + 7) // 8
    count = len(window) - HEADER_BYTES + 1
    for begin in range(0, count, _SEARCH_BYTES):
        end = min(begin + _SEARCH_BYTES, count)
        plausible = np.ones(end - begin, bool)
        for index in range(zero_from, 8):
            plausible &= window[begin + index : end + index] == 0
        positions = begin + np.flatnonzero(plausible)
        headers = headers_at(window, positions)
        fits = mask(header_crc32cs(headers)) == headers["masked_crc32c"]
        yield from positions[fits].tolist()


def count_equal(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> int:
    """Returns how many elements are equal before the first that differ."""
    differs = a != b
    return int(differs.argmax()) if differs.any() else len(differs)


def frame_borders(buffer: bytes, position: int, stop: int) -> list[int]:
    """Returns where frames begin before `stop`, and where the last one ends.

    These are positions in the buffer, valid if the lengths are right.

    Args:
        buffer: Bytes with the headers of these frames.
        position: Where the first begins.
        stop: At most the position after that of the last header in the buffer.
    """
    unpack, borders = U64.unpack_from, [position]
    while position < stop:
        position += unpack(buffer, position)[0] + FRAME_OVERHEAD_BYTES
        borders.append(position)
    return borders


class FrameReader(StreamReader):
    """Reads frames forward from one stream, and finds the next one after damage.

    A false length field never makes it allocate more than the file holds.
    """

    error_type = CorruptFrameError

    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        while self._is_before(end):
            filled = self._fill(HEADER_BYTES)
            if not self._is_before(end):
                return
            if not filled:
                self._check_no_tail()
                return
            stop = len(self._buffer) - HEADER_BYTES + 1
            if (known := end_of(end)) is not None:
                stop = min(stop, known - self._buffer_offset)
            borders = frame_borders(self._buffer, self._position, stop)
            batch, error = self._parse(borders)
            if batch.records:
                yield batch
            if error is not None:
                raise error
            if borders[-1] > len(self._buffer):
                self._fill_record(borders[-1] - borders[-2] - FRAME_OVERHEAD_BYTES)

    def _is_before(self, end: End) -> bool:
        known = end_of(end)
        return known is None or self.offset < known

    def _parse(
        self, borders: list[int]
    ) -> tuple[RecordBatch, CorruptRecordError | None]:
        """Returns the good frames up to the first damaged one, and its error.

        Checksums are compared by numpy: a loop takes as long as computing them.
        """
        buffer, base = self._buffer, self._buffer_offset
        headers = headers_at(buffer, borders[:-1])
        stored, got = headers["masked_crc32c"], header_crc32cs(headers)
        good = count_equal(mask(got), stored)
        error = None
        if good < len(headers):
            offset = base + borders[good]
            error = self._corrupt(
                "length",
                "corrupt length field in TFRecord file"
                if offset
                else "not a TFRecord file, or the length field of its first record is "
                "bad",
                expected=f"masked crc32c {stored[good]:#010x} of the length field",
                got=f"{mask(int(got[good])):#010x}",
                offset=offset,
            )
        # The end of the last one may be missing.
        ends = borders[1 : good + 1]
        if ends and ends[-1] > len(buffer):
            ends.pop()
        records = [
            buffer[begin + HEADER_BYTES : end - FOOTER_BYTES]
            for begin, end in zip(borders, ends, strict=False)
        ]
        crc32cs = list(map(_crc32c, records))
        stored, got = footers_before(buffer, ends), np.array(crc32cs, np.uint32)
        good = count_equal(mask(got), stored)
        if good < len(records):
            error = self._corrupt(
                "data",
                f"corrupt record of {len(records[good]):,} bytes in TFRecord file",
                expected=f"masked crc32c {stored[good]:#010x} of the record",
                got=f"{mask(int(got[good])):#010x}",
                offset=base + borders[good],
                end=base + ends[good],
            )
            del records[good:], crc32cs[good:]
        self._position = borders[good]
        places = [base + a for a in borders[:good]]
        return RecordBatch(places, records, crc32cs), error

    def _fill_record(self, length: int) -> None:
        frame_bytes = length + FRAME_OVERHEAD_BYTES
        left = None if self.size_bytes is None else self.size_bytes - self.offset
        cut = left is not None and frame_bytes > left
        if length > MAX_RECORD_BYTES and not cut:
            raise self._corrupt(
                "length",
                "record in a TFRecord file is impossibly long",
                expected=f"a frame of at most {MAX_RECORD_BYTES:,} bytes",
                got=f"{frame_bytes:,} bytes",
            )
        if cut or not self._fill(frame_bytes):
            self.check_stream()
            have = len(self._buffer) - self._position if left is None else left
            raise self._corrupt(
                "truncated",
                "TFRecord file ends in the middle of a record",
                expected=f"a frame of {frame_bytes:,} bytes",
                got=f"{have:,} bytes up to the end of the file",
            )

    def _check_no_tail(self) -> None:
        self.check_stream()
        left = len(self._buffer) - self._position
        if left:
            raise self._corrupt(
                "truncated",
                "TFRecord file ends in the middle of a record's header",
                expected=f"{HEADER_BYTES} header bytes",
                got=f"{left} bytes up to the end of the file",
            )

    def _corrupt(self, reason: str, what: str, **facts: Any) -> CorruptRecordError:
        """Returns the error of a frame, with the facts as for `corrupt`."""
        error = self.corrupt(reason, what, **facts)
        if error.offset == 0:
            error.cure = (
                f"if it is a TFRecord file, {error.cure}; if it is of another format, "
                "name that with --input-format"
            )
        return error

    def begins_at(self, offset: int) -> bool:
        distance = offset - self.offset
        if not self._fill(distance + HEADER_BYTES):
            return len(self._buffer) - self._position == distance
        start = self._position + distance
        return is_header(self._buffer[start : start + HEADER_BYTES])

    def resync(self, *, limit: int | None = None) -> bool:
        """Moves forward to the next frame whose two checksums both fit.

        A chance match has probability 2**-64. Frames inside a record do match: a reader
        that starts in the middle of a file must compare its first frame with where the
        reader before it ended.

        Returns:
            Whether a frame was found; if not, the reader is at `limit` or at the end.
        """
        while self._fill(HEADER_BYTES):
            base = self.offset
            window = np.frombuffer(self._buffer, np.uint8, offset=self._position)
            if limit is not None:
                window = window[: max(0, limit - base + HEADER_BYTES - 1)]
            longest = MAX_RECORD_BYTES
            if self.size_bytes is not None:
                room = self.size_bytes - base - FRAME_OVERHEAD_BYTES
                longest = min(longest, room)
            for candidate in header_positions(window, longest):
                if self._confirm(base + candidate):
                    return True
            searched = base + max(0, len(window) - HEADER_BYTES + 1)
            self.skip(searched)
            if limit is not None and searched >= limit:
                return False
        self.skip(self.offset + HEADER_BYTES if limit is None else limit)
        return False

    def _confirm(self, offset: int) -> bool:
        """Moves to a frame whose header fits, if its record's checksum does too."""
        start = offset - self._buffer_offset
        (length,) = U64.unpack_from(self._buffer, start)
        keep = self._position
        frame_bytes = length + FRAME_OVERHEAD_BYTES
        if not self._fill(start - keep + frame_bytes):
            return False
        start = offset - self._buffer_offset
        record_end = start + HEADER_BYTES + length
        record = self._buffer[start + HEADER_BYTES : record_end]
        (stored,) = U32.unpack_from(self._buffer, record_end)
        if mask(_crc32c(record)) != stored:
            return False
        self.skip(offset)
        return True
