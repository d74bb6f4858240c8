"""The items that two lists have in common, each as often as both have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest

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
    """Returns the number of equal items before each, int64 [n]."""
    order = np.argsort(items, kind="stable")
    begins = np.cumsum(counts) - counts
    numbers = np.empty(len(items), np.int64)
    numbers[order] = np.arange(len(items)) - begins[items[order]]
    return numbers


class RecordPart(NamedTuple):
    """Some records of a list. Arrays are [records].

    Attributes:
        numbers: int64, their numbers in the list, rising.
        crc32cs: uint32, their checksums.
        files: int64, a number of the file that each is from.
    """

    numbers: Int64
    crc32cs: npt.NDArray[np.uint32]
    files: Int64

    def taken(self, which: Mask) -> Self:
        """Returns some of these."""
        return type(self)(self.numbers[which], self.crc32cs[which], self.files[which])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """A list of records, of which a part at a time is in memory.

    Attributes:
        digest: The digest of all.
        part: Returns one of the parts by its number. Records with the same checksum
            are in parts with the same number, of this list and of others.
        lengths_of: Returns the lengths of records, int64 [n] for int64 [n] rising
            numbers.
    """

    digest: RecordsDigest
    part: Callable[[int], RecordPart]
    lengths_of: Callable[[Int64], Int64]


class Change(NamedTuple):
    """Records that only one of two lists has.

    Attributes:
        records: int64 [n], their numbers in the list, rising.
        digest: Their digest.
    """

    records: Int64
    digest: RecordsDigest


def differing(before: Records, after: Records, *, parts: int) -> tuple[Change, Change]:
    """Returns the records of each of two lists that the other has not.

    Each is counted as often as it is there. Of equal records of which the other list
    has some, those of other files and then the last ones are left.

    Args:
        before: A list of records.
        after: Another one.
        parts: How many parts each has.
    """
    both = before, after
    left, shared = _by_checksum(before, after, parts)
    if not shared:  # Nothing that checksums could mistake for the same.
        first, second = (
            Change(own.numbers, one.digest) for one, own in zip(both, left, strict=True)
        )
        return first, second
    if sum(len(own.numbers) for own in left) <= shared:
        first, second = (
            Change(
                own.numbers,
                RecordsDigest.of(own.crc32cs, one.lengths_of(own.numbers)),
            )
            for one, own in zip(both, left, strict=True)
        )
        if before.digest - first.digest == after.digest - second.digest:
            return first, second
    return _by_length(before, after, parts)


def _by_checksum(
    before: Records, after: Records, parts: int
) -> tuple[list[RecordPart], int]:
    """Returns the records whose checksums differ, and how many have one in common."""
    left: tuple[list[RecordPart], list[RecordPart]] = [], []
    shared = 0
    for number in range(parts):
        pair = before.part(number), after.part(number)
        for own, one, paired in zip(left, pair, _paired(*pair), strict=True):
            own.append(one.taken(~paired))
        shared += sum(int(mask.sum()) for mask in _shared(*pair))
    return [_in_order(own) for own in left], shared


def _by_length(before: Records, after: Records, parts: int) -> tuple[Change, Change]:
    """Does what `differing` does by the lengths of records with common checksums."""
    left: tuple[list[RecordPart], list[RecordPart]] = [], []
    kept = RecordsDigest()
    for number in range(parts):
        pair = before.part(number), after.part(number)
        masks = _shared(*pair)
        first, second = (one.taken(mask) for one, mask in zip(pair, masks, strict=True))
        lengths = before.lengths_of(first.numbers), after.lengths_of(second.numbers)
        paired = _paired(first, second, lengths)
        kept += RecordsDigest.of(
            first.crc32cs[paired.before], lengths[0][paired.before]
        )
        for own, one, mask, found in zip(left, pair, masks, paired, strict=True):
            alone = ~mask
            alone[np.flatnonzero(mask)[~found]] = True
            own.append(one.taken(alone))
    removed, added = (_in_order(own).numbers for own in left)
    return Change(removed, before.digest - kept), Change(added, after.digest - kept)


def _paired(
    before: RecordPart, after: RecordPart, lengths: tuple[Int64, Int64] | None = None
) -> Pairs:
    """Pairs records of equal checksums, and of equal lengths where these are given."""
    keys = keys_of([before.crc32cs], [after.crc32cs])
    if lengths is not None:
        keys = keys_of([keys.before, lengths[0]], [keys.after, lengths[1]])
    files = keys_of([keys.before, before.files], [keys.after, after.files])
    return match_preferred(Keys(*files), keys)


def _shared(before: RecordPart, after: RecordPart) -> tuple[Mask, Mask]:
    """Returns whether records have a checksum that the other part has, too."""
    return (
        np.isin(before.crc32cs, after.crc32cs),
        np.isin(after.crc32cs, before.crc32cs),
    )


def _in_order(parts: list[RecordPart]) -> RecordPart:
    numbers, crc32cs, files = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(numbers)
    return RecordPart(numbers[order], crc32cs[order], files[order])
