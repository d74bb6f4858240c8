"""Arguments that are checked once where they enter the loader; arrays of indices.

Positions and record indices are int64 throughout the loader. Otherwise a float, a
negative index or one that is too large would give a wrong record instead of an error.
Functions whose names end in `_unchecked` take arrays that are already checked.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, OutOfRangeError

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
AnyArray = npt.NDArray[Any]

Rows: TypeAlias = slice | IntArray
ALL_ROWS = slice(None)

POSITION_LIMIT = 1 << 63
"""First position that int64 cannot hold: orders without a last epoch end here."""


def not_opened(given: object) -> InputError:
    """Returns the error for something else in the place of a dataset."""
    cure = "open it first, by loader.open(path)"
    if isinstance(given, Mapping):
        cure = "give one dataset here"
    elif isinstance(given, Sequence) and not isinstance(given, str):
        cure = "join them by loader.open([path, ...]), or mix them as a dict by name"
    return InputError(
        "not a dataset",
        expected="what gristmill.loader.open returns"
        + (", or several of them by name" if not isinstance(given, Mapping) else ""),
        got=f"{type(given).__name__} {given!r:.100}",
        cure=cure,
    )


def checked_indices(values: npt.ArrayLike, *, stop: int, what: str) -> IntArray:
    """Returns `values` as int64, all of them in [0, stop).

    Args:
        values: Integers of any shape.
        stop: Upper bound, exclusive, at most 2^63.
        what: Name of a value, for messages.

    Raises:
        InputError: The values are not integers.
        OutOfRangeError: A value is outside [0, stop); the message names the first.
    """
    try:
        array = np.asarray(values)
    except ValueError as e:  # Lists of different lengths, for example.
        raise InputError(
            f"each {what} must be an integer",
            got=str(e),
            cure=f"give each {what} as an integer, and lists of one length",
        ) from e
    if array.size and array.dtype.kind not in "iu":
        raise InputError(
            f"each {what} must be an integer below 2^63",
            got=f"{array.dtype} values",
            cure=f"give each {what} as an integer",
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) >= stop):
        outside = (array < 0) | (array > stop - 1)
        first = int(array.ravel()[np.flatnonzero(outside)[0]])
        raise OutOfRangeError(
            f"{what} is out of range",
            expected=f"0 <= {what} < {stop}",
            got=first,
            cure=f"give each {what} in this range",
        )
    return array.astype(np.int64, copy=False)


def counted_from_end(index: npt.ArrayLike, *, stop: int, where: str) -> IntArray:
    """Returns the records of an index as of a list: negative ones count from the end.

    Args:
        index: An integer, or integers [n].
        stop: How many records there are.
        where: What they are of, for messages.

    Returns:
        int64 [n], numbers in [0, stop); [1] for an integer.

    Raises:
        InputError: The index is neither.
        OutOfRangeError: There is no such record; the message names the first.
    """
    array = np.atleast_1d(np.asarray(index))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            "neither the number of a record nor a list of numbers",
            where=where,
            expected="integers",
            got=f"{array.dtype} of shape {array.shape}",
            cure="give an integer or a list of integers",
        )
    if array.size and not (-stop <= int(array.min()) and int(array.max()) < stop):
        outside = (array < -stop) | (array > stop - 1)
        raise OutOfRangeError(
            "record is out of range",
            where=where,
            expected=f"{-stop} <= record < {stop}",
            got=int(array[np.argmax(outside)]),
            cure="give a number in this range: negative ones count from the end",
        )
    array = array.astype(np.int64)
    return np.where(array < 0, array + stop, array)


def checked_index(value: int, *, stop: int, what: str) -> int:
    """Returns one index in [0, stop) as a plain int; otherwise as `checked_indices`."""
    checked = checked_indices(value, stop=stop, what=what)
    if checked.ndim:
        raise InputError(
            f"{what} is not a single number",
            got=f"{value!r:.100}",
            cure=f"give one {what}",
        )
    return int(checked)


def checked_count(
    value: int, *, what: str, least: int = 1, most: int = POSITION_LIMIT
) -> int:
    """Returns `value` as a plain int in [least, most].

    Raises:
        InputError: The value is not an integer, or outside the range.
    """
    expected = f"an integer from {least} to {most}"
    count = checked_integer(value, what=what, expected=expected)
    if not least <= count <= most:
        raise InputError(
            f"{what} is out of range",
            expected=expected,
            got=count,
            cure=f"give {what} in this range",
        )
    return count


def checked_integer(value: int, *, what: str, expected: str = "an integer") -> int:
    """Returns `value` as a plain int of any size, or raises InputError."""
    try:
        if not isinstance(value, bool):  # True and False are integers to Python.
            return operator.index(value)
    except TypeError:
        pass
    raise InputError(
        f"{what} is not an integer",
        expected=expected,
        got=f"{value!r:.100}",
        cure=f"give {what} as an integer",
    )


def by_value(values: IntArray) -> list[tuple[int, Rows]]:
    """Returns each of some values, such as datasets, and the rows that have it."""
    if not values.size:
        return []
    first = int(values[0])
    if (values == first).all():
        return [(first, ALL_ROWS)]
    return [
        (value, np.flatnonzero(values == value)) for value in np.unique(values).tolist()
    ]
