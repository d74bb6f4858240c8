"""`tf.train.Example` messages, by the library that TensorFlow uses and by hand.

The classes of messages are made here: to import TensorFlow for them takes seconds and
hundreds of megabytes, in each process of the tests.
"""

import struct
from collections.abc import Sequence

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from hypothesis import strategies as st

Values = Sequence[bytes] | Sequence[float] | Sequence[int]

INT64S = st.one_of(
    st.integers(-3, 300), st.integers(0, 60_000), st.integers(-(1 << 63), (1 << 63) - 1)
)
FLOATS = st.floats(width=32, allow_nan=False)
BYTES = st.binary(max_size=20)


# As tensorflow/core/example/*.proto declare them.
MESSAGES = """
name: "tests/example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".tensorflow.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
      type_name: ".tensorflow.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".tensorflow.Features" } }
"""
_pool = descriptor_pool.DescriptorPool()
_pool.Add(text_format.Parse(MESSAGES, descriptor_pb2.FileDescriptorProto()))


def _message(name):
    described = _pool.FindMessageTypeByName(f"tensorflow.{name}")
    return message_factory.GetMessageClass(described)


Example, Features, Feature = map(_message, ("Example", "Features", "Feature"))
BytesList, FloatList, Int64List = map(_message, ("BytesList", "FloatList", "Int64List"))


def tf_feature(values):
    """Returns a feature of the kind of its first value; without one, of bytes."""
    first = values[0] if len(values) else b""
    if isinstance(first, bytes):
        return Feature(bytes_list=BytesList(value=values))
    if isinstance(first, float):
        return Feature(float_list=FloatList(value=values))
    return Feature(int64_list=Int64List(value=values))


def tf_example(features):
    """Returns an example as TensorFlow writes it."""
    named = {name: tf_feature(values) for name, values in features.items()}
    example = Example(features=Features(feature=named))
    return example.SerializeToString(deterministic=True)


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number, data):
    """Returns a field of wire type 2."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def bytes_list(values):
    return message(1, b"".join(message(1, value) for value in values))


def float_list(values, *, packed=True):
    if not packed:
        return message(2, b"".join(b"\x0d" + struct.pack("<f", v) for v in values))
    return message(2, message(1, struct.pack(f"<{len(values)}f", *values)))


def int64_list(values, *, packed=True):
    if not packed:
        return message(3, b"".join(b"\x08" + varint(v) for v in values))
    return message(3, message(1, b"".join(map(varint, values))))


def entry(name, feature):
    """Returns an entry of the map of features."""
    return message(1, message(1, name.encode()) + message(2, feature))


def example(*entries):
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


def parsed(record):
    """What protocol buffers make of a record."""
    found = {}
    for name, feature in Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = [] if kind is None else list(getattr(feature, kind).value)
    return found
