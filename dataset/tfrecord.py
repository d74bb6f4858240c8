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
from collections.abc import Iterator
from typing import Literal, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import CorruptInputError

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES

# Longest record that is believed: no chunk of an ArrayRecord file could hold more.
MAX_RECORD_BYTES = 1 << 31

MASK_DELTA = 0xA282EAD8
HEADER = struct.Struct("<QI")
U32 = struct.Struct("<I")

_SEARCH_BYTES = 1 << 18  # Searched for a frame at once: arrays of it fit in caches.
_crc32c = google_crc32c.value

Compression = Literal["none", "gzip", "zlib"]
WINDOW_BITS = {"gzip": 31, "zlib": 15}


def mask(crc32c: int) -> int:
    """Returns the masked form of a checksum, as TFRecord files store it."""
    return ((crc32c >> 15 | crc32c << 17) + MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """Returns the crc32c of which `masked` is the masked form.

    >>> unmask(mask(0x12345678)) == 0x12345678
    True
    """
    rotated = (masked - MASK_DELTA) & 0xFFFFFFFF
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
            U32.pack(mask(_crc32c(length))),
            record,
            U32.pack(mask(_crc32c(record))),
        )
    )


def is_header(head: bytes) -> bool:
    """Tells whether bytes begin with the header of a frame."""
    if len(head) < HEADER_BYTES:
        return False
    (stored,) = U32.unpack_from(head, 8)
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
        zlib.decompressobj(WINDOW_BITS["zlib"]).decompress(head)
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


def header_positions(window: npt.NDArray[np.uint8], longest: int) -> Iterator[int]:
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
    masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(MASK_DELTA)
    stored = np.zeros(len(positions), np.uint32)
    for index in range(4):
        byte = window[positions + 8 + index].astype(np.uint32)
        stored |= byte << np.uint32(8 * index)
    hits: npt.NDArray[np.int64] = positions[masked == stored]
    return hits
