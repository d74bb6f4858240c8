"""The records that only one of two lists has, by checksums and few lengths.

Records are the same that have the same checksum and the same length, as in all digests
of records. Checksums are at hand, lengths are not. The digests of both lists prove what
checksums say once some lengths are known: those of the records that differ, or of those
that agree, whichever are fewer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.pipelines.diff.match import (
    Int64,
    Keys,
    Mask,
    Pairs,
    keys_of,
    match_preferred,
)


class Part(NamedTuple):
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
    part: Callable[[int], Part]
    lengths_of: Callable[[Int64], Int64]


class Left(NamedTuple):
    """The records of a list that the other has not.

    Attributes:
        numbers: int64 [records], rising.
        digest: Their digest.
    """

    numbers: Int64
    digest: RecordsDigest


def differing(before: Records, after: Records, *, parts: int) -> tuple[Left, Left]:
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
            Left(own.numbers, one.digest) for one, own in zip(both, left, strict=True)
        )
        return first, second
    if sum(len(own.numbers) for own in left) <= shared:
        first, second = (
            Left(
                own.numbers,
                RecordsDigest.of(own.crc32cs, one.lengths_of(own.numbers)),
            )
            for one, own in zip(both, left, strict=True)
        )
        if before.digest - first.digest == after.digest - second.digest:
            return first, second
    return _by_length(before, after, parts)


def _by_checksum(before: Records, after: Records, parts: int) -> tuple[list[Part], int]:
    """Returns the records whose checksums differ, and how many have one in common."""
    left: tuple[list[Part], list[Part]] = [], []
    shared = 0
    for number in range(parts):
        pair = before.part(number), after.part(number)
        for own, one, paired in zip(left, pair, _paired(*pair), strict=True):
            own.append(one.taken(~paired))
        shared += sum(int(mask.sum()) for mask in _shared(*pair))
    return [_in_order(own) for own in left], shared


def _by_length(before: Records, after: Records, parts: int) -> tuple[Left, Left]:
    """Does what `differing` does by the lengths of records with common checksums."""
    left: tuple[list[Part], list[Part]] = [], []
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
    return Left(removed, before.digest - kept), Left(added, after.digest - kept)


def _paired(
    before: Part, after: Part, lengths: tuple[Int64, Int64] | None = None
) -> Pairs:
    """Pairs records of equal checksums, and of equal lengths where these are given."""
    keys = keys_of([before.crc32cs], [after.crc32cs])
    if lengths is not None:
        keys = keys_of([keys.before, lengths[0]], [keys.after, lengths[1]])
    files = keys_of([keys.before, before.files], [keys.after, after.files])
    return match_preferred(Keys(*files), keys)


def _shared(before: Part, after: Part) -> tuple[Mask, Mask]:
    """Returns which records have a checksum that the other part has, too."""
    return (
        np.isin(before.crc32cs, after.crc32cs),
        np.isin(after.crc32cs, before.crc32cs),
    )


def _in_order(parts: list[Part]) -> Part:
    numbers, crc32cs, files = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(numbers)
    return Part(numbers[order], crc32cs[order], files[order])
