"""`tf.train.Example` messages, decoded without TensorFlow.

Source: tensorflow/core/example/example.proto and feature.proto. Messages may be split
and repeated, lists packed or not: what protocol buffers allow, this reads as they do.
Fields that the messages do not have are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from gristmill.dataset.protobuf import message_fields
from gristmill.dataset.varints import varint_at

Values = list[bytes] | list[float] | list[int]

NO_KIND, BYTES, FLOATS, INTS = range(4)
"""Which list a feature holds, by the number of its field in `Feature`."""


class RawFeature(NamedTuple):
    """A feature whose numbers are still encoded.

    Attributes:
        kind: `BYTES`, `FLOATS`, `INTS`, or `NO_KIND` of one that is not set.
        parts: The values of bytes; of numbers pieces of the packed list.
    """

    kind: int
    parts: list[bytes]


def _parts(data: bytes, numbers: int, what: str) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of a message's fields, all of them messages or bytes."""
    for number, wire, value in message_fields(data):
        if wire != 2 or number > numbers:
            raise ValueError(
                f"not a tf.train.Example: {what} has a field {number} of wire type "
                f"{wire}"
            )
        yield number, value


def _feature(data: bytes) -> RawFeature:
    kind, payload = NO_KIND, b""
    for number, value in _parts(data, 3, "Feature"):
        # Of different lists the last counts; pieces of one list are merged.
        payload = payload + value if number == kind else value
        kind = number
    if kind in (NO_KIND, BYTES):
        return RawFeature(kind, [v for _, v in _parts(payload, 1, "BytesList")])
    parts = []
    for number, wire, value in message_fields(payload):
        if number != 1 or wire not in (2, 5 if kind == FLOATS else 0):
            raise ValueError("not a list of numbers")
        if kind == FLOATS and len(value) % 4:
            raise ValueError(f"a list of floats of {len(value)} bytes")
        if kind == INTS and value[-1:] >= b"\x80":
            raise ValueError("a list of integers that ends within a number")
        parts.append(value)
    return RawFeature(kind, parts)


def raw_features(record: bytes) -> dict[bytes, RawFeature]:
    """Returns the features of a `tf.train.Example` by their encoded names.

    Raises ValueError if the record is no such message.
    """
    features: dict[bytes, RawFeature] = {}
    try:
        for _, part in _parts(record, 1, "Example"):
            for _, entry in _parts(part, 1, "Features"):
                name = value = b""
                for number, data in _parts(entry, 2, "an entry of Features"):
                    if number == 1:
                        name = data
                    else:
                        value += data
                features[name] = _feature(value)
    except IndexError as e:
        raise ValueError("not a tf.train.Example: it is cut short") from e
    return features


def _ints(data: bytes) -> list[int]:
    ints: list[int] = []
    at = 0
    while at < len(data):
        number, at = varint_at(data, at, bits=64)
        ints.append(number - (1 << 64) if number >> 63 else number)
    return ints


def decode_example(record: bytes) -> dict[str, Values]:
    """Returns the values of each feature of a serialized `tf.train.Example`, by name.

    Raises ValueError if the record is no such message.
    """
    features: dict[str, Values] = {}
    try:
        for name, (kind, parts) in raw_features(record).items():
            values: Values = parts
            if kind == FLOATS:
                data = b"".join(parts)
                values = list(struct.unpack(f"<{len(data) // 4}f", data))
            elif kind == INTS:
                values = _ints(b"".join(parts))
            features[name.decode()] = values
    except (IndexError, UnicodeDecodeError) as e:
        raise ValueError("not a tf.train.Example") from e
    return features


def _length_delimited(number: int, data: bytes) -> bytes:
    out = bytearray([number << 3 | 2])
    size = len(data)
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data


def canonical_example(record: bytes) -> bytes:
    """Returns a `tf.train.Example` as the official writers encode it.

    Each message is in one piece, each feature there once, its name before its value,
    each list of numbers packed. Raises ValueError if the record is no such message.
    """
    entries = bytearray()
    for name, (kind, parts) in raw_features(record).items():
        if kind == BYTES:
            items = b"".join(_length_delimited(1, part) for part in parts)
        else:
            items = b"".join(parts)
            items = _length_delimited(1, items) if items else b""
        value = b"" if kind == NO_KIND else _length_delimited(kind, items)
        entry = _length_delimited(1, name) + _length_delimited(2, value)
        entries += _length_delimited(1, entry)
    return _length_delimited(1, bytes(entries))
