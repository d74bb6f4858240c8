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
from typing import Any, NamedTuple, overload

import google_crc32c
import numpy as np
import numpy.typing as npt

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


class Frame(NamedTuple):
    """One record and its place.

    Attributes:
        offset: First byte of the frame in the (decompressed) file.
        record: The record.
        crc32c: The (unmasked) checksum that came with it, already checked.
    """

    offset: int
    record: bytes
    crc32c: int


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
    headers = headers_at(window, positions)
    fits = mask(header_crc32cs(headers)) == headers["masked_crc32c"]
    hits: npt.NDArray[np.int64] = positions[fits]
    return hits
