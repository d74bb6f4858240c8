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

import functools
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, NamedTuple, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import CorruptInputError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

_BLOCK_BYTES = 4 << 20  # 4 MiB a read: large enough for throughput on any storage.
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_U32 = struct.Struct("<I")
_crc32c = google_crc32c.value

Compression = Literal["none", "gzip", "zlib"]


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
    return mask(_crc32c(head[:8])) == _U32.unpack_from(head, 8)[0]


def detect_compression(head: bytes) -> Compression:
    """Tells how a file is compressed from its first 12 bytes or more.

    Compressed TFRecord files often keep the plain file name, so the name says
    nothing. A valid frame header wins over the magic numbers of gzip and zlib.
    """
    if is_header(head):
        return "none"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    # RFC 1950: method 8 (deflate), window at most 32 KiB, check bits.
    if len(head) >= 2 and head[0] & 0x8F == 0x08:
        if int.from_bytes(head[:2], "big") % 31 == 0:
            return "zlib"
    return "none"


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


class CorruptFrameError(CorruptInputError):
    """A place in a file where a frame should be and is none.

    Attributes:
        reason: `length` (header checksum), `data` (record checksum) or `truncated`.
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


class InflatedStream:
    """The decompressed bytes of a gzip or zlib stream, read forward.

    Concatenated gzip members are read as one, as TensorFlow does. Memory is bounded
    by the size of one read, whatever the compressed data claims.

    Args:
        stream: The compressed bytes.
        path: For messages.
        compression: `gzip` or `zlib`.
    """

    def __init__(self, stream: _Readable, *, path: str, compression: Compression):
        self._stream = stream
        self._path = path
        self._window_bits = 31 if compression == "gzip" else 15
        self._inflater = zlib.decompressobj(self._window_bits)
        self._pending = b""
        self._started = False
        self.compressed_bytes = 0

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes; an empty result means the end."""
        while True:
            if not self._pending:
                self._pending = self._stream.read(1 << 20)
                self.compressed_bytes += len(self._pending)
                if not self._pending:
                    if self._started and not self._inflater.eof:
                        raise CorruptInputError(
                            "compressed file ends in the middle of its stream",
                            where=f"{self._path}, compressed byte offset "
                            f"{self.compressed_bytes:,}",
                            cure="write the file again from its source",
                        )
                    return b""
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(self._window_bits)
            self._started = True
            try:
                data = self._inflater.decompress(self._pending, size)
            except zlib.error as e:
                raise CorruptInputError(
                    "compressed file cannot be decompressed",
                    where=f"{self._path}, near compressed byte offset "
                    f"{self.compressed_bytes - len(self._pending):,}",
                    got=str(e),
                    cure="write the file again from its source",
                ) from e
            inflater = self._inflater
            self._pending = (
                inflater.unused_data if inflater.eof else inflater.unconsumed_tail
            )
            if data:
                return data


class FrameReader:
    """Reads frames forward from one stream, and finds the next one after damage.

    Memory: one block (4 MiB) or one record, whichever is larger. A length field is
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
            block = self._stream.read(_BLOCK_BYTES)
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
        """Yields the frames that begin before `end`.

        Args:
            end: File offset, exclusive; None for the end of the file. The last frame
                may reach past it: a frame belongs to the range of its first byte.

        Raises:
            CorruptFrameError: At the first frame that is damaged. The reader stays at
                its first byte, for `skip` or `resync`.
        """
        unpack_header, unpack_crc = _HEADER.unpack_from, _U32.unpack_from
        crc32c, delta = _crc32c, _MASK_DELTA
        while end is None or self.offset < end:
            if not self._fill(HEADER_BYTES):
                self._check_no_tail()
                return
            # The loop below runs once a record: everything it needs is local.
            buffer, position = self._buffer, self._position
            base, available = self._buffer_offset, len(self._buffer)
            stop = available if end is None else min(available, end - base)
            while position < stop and position + HEADER_BYTES <= available:
                length, length_crc = unpack_header(buffer, position)
                got = crc32c(buffer[position : position + 8])
                if ((got >> 15 | got << 17) + delta) & 0xFFFFFFFF != length_crc:
                    raise self._bad_length(base + position, length_crc, got)
                data_end = position + HEADER_BYTES + length
                if data_end + FOOTER_BYTES > available:
                    break
                record = buffer[position + HEADER_BYTES : data_end]
                (data_crc,) = unpack_crc(buffer, data_end)
                got = crc32c(record)
                if ((got >> 15 | got << 17) + delta) & 0xFFFFFFFF != data_crc:
                    raise self._bad_data(base + position, length, data_crc, got)
                offset = base + position
                self._position = position = data_end + FOOTER_BYTES
                yield Frame(offset, record, got)
            if position < stop and position + HEADER_BYTES <= available:
                self._fill_record(length)

    def _fill_record(self, length: int) -> None:
        frame_bytes = length + FRAME_OVERHEAD_BYTES
        left = None if self._size_bytes is None else self._size_bytes - self.offset
        if (left is not None and frame_bytes > left) or not self._fill(frame_bytes):
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
        while True:
            if not self._fill(HEADER_BYTES):
                self.skip(self.offset + HEADER_BYTES if limit is None else limit, sink)
                return False
            window_bytes = len(self._buffer) - self._position
            if self._size_bytes is None:
                longest = (1 << 63) - 1
            else:
                longest = self._size_bytes - self.offset - FRAME_OVERHEAD_BYTES
            window = np.frombuffer(
                self._buffer, np.uint8, window_bytes, offset=self._position
            )
            base = self.offset
            for candidate in _header_positions(window, longest).tolist():
                if limit is not None and base + candidate >= limit:
                    break
                if self._confirm(base + candidate, sink):
                    return True
            searched = base + window_bytes - HEADER_BYTES + 1
            if limit is not None and searched >= limit:
                self.skip(limit, sink)
                return False
            self.skip(searched, sink)

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


def _header_positions(
    window: npt.NDArray[np.uint8], longest: int
) -> npt.NDArray[np.int64]:
    """Returns where in a window a frame header can be, in rising order.

    Args:
        window: uint8 [n].
        longest: Length in bytes above which a record cannot fit.

    Returns:
        int64 [k]: positions p with a valid checksum in window[p : p + 12].
    """
    count = len(window) - HEADER_BYTES + 1
    if count <= 0 or longest < 0:
        return np.empty(0, np.int64)
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
    return positions[masked == stored].astype(np.int64)
