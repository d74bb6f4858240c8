"""Varints, one or many at a time, and fields of protocol buffer messages.

Seven bits a byte, the lowest first; the high bit says that more follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_VARINT_BYTES = 9  # For a number below 2**63, which is what int64 holds.

_BYTES = [bytes([value]) for value in range(256)]

IntArray = npt.NDArray[np.int64]
_BLOCK = 1 << 15  # Numbers that are encoded at once: what the caches hold.


def varint_at(data: bytes | memoryview, at: int, bits: int = 63) -> tuple[int, int]:
    """Decodes the varint at a position; returns the number and the position after.

    Args:
        data: Bytes that contain the varint.
        at: Where it begins.
        bits: Maximum number of bits; only the low 64 bits of ten bytes count.

    Raises:
        IndexError: It is cut short.
        ValueError: It takes more bytes than so many bits need.
    """
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while shift < bits:
        byte = data[at]
        at += 1
        if byte < 0x80:
            return (value | byte << shift) & 0xFFFFFFFFFFFFFFFF, at
        value |= (byte & 0x7F) << shift
        shift += 7
    raise ValueError(f"varint above 2**{bits}")


def decode_varints(data: npt.NDArray[np.uint8]) -> IntArray:
    """Decodes bytes that hold varints and nothing else, all at once."""
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise ValueError("the last varint is cut short")
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if (lengths > MAX_VARINT_BYTES).any():
        raise ValueError("varint above 2**63")
    values = data[ends].astype(np.int64)
    for back in range(1, int(lengths.max(initial=0))):
        longer = lengths > back
        byte = data[ends - back] & 0x7F
        values = np.where(longer, values << 7 | byte, values)
    return values


def encode_varint(value: int) -> bytes:
    """Encodes one non-negative number."""
    if value < 0x80:
        return _BYTES[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_varints(values: IntArray) -> tuple[npt.NDArray[np.uint8], IntArray]:
    """Encodes numbers, all at once; negative ones take ten bytes, as in messages.

    Returns:
        uint8 [bytes], the varints end to end, and int64 [values], bytes of each.
    """
    numbers = values.view(np.uint64)
    if len(numbers) <= _BLOCK:
        return _varint_block(numbers)
    blocks = [
        _varint_block(numbers[at : at + _BLOCK])
        for at in range(0, len(numbers), _BLOCK)
    ]
    data, sizes = zip(*blocks, strict=True)
    return np.concatenate(data), np.concatenate(sizes)


def _varint_block(numbers: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint8], IntArray]:
    largest, sizes = int(numbers.max(initial=0)), np.ones(len(numbers), np.int64)
    if largest < 0x80:
        return numbers.astype(np.uint8), sizes
    width = -(-largest.bit_length() // 7)
    if width <= 4:  # With four bytes a number, the work is halved.
        numbers = numbers.astype(np.uint32)
    table = np.empty((len(numbers), width), np.uint8)
    used = np.ones((len(numbers), width), bool)
    for index in range(width - 1):
        low, numbers = numbers.astype(np.uint8), numbers >> 7
        more = np.not_equal(numbers, 0, out=used[:, index + 1])
        np.bitwise_or(low & 0x7F, more.view(np.uint8) << 7, out=table[:, index])
        sizes += more
    table[:, -1] = numbers
    # Twice as fast as `table[used]`.
    return np.compress(used.ravel(), table.ravel()), sizes


def varints_at(
    data: npt.NDArray[np.uint8], positions: IntArray
) -> tuple[IntArray, IntArray]:
    """Decodes the varint at each position; returns values and the positions after."""
    first = data[positions]
    values, after = (first & 0x7F).astype(np.int64), positions + 1
    going = np.flatnonzero(first >= 0x80)
    for index in range(1, MAX_VARINT_BYTES):
        if not len(going):
            return values, after
        byte = data[after[going]].astype(np.int64)
        values[going] |= (byte & 0x7F) << (7 * index)
        after[going] += 1
        going = going[byte >= 0x80]
    if len(going):
        raise ValueError("varint above 2**63")
    return values, after


def message_fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields the number, wire type and bytes of each field; varints stay encoded.

    Raises ValueError if the bytes are not a message, IndexError if they end in a
    varint.
    """
    at = 0
    while at < len(data):
        key, at = varint_at(data, at, bits=64)
        number, wire = key >> 3, key & 7
        if wire == 0:
            _, end = varint_at(data, at, bits=64)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                size, at = varint_at(data, at, bits=64)
            if size is None:
                raise ValueError(f"not a protocol buffer message: wire type {wire}")
            end = at + size
        if not number:
            raise ValueError("not a protocol buffer message: field number 0")
        if end > len(data):
            raise ValueError("not a protocol buffer message: a field reaches past it")
        yield number, wire, data[at:end]
        at = end


def varint_field(number: int, value: int) -> bytes:
    """Encodes a field that is a number."""
    return encode_varint(number << 3) + encode_varint(value)


def bytes_field(number: int, value: bytes) -> bytes:
    """Encodes a field that is bytes, text or a message."""
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value
