"""Arrays of indices: checked once where they enter the loader, and without some.

Positions and record indices are int64 throughout the loader. Otherwise a float, a
negative index or one that is too large would give a wrong record instead of an error.
Functions whose names end in `_unchecked` take arrays that are already checked.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, OutOfRangeError

IntArray = npt.NDArray[np.int64]

POSITION_LIMIT = 1 << 63
"""First position that int64 cannot hold: orders without a last epoch end here."""


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


class Removed:
    """Some numbers of a sequence; without them the others close up.

    Equal if the numbers are. Not to be changed.

    Args:
        numbers: Integers [removed], each once, in any order.

    Attributes:
        numbers: int64 [removed], ascending.

    Raises:
        InputError: One occurs twice, or they are not integers below 2^63.
    """

    def __init__(self, numbers: npt.ArrayLike = ()):
        flat = checked_indices(numbers, stop=POSITION_LIMIT, what="removed record")
        if flat.ndim != 1:
            raise InputError(
                "removed records must be a list of numbers",
                expected="one dimension",
                got=f"shape {flat.shape}",
                cure="give the list of their numbers",
            )
        rises = flat[1:] > flat[:-1]
        if not rises.all():
            flat = np.sort(flat)
            rises = flat[1:] > flat[:-1]
        if not rises.all():
            raise InputError(
                "a record is removed twice",
                expected="each number once",
                got=f"{int(flat[1:][~rises][0]):,} twice",
                cure="give each number once",
            )
        self.numbers = flat

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"<{len(self):,} removed>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Removed):
            return NotImplemented
        return np.array_equal(self.numbers, other.numbers)

    def __reduce__(self) -> Any:
        return Removed, (self.numbers,) if len(self) else ()

    def __hash__(self) -> int:
        return hash(self.digest)

    @functools.cached_property
    def digest(self) -> str:
        """Half a SHA-256 over the numbers, which stands for them in a state."""
        return hashlib.sha256(self.numbers.astype("<u8").tobytes()).hexdigest()[:32]

    def has(self, numbers: IntArray) -> npt.NDArray[np.bool_]:
        """Returns whether each of some numbers is left out."""
        if not len(self):
            return np.zeros(numbers.shape, bool)
        nearest = np.searchsorted(self.numbers, numbers)
        found: npt.NDArray[np.bool_] = (
            self.numbers.take(nearest, mode="clip") == numbers
        )
        return found

    def closed(self, numbers: IntArray) -> IntArray:
        """Returns the numbers after these are closed up; these get that of the next."""
        return numbers - np.searchsorted(self.numbers, numbers)

    def opened(self, numbers: IntArray) -> IntArray:
        """Undoes `closed`."""
        if not len(self):
            return numbers
        return numbers + np.searchsorted(self._closed, numbers, side="right")

    def joined(self, others: IntArray) -> Removed:
        """Returns the union with other numbers."""
        return Removed(np.concatenate([self.numbers, others])) if len(others) else self

    @functools.cached_property
    def _closed(self) -> IntArray:
        return self.numbers - np.arange(len(self))


NOTHING = Removed()
