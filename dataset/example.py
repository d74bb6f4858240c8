"""`tf.train.Example` messages, decoded without TensorFlow.

Source: tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Values = list[bytes] | list[float] | list[int]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("varint of more than 10 bytes")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(wire)
            if wire == 2:
                size, at = _varint(data, at)
            if not number or size is None or at + size > len(data):
                raise ValueError("not a protocol buffer message")
            value, at = data[at : at + size], at + size
        yield number, value


def _parts(data: bytes, number: int) -> Iterator[bytes]:
    for found, value in _fields(data):
        if found == number:
            if not isinstance(value, bytes):
                raise ValueError("not a tf.train.Example")
            yield value


def _floats(values: Iterator[int | bytes]) -> list[float]:
    floats: list[float] = []
    for value in values:
        if not isinstance(value, bytes) or len(value) % 4:
            raise ValueError("not a list of floats")
        floats += struct.unpack(f"<{len(value) // 4}f", value)
    return floats


def _ints(values: Iterator[int | bytes]) -> list[int]:
    ints: list[int] = []
    for value in values:
        if isinstance(value, int):
            ints.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            ints.append(number)
    return [number - (1 << 64) if number >> 63 else number for number in ints]


def _feature(data: bytes) -> Values:
    fields = list(_fields(data))
    kind, values = (
        fields[-1] if fields else (1, b"")
    )  # The last counts, as in protobuf.
    if not isinstance(values, bytes):
        raise ValueError("not a feature")  # noqa: TRY004 - the record is to blame
    if kind == 1:
        return list(_parts(values, 1))
    items = (value for number, value in _fields(values) if number == 1)
    if kind == 2:
        return _floats(items)
    if kind == 3:
        return _ints(items)
    raise ValueError("not a feature")


def decode_example(record: bytes) -> dict[str, Values]:
    """Decodes a serialized `tf.train.Example`.

    Args:
        record: The message.

    Returns:
        The values of each feature, by name.

    Raises:
        ValueError: The record is no such message.
    """
    features: dict[str, Values] = {}
    try:
        for part in _parts(record, 1):
            for entry in _parts(part, 1):
                name = b"".join(list(_parts(entry, 1))[-1:]).decode()
                feature = b"".join(list(_parts(entry, 2))[-1:])
                features[name] = _feature(feature)
        if any(number != 1 for number, _ in _fields(record)):
            raise ValueError("fields that tf.train.Example does not have")
    except (IndexError, UnicodeDecodeError, struct.error) as e:
        raise ValueError("not a tf.train.Example") from e
    return features
