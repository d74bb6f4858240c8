"""Whole numbers that a float32, or the text of a decimal, may not hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError

INT64 = range(-(1 << 63), 1 << 63)
_NUMBER = re.compile(r"(-?)(0|[1-9]\d*)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")
_MOST_DIGITS = 64  # Digits of a text, with those that its exponent adds.


def whole_number(text: str) -> int | None:
    """Returns the 64-bit integer that a JSON or CSV text denotes, or None.

    >>> [whole_number(text) for text in ("7", "16777217.0", "1.5e1", "1.5", "07")]
    [7, 16777217, 15, None, None]
    """
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _MOST_DIGITS:
        return None
    sign, digits, fraction, exponent = match.groups(default="")
    shift = int(exponent or 0) - len(fraction)
    number, rest = int(digits + fraction), 0
    if number and abs(shift) > _MOST_DIGITS:
        return None
    if number:
        scaled = 10 ** abs(shift)
        number, rest = (number * scaled, 0) if shift >= 0 else divmod(number, scaled)
    if rest or (sign and not number):  # Integers cannot have the sign of -0.0.
        return None
    number = -number if sign else number
    return number if number in INT64 else None


def is_lost(number: int) -> bool:
    """Returns whether a float32 changes a 64-bit integer."""
    return abs(number) > 1 << 24 and int(np.float32(number)) != number


def are_lost(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns `is_lost` of each of some floats: only whole 64-bit ones count."""
    with np.errstate(over="ignore"):
        others = values.astype(np.float32) != values
    lost: npt.NDArray[np.bool_] = (
        others & (np.abs(values) < INT64.stop) & (np.trunc(values) == values)
    )
    return lost


def are_integers(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns whether floats are 64-bit integers."""
    found: npt.NDArray[np.bool_] = (np.trunc(values) == values) & (
        (values >= INT64.start) & (values < INT64.stop)
    )
    return found


class NumbersSeen:
    """The evidence of a sample whether a column's numbers are kept as integers."""

    def __init__(self) -> None:
        self._lost: object = None
        self._fraction: object = None

    def add(self, lost: Iterable[object], fractions: Iterable[object]) -> None:
        """Adds numbers; one of each kind is remembered.

        Args:
            lost: Whole numbers that a float32 cannot hold.
            fractions: Numbers that are not 64-bit integers.
        """
        if self._lost is None:
            self._lost = next(iter(lost), None)
        if self._fraction is None:
            self._fraction = next(iter(fractions), None)

    def are_integers(self, name: str) -> bool:
        """Returns whether all are whole and some must be kept as integers.

        Raises:
            InputError: Some have to be, and others are not whole.
        """
        if self._lost is not None and self._fraction is not None:
            raise InputError(
                f"column {name!r} has whole numbers that a float32 does not hold, and "
                "fractions",
                expected="whole numbers alone, or such as a float32 holds",
                got=f"{self._lost} and {self._fraction}",
                cure=f"round all to 32 bits, with --columns '*,{name}:float', or leave "
                "the column out",
            )
        return self._lost is not None


def numbers_cure(name: str) -> str:
    """Returns the cure for a column of floats with whole numbers."""
    return (
        f"give its type: --columns '*,{name}:int' keeps whole numbers if all are, "
        f"--columns '*,{name}:float' rounds all to 32 bits"
    )
