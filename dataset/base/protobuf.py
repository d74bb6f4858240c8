"""Fields of protocol buffer messages."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.dataset.base.varints import encode_varint, varint_at


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
