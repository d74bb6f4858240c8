"""Dtypes of features, checked, and casts that do not change values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.example import BYTES, FLOATS, INTS

_KINDS = {"b": INTS, "i": INTS, "u": INTS, "f": FLOATS, "O": BYTES}


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Returns the checked dtype of a feature's values; bytes are objects."""
    try:
        found: np.dtype[Any] | None = np.dtype(dtype)
    except (SyntaxError, TypeError, ValueError):  # By its spelling.
        found = None
    if found is not None and found.kind == "S" and not found.itemsize:
        return np.dtype(object)
    if found is None or found.kind not in _KINDS:
        raise InputError(
            "no feature of a tf.train.Example has values of this type",
            expected="bytes, bool, an integer or a floating-point type",
            got=repr(dtype) if found is None else found,
            cure="give a type such as bytes, numpy.int64 or numpy.float32",
        )
    return found


def kind_of(dtype: np.dtype[Any]) -> int:
    """Returns the kind of list that has values for a dtype."""
    return _KINDS[dtype.kind]


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype in messages."""
    return "bytes" if dtype.kind == "O" else dtype.name


def constant(
    value: Any, dtype: np.dtype[Any], *, shape: tuple[int, ...], what: str
) -> npt.NDArray[Any]:
    """Returns a value, or values of the shape, as an array of the dtype."""
    try:
        given = np.array(value, object)
        array = given.astype(dtype)
        same = dtype.kind == "f" or bool((array == given).all())
        if dtype.kind == "O":
            same = all(isinstance(item, bytes) for item in given.flat)
        if same:
            return np.broadcast_to(array, shape)
    except (OverflowError, TypeError, ValueError):
        pass  # Raised below, as for any other value that does not fit.
    raise InputError(
        f"{what} does not fit the feature",
        expected=f"{name_of(dtype)}" + (f" of shape {shape}, or one" if shape else ""),
        got=repr(value),
        cure="give a value of this type and shape, or change those of the feature",
    )


def limits_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns the least and the largest integer that a dtype holds, within int64."""
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), (1 << 63) - 1)


def first_outside(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> int | None:
    """Returns the number of the first value that a dtype cannot hold, or None.

    Values are int64, float32, or int32 in [0, 2^28); the dtype is of the same kind.
    """
    if dtype.kind not in "biu" or not values.size:
        return None
    least, most = limits_of(dtype)
    if values.dtype == np.int32 and most >= 1 << 28:
        return None
    if least <= values.min() and values.max() <= most:
        return None
    return int(np.argmax((values < least) | (values > most)))


def cast(values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns values, a list if they are bytes, as an array of a dtype."""
    if dtype.kind == "O":
        out = np.empty(len(values), object)
        out[:] = values
        return out
    # Overflow of floats gives infinity, as any conversion to such a type does.
    with np.errstate(over="ignore"):
        array: npt.NDArray[Any] = values.astype(dtype, copy=False)
    return array
