"""The TFRecord format: frames, their checksums, and how to find one anywhere.

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

import contextlib
import functools
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import CorruptInputError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

# Longest record that is believed: no chunk of an ArrayRecord file could hold more.
MAX_RECORD_BYTES = 1 << 31

_BLOCK_BYTES = 1 << 20  # Half the CPU of 4 MiB: a block stays in the cache.
_SEARCH_BYTES = 1 << 18  # Searched for a frame at once: arrays of it fit in caches.
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")
_crc32c = google_crc32c.value

Compression = Literal["none", "gzip", "zlib"]
_WINDOW_BITS = {"gzip": 31, "zlib": 15}


def mask(crc32c: int) -> int:
    """Returns the masked form of a checksum, as TFRecord files store it."""
    return ((crc32c >> 15 | crc32c << 17) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """Returns the crc32c of which `masked` is the masked form.

    >>> unmask(mask(0x12345678)) == 0x12345678
    True
    """
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def encode_frame(record: bytes) -> bytes:
    """Returns one record as a frame.

    >>> len(encode_frame(b"abc"))
    19
    """
    length = struct.pack("<Q", len(record))
    return b"".join(
        (
            length,
            _U32.pack(mask(_crc32c(length))),
            record,
            _U32.pack(mask(_crc32c(record))),
        )
    )


def is_header(head: bytes) -> bool:
    """Tells whether bytes begin with the header of a frame."""
    if len(head) < HEADER_BYTES:
        return False
    (stored,) = _U32.unpack_from(head, 8)
    return bool(mask(_crc32c(head[:8])) == stored)


def detect_compression(head: bytes) -> Compression:
    """Tells how a file is compressed from its first 12 bytes or more.

    Compressed TFRecord files often keep the plain file name, so the name says
    nothing. A valid frame header wins over the magic numbers of gzip and zlib.
    """
    if is_header(head):
        return "none"
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    # Two bytes begin a zlib stream, too few to go by: see if the others fit.
    try:
        zlib.decompressobj(_WINDOW_BITS["zlib"]).decompress(head)
    except zlib.error:
        return "none"
    return "zlib" if len(head) >= 2 else "none"


class Frame(NamedTuple):
    """One record and where it was.

    Attributes:
        offset: First byte of the frame in the (decompressed) file.
        record: The record.
        crc32c: The (unmasked) checksum that came with it, already checked.
    """

    offset: int
    record: bytes
    crc32c: int


class FrameBatch(NamedTuple):
    """Several frames, as columns: see `Frame`. All lists are [frames]."""

    offsets: list[int]
    records: list[bytes]
    crc32cs: list[int]


class CorruptFrameError(CorruptInputError):
    """A place in a file where a frame should be and is none.

    Attributes:
        reason: `length` (header checksum, or a length that cannot be), `data` (record
            checksum), `truncated`, or `compressed` (gzip or zlib cannot go on).
        offset: Where the frame begins.
        end: Where the frame ends if its length can be believed, else None.
        detail: Expected and got in a few words, for the quarantine list.
    """

    reason: str = ""
    offset: int = 0
    end: int | None = None
    detail: str = ""


def _corrupt(
    path: str,
    *,
    reason: str,
    offset: int,
    what: str,
    expected: str,
    got: str,
    end: int | None = None,
) -> CorruptFrameError:
    error = CorruptFrameError(
        what,
        where=f"{path}, byte offset {offset:,}",
        expected=expected,
        got=got,
        cure="write the file again from its source, or keep what can be read with "
        "--on-corrupt quarantine",
    )
    error.reason, error.offset, error.end = reason, offset, end
    error.detail = f"expected {expected}, got {got}"
    return error


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class CorruptStreamError(CorruptInputError):
    """A gzip or zlib stream that cannot be read on.

    Attributes:
        detail: What is wrong with it and where, in a few words.
    """

    detail: str = ""


class InflatedStream:
    """The decompressed bytes of a gzip or zlib stream, read forward.

    Concatenated gzip members are read as one, as TensorFlow does. Memory is bounded
    by the size of one read, whatever the compressed data claims. All that comes
    before damage is handed out before the error is.

    Args:
        stream: The compressed bytes.
        path: For messages.
        compression: `gzip` or `zlib`.
    """

    def __init__(self, stream: _Readable, *, path: str, compression: Compression):
        self._stream = stream
        self._path = path
        self._window_bits = _WINDOW_BITS[compression]
        self._inflater = zlib.decompressobj(self._window_bits)
        self._pending = b""
        self._started = False
        self._error: CorruptStreamError | None = None
        self.compressed_bytes = 0

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes; an empty result means the end.

        Raises:
            CorruptStreamError: The stream is damaged here, or cut short.
        """
        while self._error is None:
            if not self._pending:
                self._pending = self._stream.read(1 << 20)
                self.compressed_bytes += len(self._pending)
            if not self._pending:
                if self._started and not self._inflater.eof:
                    self._error = self._damaged("it ends in the middle of its stream")
                    break
                return b""
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(self._window_bits)
            data = self._inflate(size)
            if data:
                return data
        raise self._error

    def _inflate(self, size: int) -> bytes:
        before = self._inflater.copy()
        self._started = True
        try:
            data = self._inflater.decompress(self._pending, size)
        except zlib.error as e:
            data = self._salvage(before)
            self._error = self._damaged(str(e))
            return data
        done = self._inflater
        self._pending = done.unused_data if done.eof else done.unconsumed_tail
        return data

    def _salvage(self, inflater: Any) -> bytes:
        """Inflates up to the byte with the error, which comes without what precedes."""
        pieces = []
        step = 1 << len(self._pending).bit_length()
        while step := step >> 1:
            tried = inflater.copy()
            with contextlib.suppress(zlib.error):
                pieces.append(tried.decompress(self._pending[:step]))
                self._pending = self._pending[step:]
                inflater = tried
        return b"".join(pieces)

    @property
    def compressed_offset(self) -> int:
        """Compressed bytes used up: after an error, about where the damage is."""
        return self.compressed_bytes - len(self._pending)

    def _damaged(self, got: str) -> CorruptStreamError:
        place = f"near compressed byte offset {self.compressed_offset:,}"
        error = CorruptStreamError(
            "compressed file cannot be decompressed",
            where=f"{self._path}, {place}",
            got=got,
            cure="write the file again from its source",
        )
        error.detail = f"one that cannot be decompressed {place}: {got}"
        return error


class FrameReader:
    """Reads frames forward from one stream, and finds the next one after damage.

    Memory: one block (1 MiB) or one record, whichever is larger. A length field is
    believed only as far as bytes really follow.

    Args:
        stream: Bytes from `offset` on.
        path: For messages.
        offset: Offset in the (decompressed) file of the stream's first byte.
        size_bytes: Size of the file where known; None for compressed streams.
    """

    def __init__(
        self,
        stream: _Readable | BinaryIO,
        *,
        path: str,
        offset: int = 0,
        size_bytes: int | None = None,
    ):
        self._stream = stream
        self._path = path
        self._size_bytes = size_bytes
        self._buffer = b""
        self._buffer_offset = offset  # File offset of the buffer's first byte.
        self._position = 0  # In the buffer: the next frame begins here.
        self._exhausted = False
        self._stream_error: CorruptStreamError | None = None

    @property
    def offset(self) -> int:
        """File offset of the next byte that was not yet handed out."""
        return self._buffer_offset + self._position

    def _fill(self, wanted_bytes: int) -> bool:
        """Makes `wanted_bytes` bytes available from the position on, if they exist."""
        missing = wanted_bytes - (len(self._buffer) - self._position)
        if missing <= 0:
            return True
        pieces = [self._buffer[self._position :]]
        # Read in blocks, so that memory grows with the data and not with the claim.
        while missing > 0 and not self._exhausted:
            try:
                block = self._stream.read(_BLOCK_BYTES)
            except CorruptStreamError as error:
                # Told where data is missing, once what came before is used up.
                self._stream_error, block = error, b""
            self._exhausted = not block
            pieces.append(block)
            missing -= len(block)
        self._buffer_offset += self._position
        self._position = 0
        self._buffer = b"".join(pieces)
        return missing <= 0

    def at_end(self) -> bool:
        """Tells whether no byte is left."""
        return not self._fill(1)

    def frames(self, end: int | None = None) -> Iterator[Frame]:
        """Yields the frames that begin before `end`, one at a time; see `batches`."""
        for batch in self.batches(end):
            yield from map(Frame, *batch)

    def batches(
        self, end: int | None = None, *, limit_records: int = sys.maxsize
    ) -> Iterator[FrameBatch]:
        """Yields the frames that begin before `end`, those of one block at a time.

        Args:
            end: File offset, exclusive; None for the end of the file. The last frame
                may reach past it: a frame belongs to the range of its first byte.
            limit_records: Frames to yield at most.

        Raises:
            CorruptFrameError: At the first frame that is damaged, after all before it
                were yielded. The reader stays at its first byte, for `skip` or
                `resync`.
        """
        unpack_header, unpack_crc = _HEADER.unpack_from, _U32.unpack_from
        crc32c, delta = _crc32c, _MASK_DELTA
        while limit_records > 0 and (end is None or self.offset < end):
            if not self._fill(HEADER_BYTES):
                self._check_no_tail()
                return
            # The loop below runs once a record: everything it needs is local.
            buffer, position = self._buffer, self._position
            base, available = self._buffer_offset, len(self._buffer)
            stop = available - HEADER_BYTES + 1
            if end is not None:
                stop = min(stop, end - base)
            batch = FrameBatch([], [], [])
            offsets, records, crc32cs = batch
            error: CorruptFrameError | None = None
            short_length: int | None = None
            while position < stop:
                length, length_crc = unpack_header(buffer, position)
                got = crc32c(buffer[position : position + 8])
                if ((got >> 15 | got << 17) + delta) & 0xFFFFFFFF != length_crc:
                    error = self._bad_length(base + position, length_crc, got)
                    break
                data_end = position + HEADER_BYTES + length
                if data_end + FOOTER_BYTES > available:
                    short_length = length
                    break
                record = buffer[position + HEADER_BYTES : data_end]
                (data_crc,) = unpack_crc(buffer, data_end)
                got = crc32c(record)
                if ((got >> 15 | got << 17) + delta) & 0xFFFFFFFF != data_crc:
                    error = self._bad_data(base + position, length, data_crc, got)
                    break
                offsets.append(base + position)
                records.append(record)
                crc32cs.append(got)
                position = data_end + FOOTER_BYTES
                limit_records -= 1
                if not limit_records:
                    break
            self._position = position
            if records:
                yield batch
            if error is not None:
                raise error
            if short_length is not None:
                self._fill_record(short_length)

    def _fill_record(self, length: int) -> None:
        frame_bytes = length + FRAME_OVERHEAD_BYTES
        left = None if self._size_bytes is None else self._size_bytes - self.offset
        cut = left is not None and frame_bytes > left
        if length > MAX_RECORD_BYTES and not cut:
            raise self._too_long(length)
        if cut or not self._fill(frame_bytes):
            self._check_stream()
            have = len(self._buffer) - self._position if left is None else left
            raise _corrupt(
                self._path,
                reason="truncated",
                offset=self.offset,
                what="TFRecord file ends in the middle of a record",
                expected=f"a frame of {frame_bytes:,} bytes",
                got=f"{have:,} bytes up to the end of the file",
            )

    def _check_no_tail(self) -> None:
        self._check_stream()
        left = len(self._buffer) - self._position
        if left:
            raise _corrupt(
                self._path,
                reason="truncated",
                offset=self.offset,
                what="TFRecord file ends in the middle of a record's header",
                expected=f"{HEADER_BYTES} header bytes",
                got=f"{left} bytes up to the end of the file",
            )

    def _check_stream(self) -> None:
        # Raised once: whoever sets the damage aside goes on behind it.
        error, self._stream_error = self._stream_error, None
        if error is not None:
            raise _corrupt(
                self._path,
                reason="compressed",
                offset=self.offset,
                what="compressed file is damaged, or ends too early",
                expected="an intact gzip or zlib stream",
                got=error.detail,
            ) from error

    def _too_long(self, length: int) -> CorruptFrameError:
        return _corrupt(
            self._path,
            reason="length",
            offset=self.offset,
            what="TFRecord file claims a record that is too long to be true",
            expected=f"a frame of at most {MAX_RECORD_BYTES:,} bytes",
            got=f"{length + FRAME_OVERHEAD_BYTES:,} bytes",
        )

    def _bad_length(self, offset: int, stored: int, got: int) -> CorruptFrameError:
        what = "corrupt length field in TFRecord file"
        if offset == 0:
            what = "not a TFRecord file, or the length field of its first record is bad"
        return _corrupt(
            self._path,
            reason="length",
            offset=offset,
            what=what,
            expected=f"masked crc32c {stored:#010x} of the length field",
            got=f"{mask(got):#010x}",
        )

    def _bad_data(
        self, offset: int, length: int, stored: int, got: int
    ) -> CorruptFrameError:
        return _corrupt(
            self._path,
            reason="data",
            offset=offset,
            what=f"corrupt record of {length:,} bytes in TFRecord file",
            expected=f"masked crc32c {stored:#010x} of the record",
            got=f"{mask(got):#010x}",
            end=offset + length + FRAME_OVERHEAD_BYTES,
        )

    def frame_at(self, offset: int) -> bool:
        """Tells whether a frame begins, or the file ends, at an offset ahead."""
        distance = offset - self.offset
        if not self._fill(distance + HEADER_BYTES):
            return len(self._buffer) - self._position == distance
        start = self._position + distance
        return is_header(self._buffer[start : start + HEADER_BYTES])

    def skip(self, to: int, sink: Callable[[bytes], None] | None = None) -> None:
        """Moves forward to a file offset, or to the end of the file.

        Args:
            to: File offset, not before `offset`.
            sink: Called with the bytes that are passed over, in order.
        """
        while self.offset < to and self._fill(1):
            piece = self._buffer[self._position :][: to - self.offset]
            if sink is not None:
                sink(piece)
            self._position += len(piece)

    def resync(
        self,
        *,
        limit: int | None = None,
        sink: Callable[[bytes], None] | None = None,
    ) -> bool:
        """Moves forward to the next frame whose two checksums both fit.

        A chance match has probability 2**-64. A record that itself holds TFRecord
        frames can match by right: whoever starts in the middle of a file has to
        compare with where the reader before it ended.

        Args:
            limit: File offset at which the search gives up, exclusive.
            sink: Called with the bytes that are passed over, in order.

        Returns:
            Whether a frame was found; if not, the reader is at `limit` or at the end.
        """
        while self._fill(HEADER_BYTES):
            base = self.offset
            window = np.frombuffer(self._buffer, np.uint8, offset=self._position)
            if limit is not None:
                window = window[: max(0, limit - base + HEADER_BYTES - 1)]
            longest = MAX_RECORD_BYTES
            if self._size_bytes is not None:
                room = self._size_bytes - base - FRAME_OVERHEAD_BYTES
                longest = min(longest, room)
            for candidate in _header_positions(window, longest):
                if self._confirm(base + candidate, sink):
                    return True
            searched = base + max(0, len(window) - HEADER_BYTES + 1)
            self.skip(searched, sink)
            if limit is not None and searched >= limit:
                return False
        self.skip(self.offset + HEADER_BYTES if limit is None else limit, sink)
        return False

    def _confirm(self, offset: int, sink: Callable[[bytes], None] | None) -> bool:
        """Moves to a frame whose header fits, if its record's checksum fits too."""
        start = offset - self._buffer_offset
        (length, _) = _HEADER.unpack_from(self._buffer, start)
        keep = self._position
        frame_bytes = length + FRAME_OVERHEAD_BYTES
        if not self._fill(start - keep + frame_bytes):
            return False
        start = offset - self._buffer_offset
        record_end = start + HEADER_BYTES + length
        record = self._buffer[start + HEADER_BYTES : record_end]
        (stored,) = _U32.unpack_from(self._buffer, record_end)
        if mask(_crc32c(record)) != stored:
            return False
        self.skip(offset, sink)
        return True


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


def _header_positions(window: npt.NDArray[np.uint8], longest: int) -> Iterator[int]:
    """Yields where in a window a frame header can be, in rising order.

    Args:
        window: uint8 [n].
        longest: Length in bytes above which a record cannot fit.

    Yields:
        Positions p with a valid checksum in window[p : p + 12].
    """
    count = len(window) - HEADER_BYTES + 1
    if longest < 0:
        return
    for begin in range(0, count, _SEARCH_BYTES):
        end = min(begin + _SEARCH_BYTES, count)
        found = _header_positions_in(window[begin : end + HEADER_BYTES - 1], longest)
        for position in found.tolist():
            yield begin + position


def _header_positions_in(
    window: npt.NDArray[np.uint8], longest: int
) -> npt.NDArray[np.int64]:
    count = len(window) - HEADER_BYTES + 1
    # Most bytes of a length are zero: that alone rules out nearly every position.
    zero_from = (longest.bit_length() + 7) // 8
    plausible = np.ones(count, bool)
    for index in range(zero_from, 8):
        plausible &= window[index : index + count] == 0
    positions = np.flatnonzero(plausible)
    tables = _length_crc_tables()
    crcs = np.full(len(positions), _crc32c(bytes(8)), np.uint32)
    for index in range(8):
        crcs ^= tables[index][window[positions + index]]
    masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK_DELTA)
    stored = np.zeros(len(positions), np.uint32)
    for index in range(4):
        byte = window[positions + 8 + index].astype(np.uint32)
        stored |= byte << np.uint32(8 * index)
    hits: npt.NDArray[np.int64] = positions[masked == stored]
    return hits
