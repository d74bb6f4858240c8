"""`tf.train.Example` messages, decoded and encoded without TensorFlow.

Source: tensorflow/core/example/example.proto and feature.proto. Messages may be split
and repeated, lists packed or not: this reader accepts whatever protocol buffers accept.
Fields that the messages do not have are refused.
"""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.varints import (
    bytes_field,
    encode_varint,
    encode_varints,
    message_fields,
    varint_at,
)

Values = list[bytes] | list[float] | list[int]

_UINT64 = (1 << 64) - 1

NO_KIND, BYTES, FLOATS, INTS = range(4)
"""Which list a feature holds, by the number of its field in `Feature`."""


class RawFeature(NamedTuple):
    """A feature whose numbers are still encoded.

    Attributes:
        kind: `BYTES`, `FLOATS`, `INTS`, or `NO_KIND` if it is not set.
        parts: The values if they are bytes; if they are numbers, pieces of the packed
            list.
    """

    kind: int
    parts: list[bytes]


def _parts(data: bytes, numbers: int, what: str) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of each field of a message of messages or bytes."""
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
        # The last of several different lists counts; pieces of one list are merged.
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

    Raises ValueError if the record is not such a message.
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

    Raises ValueError if the record is not such a message.
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


def canonical_example(record: bytes) -> bytes:
    """Returns a `tf.train.Example` as the official writers encode it.

    Each message is in one piece, each feature occurs once, its name before its value,
    each list of numbers packed. Raises ValueError if the record is not such a message.
    """
    entries = bytearray()
    for name, (kind, parts) in raw_features(record).items():
        if kind == BYTES:
            items = b"".join(bytes_field(1, part) for part in parts)
        else:
            items = b"".join(parts)
            items = bytes_field(1, items) if items else b""
        value = b"" if kind == NO_KIND else bytes_field(kind, items)
        entry = bytes_field(1, name) + bytes_field(2, value)
        entries += bytes_field(1, entry)
    return bytes_field(1, bytes(entries))


# What wraps the values of each kind: the number of the list's field in `Feature`.
_LIST_KEYS = {BYTES: b"\x0a", FLOATS: b"\x12", INTS: b"\x1a"}
_FEW_INTS = 12  # This few are encoded faster one by one than by NumPy.
_INT64S = range(-(1 << 63), 1 << 63)
_EXPECTED = (
    "text, bytes, integers, floats or booleans: one, a list of one kind, or an array"
)


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Encodes a `tf.train.Example` without TensorFlow.

    The bytes are those of TensorFlow's `SerializeToString(deterministic=True)`:
    features in the order of `ordered_names`, lists of numbers packed. So equal features
    give equal bytes, in whatever order they come.

    | a value, or a list, tuple or array of them | becomes |
    | --- | --- |
    | text (as UTF-8), bytes | `bytes_list` |
    | integers and booleans, from -2**63 to 2**63 - 1 | `int64_list` |
    | floats, rounded to 32 bits as `float_list` has them | `float_list` |
    | an empty list or tuple | a feature without a list |

    An array is flattened, the last axis first (C order), and decides by its dtype, also
    where it is empty: its shape is not kept. Anything with `__array__`, such as a
    `jax.Array`, is an array.

    Args:
        features: The value of each feature, by name.

    Raises:
        InputError: A value cannot be encoded: None, nested lists, several kinds in one
            list, an integer or a float that is too large. The error names the feature.
    """
    pieces = [b""]
    for encoded, name in ordered_names(features):
        value = features[name]
        kind = _KINDS.get(type(value))
        try:
            if kind is not None:
                items = _items(kind, [value])
            elif isinstance(value, list | tuple):
                kind, items = _of_list(value)
            else:
                kind, items = _of_object(value)
        except _EncodingError as e:
            what, got, cure = e.args
            raise InputError(
                f"a feature of a tf.train.Example cannot be encoded: {what}",
                where=f"feature {name!r}",
                expected=_EXPECTED,
                got=got,
                cure=cure,
            ) from e.__cause__
        size = sum(map(len, items))
        head = b"" if kind == NO_KIND else _LIST_KEYS[kind] + encode_varint(size)
        entry = b"\x0a%b%b\x12%b%b" % (
            encode_varint(len(encoded)),
            encoded,
            encode_varint(len(head) + size),
            head,
        )
        pieces += (b"\x0a" + encode_varint(len(entry) + size) + entry, *items)
    pieces[0] = b"\x0a" + encode_varint(sum(map(len, pieces)))
    return b"".join(pieces)


def ordered_names(names: Iterable[str]) -> list[tuple[bytes, str]]:
    """Returns feature names in the order of an example: in UTF-8, and as they are.

    Sorted by their bytes; a name comes after those that begin with it, as in the
    deterministic order of protocol buffers in Python (upb).

    >>> [name for _, name in ordered_names(["a", "b", "a/b"])]
    ['a/b', 'a', 'b']

    Raises:
        InputError: A name is not text, or not Unicode.
    """
    try:
        # No byte of UTF-8 is 0xff.
        return sorted(
            ((name.encode(), name) for name in names),
            key=lambda pair: pair[0] + b"\xff",
        )
    except (AttributeError, UnicodeEncodeError) as e:
        raise InputError(
            "the name of a feature cannot be encoded",
            expected="texts as names",
            got=ascii([*names])[:100],
            cure="give text as names",
        ) from e


class _EncodingError(Exception):
    """A value that cannot be encoded: its fault, the value as text, and the cure."""


# By exact type, as this is looked up for every value.
_KINDS: dict[type, int] = {
    **dict.fromkeys((bytes, str, bytearray, memoryview), BYTES),
    **dict.fromkeys((int, bool), INTS),
    float: FLOATS,
}


def _kind_of(kind: type) -> int | None:
    """Returns the kind of list for values of a type, None if there is none."""
    if kind in _KINDS:
        return _KINDS[kind]
    bases = (str, bytes, bytearray, memoryview), (float, np.floating)
    for number, types in zip((BYTES, FLOATS), bases, strict=True):
        if issubclass(kind, types):
            return number
    return INTS if issubclass(kind, int | np.integer | np.bool_) else None


def _of_list(values: Sequence[Any]) -> tuple[int, list[bytes]]:
    """Returns the kind of a list, and its encoded content in pieces."""
    types = set(map(type, values))
    if not types:
        return NO_KIND, []
    kinds = {_kind_of(each) for each in types}
    if None in kinds:
        at = next(i for i, value in enumerate(values) if _kind_of(type(value)) is None)
        value = values[at]
        what, cure = _reason(value)
        if isinstance(value, list | tuple | dict | np.ndarray):
            what = "it is nested"
            cure = "flatten it: one list, or one array, which is flattened in C order"
        raise _EncodingError(what, f"{_shown(value)} at [{at}]", cure)
    if len(kinds) > 1:
        found = " and ".join(sorted(each.__name__ for each in types))
        raise _EncodingError(
            "a list has values of several kinds", found, "convert all to one of these"
        )
    kind = next(iter(kinds)) or NO_KIND
    if not types <= _KINDS.keys() and kind != BYTES:
        values = [(int if kind == INTS else float)(value) for value in values]
    return kind, _items(kind, values)


def _of_object(value: Any) -> tuple[int, list[bytes]]:
    """Returns the same for an array, or for a value of a derived type."""
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return _of_array(np.asarray(value))
    if _kind_of(type(value)) is not None:
        return _of_list([value])
    what, cure = _reason(value)
    raise _EncodingError(what, _shown(value), cure)


def _of_array(given: np.ndarray[Any, Any]) -> tuple[int, list[bytes]]:
    values = given.reshape(-1)
    kind = values.dtype.kind
    if kind in "bui":
        if values.dtype == np.uint64 and len(values) and int(values.max()) >> 63:
            raise _beyond(int(values.max()))
        return INTS, _packed(encode_varints(values.astype(np.int64))[0].tobytes())
    if kind in "SUTO":
        return _of_list(values.tolist()) if len(values) or kind == "O" else (BYTES, [])
    # The types of ml_dtypes, such as bfloat16, are of kind V.
    if kind == "f" or (kind == "V" and np.can_cast(values.dtype, np.float32, "safe")):
        with np.errstate(over="ignore"):
            floats = values.astype("<f4")
        beyond = np.isinf(floats) & ~np.isinf(values) if kind == "f" else np.zeros(0)
        if beyond.any():
            raise _beyond(float(values[beyond.argmax()]))
        return FLOATS, _packed(floats.tobytes())
    raise _EncodingError(
        "an array has a dtype that no list of a feature can hold",
        f"{given.dtype}",
        "convert it, such as with values.astype(np.int64)",
    )


def _items(kind: int, values: Sequence[Any]) -> list[bytes]:
    """Returns the encoded content of a list, in pieces."""
    if kind == BYTES:
        items: list[bytes] = []
        for value in values:
            try:
                item = value.encode() if isinstance(value, str) else bytes(value)
            except UnicodeEncodeError as e:
                cure = 'encode it to bytes, such as with "surrogateescape"'
                raise _EncodingError("a text is not Unicode", ascii(value), cure) from e
            items += (b"\x0a" + encode_varint(len(item)), item)
        return items
    if kind == FLOATS:
        try:
            return _packed(struct.pack(f"<{len(values)}f", *values))
        except OverflowError as e:
            raise _beyond(max(filter(math.isfinite, values), key=abs)) from e
    try:
        numbers = array.array("q", values)
    except OverflowError as e:
        raise _beyond(next(v for v in values if v not in _INT64S)) from e
    if len(numbers) > _FEW_INTS:
        return _packed(encode_varints(np.frombuffer(numbers, np.int64))[0].tobytes())
    return _packed(b"".join([encode_varint(value & _UINT64) for value in numbers]))


def _packed(data: bytes) -> list[bytes]:
    return [b"\x0a" + encode_varint(len(data)), data] if data else []


def _beyond(value: float) -> _EncodingError:
    bits = "64-bit integer" if isinstance(value, int) else "32-bit float"
    cure = "give it as text, or scale it"
    return _EncodingError(f"a number does not fit into a {bits}", value, cure)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"


def _reason(value: Any) -> tuple[str, str]:
    if value is None:
        return "it is None", "leave the feature out, or give an empty list"
    return "no list of a feature can hold it", "convert it to one of these"
