"""Values of JSON: the elements of an array, their types, and what a column takes."""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.dataset.base.errors import CorruptStreamError
from gristmill.dataset.formats.streams import Readable
from gristmill.transforms.sources.lines.line_source import LineReader
from gristmill.transforms.sources.lines.strict_json import Number, text_of
from gristmill.transforms.tables.table_features import INT64, is_lost, whole_number

_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS = np.zeros(256, np.int64)
_STEPS[[*b"[{"]], _STEPS[[*b"]}"]] = 1, -1
_BLANK = np.zeros(256, np.bool_)
_BLANK[[*b" \t\r\n", *codecs.BOM_UTF8]] = True


class ArrayLines:
    r"""A stream in which each element of an array is a line of its own.

    A comma between elements becomes the end of a line; the brackets of the array, and
    ends of lines between tokens, become blanks. All else stays, also what is no JSON:
    the parser of the lines names it.

    >>> ArrayLines(io.BytesIO(b'[{"a":\n[1, 2]}, {}]'), path="x").read(99)
    b' {"a": [1, 2]}\n {} '

    Args:
        stream: The array.
        path: Its file, for messages.
        inside: Whether the stream begins with an element.
    """

    def __init__(self, stream: Readable | BinaryIO, *, path: str, inside: bool = False):
        self._stream, self._path = stream, path
        self._depth = int(inside)
        self._in_text = False
        # Since the last comma or bracket of the array: any element, and its bracket.
        self._filled, self._first = False, not inside
        self._left = b""

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes, none only at the end.

        Raises CorruptStreamError if the array has no end.
        """
        while True:
            read = self._stream.read(max(size - len(self._left), 1))
            data = self._left + read
            # What a backslash at the end escapes is not known yet.
            odd = (len(data) - len(data.rstrip(b"\\"))) % 2 if read else 0
            self._left = data[len(data) - odd :]
            data = data[: len(data) - odd]
            if data or not read:
                break
        if not data and self._depth > 0:
            raise CorruptStreamError(
                "array of JSON has no end",
                where=self._path,
                expected="a bracket that closes it",
                got="the end of the file",
                cure="copy the file again: it is cut off",
            )
        return self._lines(data) if data else data

    def _lines(self, data: bytes) -> bytes:
        plain = _ESCAPED.sub(b"__", data) if b"\\" in data else data
        found = np.frombuffer(plain, np.uint8)
        # A quote that opens a text is in it, one that closes it is not.
        quoted = np.logical_xor.accumulate(found == ord('"')) ^ self._in_text
        self._in_text = bool(quoted[-1])
        steps = np.where(quoted, 0, _STEPS[found])
        depths = self._depth + np.cumsum(steps)
        self._depth = int(depths[-1])
        out = np.frombuffer(bytearray(data), np.uint8)
        out[~quoted & (found == ord("\n"))] = ord(" ")
        opens = (depths == 1) & (steps == 1) & (found == ord("["))
        commas = (depths == 1) & ~quoted & (found == ord(","))
        closes = (depths == 0) & (steps == -1) & (found == ord("]"))
        self._cut(out, np.flatnonzero(opens | commas | closes), ~_BLANK[found])
        return out.tobytes()

    def _cut(
        self,
        out: npt.NDArray[np.uint8],
        places: npt.NDArray[np.int64],
        shown: npt.NDArray[np.bool_],
    ) -> None:
        """Writes blanks and ends of lines, unless an element is missing."""
        counts = np.concatenate([[0], np.cumsum(shown)])
        begin = 0
        for place in places.tolist():
            filled = self._filled or counts[place] > counts[begin]
            byte = out[place]
            if byte == ord(","):
                if filled:
                    out[place] = ord("\n")
            elif (byte == ord("[") and not filled) or (
                byte == ord("]") and (filled or self._first)
            ):
                out[place] = ord(" ")
            self._first, self._filled = byte == ord("["), False
            begin = place + 1
        self._filled = self._filled or bool(counts[-1] > counts[begin])


class ArrayReader(LineReader):
    """Reads the elements of an array; see `LineReader`."""

    item = "element"

    @classmethod
    def as_lines(cls, data: bytes, path: str) -> bytes:
        """Returns the first elements of a file, each on a line of its own."""
        lines, pieces = ArrayLines(io.BytesIO(data), path=path), []
        with contextlib.suppress(CorruptStreamError):  # Its end is not among them.
            while piece := lines.read(len(data)):
                pieces.append(piece)
        return b"".join(pieces)

    def restart(self, stream: Readable | BinaryIO) -> None:
        inside = self.offset > 0
        super().restart(ArrayLines(stream, path=self.path, inside=inside))


JSON_TEXT = pa.string_view()
"""The type of a column that keeps any values, as JSON."""

_NAMES: dict[pa.DataType, str] = {
    pa.null(): "null",
    pa.bool_(): "true or false",
    pa.int64(): "an integer of 64 bits",
    pa.float32(): "a number",
    pa.float64(): "a number",
    pa.string(): "a string",
    pa.large_string(): "a string or a number",
}


class DifferentTypesError(Exception):
    """Two values of a field without a common type.

    Attributes:
        field: The field.
        got: Their types.
    """

    def __init__(self, field: str, got: str):
        super().__init__(field)
        self.field, self.got = field, got


class UnfitError(Exception):
    """A value that a column does not take.

    Attributes:
        expected: The expected value, with its field.
        got: The value.
        is_lost: Whether it is a whole number that a float32 does not hold.
    """

    def __init__(self, expected: str, got: str, *, is_lost: bool = False):
        super().__init__(got)
        self.expected, self.got, self.is_lost = expected, got, is_lost


def type_of(value: Any, field: str = "") -> pa.DataType:
    """Returns the type of a value that `json` has read.

    Raises:
        DifferentTypesError: A list holds values of different types, or an integer is
            too large.
    """
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if value not in INT64:
            raise DifferentTypesError(field, "an integer of more than 64 bits")
        return pa.int64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        inner = pa.null()
        if set(map(type, value)) <= {float, int}:  # All at once, as lists can be long.
            value = [*_extremes(value)]
        for item in value:
            inner = joined(inner, type_of(item, field), field)
        return pa.list_(inner)
    return pa.struct(
        [(name, type_of(item, f"{field}.{name}")) for name, item in value.items()]
    )


def _extremes(numbers: list[Any]) -> set[Any]:
    """Returns numbers that have the types, and the bounds, of all."""
    ints = [number for number in numbers if type(number) is int]
    found = {min(ints), max(ints)} if ints else set()
    return found if len(ints) == len(numbers) else {*found, 0.5}


def joined(a: pa.DataType, b: pa.DataType, field: str) -> pa.DataType:
    """Returns the common type of two.

    Integers are numbers, null has any type, objects have the fields of both.

    Raises:
        DifferentTypesError: There is none.
    """
    if a.equals(b) or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(joined(a.value_type, b.value_type, field))
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        types = dict(_fields(a))
        for name, kind in _fields(b):
            types[name] = joined(types.get(name, pa.null()), kind, f"{field}.{name}")
        return pa.struct(types.items())
    raise DifferentTypesError(field, f"{type_name(a)} and {type_name(b)}")


def has_gap(value: Any, kind: pa.DataType, *, inside: bool = False) -> bool:
    """Returns whether a list of a value has a null or lacks a field in an item.

    No feature holds such a list: its values would not be known from others.
    """
    if value is None:
        return inside and not pa.types.is_null(kind)
    if isinstance(value, list) and pa.types.is_list(kind):
        item = kind.value_type
        if not pa.types.is_nested(item):
            return None in value and not pa.types.is_null(item)
        return any(has_gap(each, item, inside=True) for each in value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        fields = _fields(kind)
        return any(has_gap(value.get(n), of, inside=inside) for n, of in fields)
    return False


def column_value(
    value: Any, kind: pa.DataType, *, only: bool = False, field: str = ""
) -> Any:
    """Returns the value that a column takes for one of JSON.

    Args:
        value: The value, its numbers as `Number`.
        kind: The type of the column; of a whole line a struct.
        only: Whether objects may have other fields, which are left out.
        field: Place of the value, for the error.

    Raises:
        UnfitError: The column does not take it as it is.
        ValueError: A text has half of a character.
    """
    if kind == JSON_TEXT and value is not None:
        return text_of(value)
    if value is None and field:
        return None
    named = f"field {field[1:]!r}: " if field else ""
    is_number = isinstance(value, Number)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        types = dict(_fields(kind))
        new = next((name for name in value if name not in types), None)
        if new is not None and not only:
            known = ", ".join(map(repr, types))
            raise UnfitError(f"{named}only the fields {known}", f"a new field {new!r}")
        return {
            name: column_value(item, types[name], only=only, field=f"{field}.{name}")
            for name, item in value.items()
            if name in types
        }
    if pa.types.is_list(kind) and isinstance(value, list):
        item = kind.value_type
        return [column_value(one, item, only=only, field=field) for one in value]
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_large_string(kind) and is_number:
        return str(value)
    is_text = kind in (pa.string(), pa.large_string())
    if is_text and isinstance(value, str) and not is_number:
        value.encode()
        return value
    if is_number and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        whole = whole_number(value)
        if pa.types.is_integer(kind):
            if whole is not None:
                return whole
        else:
            if kind == pa.float64():
                vast = value.lstrip("-").isdecimal() and value != "-0"
                if vast if whole is None else is_lost(whole):
                    expected = f"{named}another number, or a type for it"
                    raise UnfitError(expected, shown(value), is_lost=True)
            if math.isfinite(float(value)):
                return float(value)
    raise UnfitError(f"{named}{type_name(kind)}", shown(value))


def type_name(kind: pa.DataType) -> str:
    """Returns a type in the words of JSON."""
    if pa.types.is_list(kind):
        return f"a list, each item {type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "an object"
    return _NAMES.get(kind, str(kind))


def shown(value: Any) -> str:
    """Returns a value for a message."""
    text = text_of(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def leaf_types(kind: pa.DataType) -> set[pa.DataType]:
    """Returns the types of the values in lists and objects, however deep."""
    if pa.types.is_list(kind):
        return leaf_types(kind.value_type)
    if pa.types.is_struct(kind):
        return set().union(*(leaf_types(one.type) for one in kind))
    return {kind}


def with_leaves(
    fields: pa.Schema, changed: Callable[[pa.DataType, str], pa.DataType]
) -> pa.Schema:
    """Returns fields with other types of the values in lists and objects.

    Args:
        fields: The fields.
        changed: Returns the type for one and its name, such as `a.b`.
    """

    def of(kind: pa.DataType, name: str) -> pa.DataType:
        if pa.types.is_list(kind):
            return pa.list_(of(kind.value_type, name))
        if pa.types.is_struct(kind):
            return pa.struct([(n, of(t, f"{name}.{n}")) for n, t in _fields(kind)])
        return changed(kind, name)

    return pa.schema([(name, of(kind, name)) for name, kind in _fields(fields)])


def _fields(kind: Any) -> Iterator[tuple[str, pa.DataType]]:
    return ((one.name, one.type) for one in kind)
