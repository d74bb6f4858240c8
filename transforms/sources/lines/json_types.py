"""The types of JSON fields: found in samples, joined, compared with values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from gristmill.transforms.tables.whole_numbers import INT64

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
        types: Types of the values.
    """

    def __init__(self, field: str, types: tuple[str, str]):
        super().__init__(field)
        self.field, self.types = field, types


def type_of(value: Any, field: str = "") -> pa.DataType:
    """Returns the type of a value that `json` has read.

    Raises:
        DifferentTypesError: A list holds values of different types.
        OverflowError: An integer is too large; its argument is the field.
    """
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        if value not in INT64:
            raise OverflowError(field)
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
        return pa.struct(joined_fields(a, b, field))
    raise DifferentTypesError(field, (type_name(a), type_name(b)))


def joined_fields(
    a: Iterable[pa.Field], b: Iterable[pa.Field], field: str = ""
) -> list[pa.Field]:
    """Returns the fields of two objects, those of the first one first."""
    types = {one.name: one.type for one in a}
    for one in b:
        known = types.get(one.name, pa.null())
        types[one.name] = joined(known, one.type, f"{field}.{one.name}")
    return [pa.field(name, kind) for name, kind in types.items()]


def type_name(kind: pa.DataType) -> str:
    """Returns a type in the words of JSON."""
    if pa.types.is_list(kind):
        return f"a list, each item {type_name(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "an object"
    return _NAMES.get(kind, str(kind))


def difference(
    value: Any, kind: pa.DataType | pa.Schema, *, only: bool = False, field: str = ""
) -> tuple[str, str] | None:
    """Returns the difference of a value from a type: expected and got, None if it fits.

    Args:
        value: The value, as read by `json`.
        kind: The type; of a whole line a schema.
        only: Whether an object of the line may have other fields.
        field: Place of the value, for the texts.
    """
    whole = isinstance(kind, pa.Schema)
    named = f"field {field[1:]!r}: " if field else ""
    if whole or pa.types.is_struct(kind):
        if not isinstance(value, dict):
            if value is None and not whole:
                return None
            return f"{named}an object", _shown(value)
        fields = {one.name: one.type for one in kind}
        for name, item in value.items():
            if name not in fields:
                if only:
                    continue
                known = ", ".join(map(repr, fields))
                return f"{named}only the fields {known}", f"a new field {name!r}"
            wrong = difference(item, fields[name], only=only, field=f"{field}.{name}")
            if wrong is not None:
                return wrong
        return None
    if value is None:
        return None
    if pa.types.is_list(kind) and isinstance(value, list):
        for item in value:
            wrong = difference(item, kind.value_type, only=only, field=field)
            if wrong is not None:
                return wrong
        return None
    if isinstance(value, bool):
        fits = pa.types.is_boolean(kind)
    elif isinstance(value, str):
        fits = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    else:
        fits = isinstance(value, int | float) and _holds(kind, value)
    return None if fits else (f"{named}{type_name(kind)}", _shown(value))


def _holds(kind: pa.DataType, number: float) -> bool:
    """Returns whether a column of a type takes a number."""
    whole = isinstance(number, int) or number.is_integer()
    if pa.types.is_integer(kind):
        return whole and int(number) in INT64
    return bool(pa.types.is_floating(kind) or pa.types.is_large_string(kind))


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
