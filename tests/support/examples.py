"""`tf.train.Example` messages, by TensorFlow's own writer and by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

Values = Sequence[bytes] | Sequence[float] | Sequence[int]

INT64S = st.one_of(
    st.integers(-3, 300),
    st.integers(0, 60_000),
    st.integers(-(1 << 63), (1 << 63) - 1),
)
FLOATS = st.floats(width=32, allow_nan=False)
BYTES = st.binary(max_size=20)


def tf_feature(values: Values) -> Any:
    """Returns a feature of the kind of its first value; without one, of bytes."""
    import tensorflow as tf

    first = values[0] if len(values) else b""
    if isinstance(first, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(first, float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def tf_example(features: Mapping[str, Values]) -> bytes:
    """Returns an example as TensorFlow writes it."""
    import tensorflow as tf

    named = {name: tf_feature(values) for name, values in features.items()}
    example = tf.train.Example(features=tf.train.Features(feature=named))
    return example.SerializeToString(deterministic=True)


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number: int, data: bytes) -> bytes:
    """Returns a field of wire type 2."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def bytes_list(values: Sequence[bytes]) -> bytes:
    return message(1, b"".join(message(1, value) for value in values))


def float_list(values: Sequence[float], *, packed: bool = True) -> bytes:
    if not packed:
        return message(2, b"".join(b"\x0d" + struct.pack("<f", v) for v in values))
    return message(2, message(1, struct.pack(f"<{len(values)}f", *values)))


def int64_list(values: Sequence[int], *, packed: bool = True) -> bytes:
    if not packed:
        return message(3, b"".join(b"\x08" + varint(v) for v in values))
    return message(3, message(1, b"".join(map(varint, values))))


def entry(name: str, feature: bytes) -> bytes:
    """Returns an entry of the map of features."""
    return message(1, message(1, name.encode()) + message(2, feature))


def example(*entries: bytes) -> bytes:
    """Returns an example of entries, in their order."""
    return message(1, b"".join(entries))


# What protocol buffers allow and the official writers do not write.
UNUSUAL = {
    "unpacked integers": example(
        entry("i", int64_list([1, -2, 1 << 40], packed=False))
    ),
    "unpacked floats": example(entry("f", float_list([1.5, -2.0], packed=False))),
    "packed in pieces": example(
        entry("i", message(3, message(1, varint(5) + varint(300)) + b"\x08\x07"))
    ),
    "a name twice": example(
        entry("i", int64_list([1])),
        entry("b", bytes_list([b"x"])),
        entry("i", int64_list([2])),
    ),
    "other order": example(
        entry("f", float_list([1.0])),
        entry("b", bytes_list([b"y"])),
        entry("i", int64_list([3])),
    ),
    "features in two pieces": example(entry("i", int64_list([1])))
    + example(entry("f", float_list([2.0]))),
    "a kind twice": example(entry("i", int64_list([1]) + int64_list([2, 3]))),
    "two kinds": example(entry("i", bytes_list([b"no"]) + int64_list([2]))),
    "value before name": message(
        1, message(1, message(2, int64_list([4])) + message(1, b"i"))
    ),
    "value in two pieces": message(
        1,
        message(
            1,
            message(1, b"i")
            + message(2, int64_list([4]))
            + message(2, int64_list([5])),
        ),
    ),
    "long lengths": b"\x0a\x8c\x80\x00" + entry("i", int64_list([6])),
    "ten-byte numbers": example(entry("i", int64_list([-1, 7, -(1 << 63)]))),
    "unset feature": example(entry("i", b""), entry("b", bytes_list([b"z"]))),
    "empty lists": example(
        entry("i", int64_list([])),
        entry("f", message(2, b"")),
        entry("b", bytes_list([])),
    ),
    "no features": example(),
    "nothing": b"",
    "no value": example(message(1, message(1, b"i"))),
    "no name": example(message(1, message(2, int64_list([8])))),
}


def parsed(record: bytes) -> dict[str, list[Any]]:
    """What protocol buffers make of a record."""
    import tensorflow as tf

    found = {}
    for name, feature in tf.train.Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = [] if kind is None else list(getattr(feature, kind).value)
    return found
