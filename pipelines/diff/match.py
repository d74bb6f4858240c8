"""The items that two lists have in common, each as often as both have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Columns = Sequence[npt.NDArray[Any]]


class Keys(NamedTuple):
    """Numbers of the items of two lists: equal items have equal ones.

    Attributes:
        before: int64 [n], from 0 on.
        after: int64 [m].
    """

    before: Int64
    after: Int64


class Pairs(NamedTuple):
    """Which items of two lists have a partner in the other: bool [n] and bool [m]."""

    before: Mask
    after: Mask


def keys_of(before: Columns, after: Columns) -> Keys:
    """Returns keys of the rows of columns; equal rows are equal items.

    Args:
        before: [n] each, one column and more.
        after: The same columns of the other list, [m] each.
    """
    codes = np.zeros(len(before[0]) + len(after[0]), np.int64)
    for columns in zip(before, after, strict=True):
        values, own = np.unique(np.concatenate(columns), return_inverse=True)
        joined = codes * max(len(values), 1) + own
        codes = np.unique(joined, return_inverse=True)[1]
    return Keys(*np.split(codes, [len(before[0])]))


def match(keys: Keys) -> Pairs:
    """Pairs equal items, each once: the first ones of each list."""
    total = 1 + max(own.max(initial=-1) for own in keys)
    counts = [np.bincount(own, minlength=total) for own in keys]
    return Pairs(
        _numbers(keys.before, counts[0]) < counts[1][keys.before],
        _numbers(keys.after, counts[1]) < counts[0][keys.after],
    )


def match_preferred(preferred: Keys, keys: Keys) -> Pairs:
    """Pairs items as `match` does by `keys`, at first those with equal preferred ones.

    Args:
        preferred: Keys that are equal only of items with equal `keys`.
        keys: Those that items must have in common.
    """
    found = match(preferred)
    left = [np.flatnonzero(~own) for own in found]
    rest = match(Keys(*(own[rows] for own, rows in zip(keys, left, strict=True))))
    for mask, rows, paired in zip(found, left, rest, strict=True):
        mask[rows[paired]] = True
    return found


def _numbers(items: Int64, counts: Int64) -> Int64:
    """Returns how many equal items are before each, int64 [n]."""
    order = np.argsort(items, kind="stable")
    begins = np.cumsum(counts) - counts
    numbers = np.empty(len(items), np.int64)
    numbers[order] = np.arange(len(items)) - begins[items[order]]
    return numbers
