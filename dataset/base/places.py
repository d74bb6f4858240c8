"""The place of each record: the number of its source file, and its place in that file.

Numbers count the list of sources of the write (`sources.read_sources`). A place is a
byte offset of the decompressed file, or the number of a record or row, as the format of
the file has it. docs/reference/format.md has the bytes of an encoded column.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

# Bits of a step, number of steps that need more, number of all steps.
_COLUMN = struct.Struct("<IIQ")
_CRC = struct.Struct("<I")
_FAR_BYTES = 12  # A position and a step.
_BLOCK = 1 << 16  # Steps packed at a time, to bound memory.


class Places(NamedTuple):
    """The sources of records, or of documents. Arrays are [records].

    Attributes:
        files: int64, the number of the source file of each.
        places: int64, its place in that file.
    """

    files: Int64
    places: Int64

    @classmethod
    def joined(cls, parts: Sequence[Places]) -> Self:
        """Returns the places of records that follow one another."""
        none = np.empty(0, np.int64)
        files, places = zip((none, none), *parts, strict=True)
        return cls(np.concatenate(files), np.concatenate(places))

    def taken(self, records: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Places:
        """Returns the places of some of the records."""
        return Places(self.files[records], self.places[records])

    def repeated(self, counts: Sequence[int]) -> Places:
        """Returns the place of each record, repeated by its count."""
        return Places(np.repeat(self.files, counts), np.repeat(self.places, counts))

    def encode(self) -> bytes:
        """Returns the places as bytes: 1 to 3 each in the order of a file.

        In any order it is at most 12 each.
        """
        if len(self.files) != len(self.places):
            raise ValueError(
                f"{len(self.files)} files of {len(self.places)} places of records"
            )
        body = b"".join((*encode_column(self.files), *encode_column(self.places)))
        return _CRC.pack(google_crc32c.value(body)) + body

    @classmethod
    def decode(cls, data: bytes | memoryview, records: int) -> Self:
        """Reads the places of a number of records.

        Raises:
            ValueError: They are damaged, or belong to other records.
        """
        body = bytes(data[_CRC.size :])
        if len(data) < _CRC.size or _CRC.unpack_from(data) != (
            google_crc32c.value(body),
        ):
            raise ValueError("a wrong checksum of the places of records")
        try:
            files, at = decode_column(body, 0, records)
            places, at = decode_column(body, at, records)
        except (IndexError, struct.error) as error:
            raise ValueError("places of records that are cut short") from error
        if at != len(body) or min(files.min(initial=0), places.min(initial=0)) < 0:
            raise ValueError("places of other records")
        return cls(files, places)


def encode_column(values: Int64) -> Iterator[bytes]:
    """Yields the bytes of a column: the steps from value to value, in few bits each."""
    steps = np.diff(values, prepend=0)
    far, bits = np.flatnonzero(steps), 0
    packed = b""
    if len(far) * _FAR_BYTES * 8 > len(steps):
        blocks = [steps[at : at + _BLOCK] for at in range(0, len(steps), _BLOCK)]
        sizes = np.concatenate([_sizes(block) for block in blocks])
        # Number of steps that take more than 0, 1, 2, ... bits.
        more = len(steps) - np.cumsum(np.bincount(sizes, minlength=65))
        bits = int(np.argmin(np.arange(65) * len(steps) + 8 * _FAR_BYTES * more))
        far = np.flatnonzero(sizes > bits)
        packed = b"".join(_packed(_signless(block), bits) for block in blocks)
    yield _COLUMN.pack(bits, len(far), len(steps))
    yield far.astype("<u4").tobytes()
    yield steps[far].astype("<i8").tobytes()
    yield packed


def _signless(steps: Int64) -> UInt64:
    """Returns steps as numbers above 0, in the order 0, -1, 1, -2 ..."""
    return ((steps << 1) ^ (steps >> 63)).view(np.uint64)


def _sizes(steps: Int64) -> npt.NDArray[np.uint8]:
    """Returns how many bits each step takes."""
    return np.minimum(np.frexp(_signless(steps))[1], 64).astype(np.uint8)


def _packed(numbers: UInt64, bits: int) -> bytes:
    """Returns the low bits of numbers, the lowest first, without gaps."""
    low = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : -(-bits // 8)]
    each = np.unpackbits(low, axis=1, count=bits, bitorder="little")
    return np.packbits(each, bitorder="little").tobytes()


def _unpacked(data: npt.NDArray[np.uint8], bits: int, count: int) -> UInt64:
    each = np.unpackbits(data, count=bits * count, bitorder="little")
    wide = np.zeros((count, 8), np.uint8)
    low = np.packbits(each.reshape(count, bits), axis=1, bitorder="little")
    wide[:, : low.shape[1]] = low
    return wide.view("<u8").ravel()


def decode_column(data: bytes, at: int, count: int) -> tuple[Int64, int]:
    """Returns a column of `count` values that begins at `at`, and where it ends.

    Raises ValueError, IndexError or struct.error if it is another or damaged.
    """
    bits, far, records = _COLUMN.unpack_from(data, at)
    at += _COLUMN.size
    packed_bytes = -(-bits * count // 8)
    end = at + _FAR_BYTES * far + packed_bytes
    if bits > 64 or records != count or end > len(data):
        raise ValueError("places of another number of records")
    positions = np.frombuffer(data, "<u4", far, at)
    steps = np.zeros(count, np.int64)
    packed = np.frombuffer(data, np.uint8, packed_bytes, end - packed_bytes)
    for begin in range(0, count if bits else 0, _BLOCK):
        some = slice(begin, min(begin + _BLOCK, count))
        numbers = _unpacked(packed[begin * bits // 8 :], bits, some.stop - begin)
        steps[some] = (numbers >> np.uint64(1)).view(np.int64)
        steps[some] ^= -(numbers & np.uint64(1)).view(np.int64)
    steps[positions] = np.frombuffer(data, "<i8", far, at + 4 * far)
    return np.cumsum(steps), end
