"""Values of a column as numpy arrays: from Arrow, from JSON, and for missing ones."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.columns.column_file import ColumnType, lost_number
from gristmill.dataset.columns.expression import compared

if TYPE_CHECKING:
    import pyarrow as pa

_INT64 = range(-(1 << 63), 1 << 63)
_LEAVE_OUT = "write it with values of one of these types, or leave it out by --columns"
_EXPECTED = "numbers, true or false, texts, or arrays of numbers of one length"


class TypedValues(NamedTuple):
    """Some values of a column.

    Attributes:
        kind: Their type; None if all are missing and the type is unknown.
        values: [n, *shape], texts as objects; undefined where missing.
        missing: bool [n], whether each is missing.
    """

    kind: ColumnType | None
    values: npt.NDArray[Any]
    missing: npt.NDArray[np.bool_]


def of_arrow(array: pa.Array, *, column: str, where: str) -> TypedValues:
    """Returns the values of an Arrow array.

    Raises:
        InputError: A column cannot hold them.
    """
    import pyarrow as pa

    def refused(got: object) -> InputError:
        return InputError(
            f"a column cannot hold the values of {column!r}",
            where=where,
            expected=_EXPECTED,
            got=got,
            cure=_LEAVE_OUT,
        )

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    missing = np.asarray(array.is_null())
    if pa.types.is_null(kind):
        return TypedValues(None, np.empty(len(array), object), missing)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TypedValues(ColumnType("text"), _objects(array.to_pylist()), missing)
    shape: list[int] = []
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.asarray(array.value_lengths().fill_null(-1))
        sizes = np.unique(lengths[lengths >= 0])
        if len(sizes) > 1:
            raise refused(f"lists of {sizes[0]:,} and {sizes[1]:,} values")
        shape.append(int(sizes[0]) if len(sizes) else 0)
        array, kind = array.flatten(), kind.value_type
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        array, kind = array.flatten(), kind.value_type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
    ):
        raise refused(array.type)
    there = int((~missing).sum())
    if shape and not there:
        return TypedValues(None, np.empty(len(missing), object), missing)
    if shape and (array.null_count or len(array) != there * math.prod(shape)):
        raise refused("a null in an array")
    if array.null_count:
        array = array.fill_null(False if pa.types.is_boolean(kind) else 0)
    found = np.asarray(array.to_numpy(zero_copy_only=False))
    values = found
    if shape:
        values = np.zeros((len(missing), *shape), found.dtype)
        values[~missing] = found.reshape(there, *shape)
    return TypedValues(ColumnType(found.dtype.name, tuple(shape)), values, missing)


def of_json(
    values: Sequence[Any], *, column: str, where: Callable[[int], str]
) -> TypedValues:
    """Returns the values of a field of JSON objects.

    Whole numbers become floats if others are fractions, or exceed 64 bits.

    Args:
        values: The values of all rows; None where there is none.
        column: The name of the field.
        where: Returns the place of a row.

    Raises:
        InputError: A column cannot hold them, or would round a number.
    """
    import pyarrow as pa

    kinds = [_leaf_kinds(value) for value in values]
    first: dict[type, int] = {}
    for row, kind in enumerate(kinds):
        for each in kind:
            first.setdefault(each, row)
    if first.keys() <= {int, float}:
        if float in first or not all(map(_has_64_bits, values)):
            _check_numbers(values, column, where)
            values = [_as_floats(value) for value in values]
    elif len(first) > 1:
        one, other = list(first)[:2]
        row = first[other]
        raise InputError(
            f"the column {column!r} has values of several types",
            where=where(row),
            expected=f"{one.__name__}, as {values[first[one]]!r:.60} in "
            f"{where(first[one])}",
            got=f"{values[row]!r:.60}",
            cure=_LEAVE_OUT,
        )
    try:
        array = pa.array(values)
    except pa.ArrowException as e:
        raise InputError(
            f"a column cannot hold the values of {column!r}",
            where=where(0),
            expected=_EXPECTED,
            got=str(e).splitlines()[0],
            cure=_LEAVE_OUT,
        ) from e
    return of_arrow(array, column=column, where=where(0))


def _leaf_kinds(value: Any) -> set[type]:
    if isinstance(value, list):
        return set().union(*map(_leaf_kinds, value))
    return set() if value is None else {type(value)}


def _has_64_bits(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_has_64_bits, value))
    return value is None or value in _INT64


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_as_floats, value)]
    return None if value is None else float(value)


def _check_numbers(
    values: Sequence[Any], column: str, where: Callable[[int], str]
) -> None:
    for row, value in enumerate(values):
        lost = lost_number(value)
        if lost is not None:
            raise InputError(
                f"a whole number of the column {column!r} would be rounded",
                where=where(row),
                expected="whole numbers that a float64 holds, as the column has "
                "fractions, or numbers of 2^63 and more",
                got=lost,
                cure="write the column as texts, or leave it out by --columns",
            )


def _objects(values: Sequence[Any]) -> npt.NDArray[Any]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def filled(kind: ColumnType, value: Any, *, column: str) -> Any:
    """Returns the value for records without one, in the column's numpy type.

    Raises:
        InputError: It is not of the column's type.
    """
    found: Any = None
    if kind.is_text:
        found = value if isinstance(value, str) else None
    elif isinstance(value, bool) == (kind.dtype == "bool"):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            given = np.asarray(value)
            with np.errstate(over="ignore"):
                cast = given.astype(kind.dtype)
            # Fractions are rounded; whole numbers are not, and none becomes infinite.
            fractions = cast.dtype.kind == given.dtype.kind == "f"
            fractions &= bool((np.isinf(cast) == np.isinf(given)).all())
            if fractions or compared(operator.eq, cast, given).all():
                found = np.broadcast_to(cast, kind.shape)
    if found is not None:
        return found
    raise InputError(
        f"the value for missing ones is not of the type of {column!r}",
        expected=str(kind),
        got=f"{value!r:.100}",
        cure="give one of this type with --missing, or a value by column: "
        '--missing \'{"score": NaN, "language": ""}\'',
    )
