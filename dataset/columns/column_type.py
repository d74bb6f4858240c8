"""The type of a column's values: a number, a text or an array of numbers a record."""

from __future__ import annotations

import dataclasses
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError

TEXT = "text"
NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
)
MOST_ITEM_BYTES = 1 << 24
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")
_MOST_AXES = 8


def check_column_name(name: str) -> str:
    """Returns a column's name; raises InputError if an expression cannot have it."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(
            "column name cannot be used in an expression",
            expected="up to 64 ASCII letters, digits and '_', not beginning with a "
            "digit, and no keyword of Python",
            got=repr(name),
            cure="rename the column in its file, or leave it out with --columns",
        )
    return name


@dataclasses.dataclass(frozen=True)
class ColumnType:
    """The type of the values of a column.

    Attributes:
        dtype: The name of a number's type as numpy has it, or `text`.
        shape: The shape of a record's array; () for a single value.
    """

    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in (TEXT, *NUMBERS):
            raise ValueError(f"a column cannot hold {self.dtype!a}")
        if len(self.shape) > _MOST_AXES or any(
            type(size) is not int or size < 0 for size in self.shape
        ):
            raise ValueError(f"not the shape of a column: {self.shape!a}")
        if self.is_text and self.shape:
            raise ValueError("texts of a column are single values")
        if self.item_bytes > MOST_ITEM_BYTES:
            raise ValueError(f"{self.item_bytes:,} bytes a record are too many")

    def __str__(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.shape)
        return self.dtype + (f" [{sizes}]" if self.shape else "")

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return self.dtype == TEXT

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of a single number in a file: little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def item_bytes(self) -> int:
        """The size of a record's numbers; 0 for texts."""
        if self.is_text:
            return 0
        return math.prod(self.shape) * self.stored.itemsize

    def empty(self, records: int = 0) -> npt.NDArray[Any]:
        """Returns an array for the values of some records: `[records, *shape]`."""
        kind = np.dtype(object) if self.is_text else np.dtype(self.dtype)
        return np.empty((records, *self.shape), kind)

    def described(self) -> dict[str, Any]:
        """Returns it as `dataset.json` has it."""
        return {"dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the type that `described` wrote, or raises a builtin error."""
        dtype, shape = fields.get("dtype"), fields.get("shape")
        if not isinstance(dtype, str) or not isinstance(shape, list):
            raise TypeError("a column has no type")
        return cls(dtype, tuple(shape))


def kind_of(value: Any) -> ColumnType:
    """Returns the type of a value that a function has returned; raises ValueError.

    Numbers of Python are int64 and float64, those of numpy what they are.
    """
    if isinstance(value, str):
        return ColumnType("text")
    array = np.asarray(value)
    if array.dtype.kind == "f" and (lost := lost_number(value)) is not None:
        raise ValueError(f"{lost}, which a float64 does not hold, among floats")
    return ColumnType(array.dtype.name, array.shape)


def lost_number(value: Any) -> int | None:
    """Returns an integer of Python, or of its lists, that a float64 does not hold."""
    if isinstance(value, list | tuple):
        found = map(lost_number, value)
        return next((each for each in found if each is not None), None)
    if not isinstance(value, int):
        return None
    try:
        return None if int(float(value)) == value else value
    except OverflowError:
        return value


def of_python(kind: ColumnType, values: Sequence[Any]) -> npt.NDArray[Any]:
    """Returns values that are all of a type as one array.

    Raises ValueError, with the number of the first of another type in front.
    """
    for number, value in enumerate(values):
        try:
            found = kind_of(value)
        except ValueError as e:
            raise ValueError(number, str(e)) from e
        if found != kind:
            raise ValueError(number, f"{found}: {value!r:.100}")
    out = kind.empty(len(values))
    if len(values):
        out[:] = values
    return out
