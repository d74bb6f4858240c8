"""Varints, one or many at a time, and fields of protocol buffer messages.

Seven bits a byte, the lowest first; the high bit says that more follow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MAX_VARINT_BYTES = 9  # For a number below 2**63, which is what int64 holds.

_BYTES = [bytes([value]) for value in range(256)]

IntArray = npt.NDArray[np.int64]


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
    """Encodes non-negative numbers, all at once.

    Returns:
        uint8 [bytes], the varints end to end, and int64 [values], bytes of each.
    """
    lengths = np.ones(len(values), np.int64)
    for index in range(1, MAX_VARINT_BYTES):
        lengths += values >= 1 << 7 * index
    starts = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.uint8)
    for index in range(int(lengths.max(initial=0))):
        has = np.flatnonzero(lengths > index)
        more = (lengths[has] > index + 1).astype(np.uint8) << 7
        byte = (values[has] >> 7 * index & 0x7F).astype(np.uint8)
        data[starts[has] + index] = byte | more
    return data, lengths


def encode_int64s(values: IntArray) -> bytes:
    """Encodes numbers as the `int64` of protocol buffers: negative ones take ten bytes.

    Args:
        values: int64 [values].
    """
    words = values.view(np.uint64)
    largest = int(words.max(initial=0))
    if largest < 0x80:
        return words.astype(np.uint8).tobytes()
    longest = -(-largest.bit_length() // 7)
    rest = words[:, None] >> (7 * np.arange(longest, dtype=np.uint64))
    data = rest.astype(np.uint8) | 0x80
    has = rest > 0
    has[:, 0] = True
    # The last byte of each has no byte after it.
    data[:, :-1] &= (has[:, 1:] << 7).astype(np.uint8) | 0x7F
    data[:, -1] &= 0x7F
    return data[has].tobytes()


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
