"""Runs of records as arrays: sorted by digest, compared, and joined again.

A run is so many records that follow one another. The first of each digest in it is an
entry, which is compared with those of all other runs; the others of the run are copies
of it. So no digest, however many records have it, makes more than an entry a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.duplicates.certificate import REMOVAL, Removals

ENTRY = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("place", "<i8"), ("file", "<u4"), ("row", "<u4")]
)
# A removal, and the number in its run of the entry that it is, or is a copy of.
REMOVED = np.dtype(
    [*((n, REMOVAL[n].str) for n in REMOVAL.names or ()), ("row", "<u4")]
)
RUN_RECORDS = 1 << 20
MOST_PARTITIONS = 1 << 12

Array = npt.NDArray[Any]


class Run(NamedTuple):
    """The records of a run.

    Attributes:
        entries: Of `ENTRY`, by digest: the first record with each.
        copies: The other records, each a removal with the row of its entry.
    """

    entries: Array
    copies: Array

    @classmethod
    def of(cls, digests: npt.NDArray[np.uint64], files: Array, places: Array) -> Run:
        """Returns a run of records in order.

        Args:
            digests: uint64 [records, 2].
            files: The number of the file of each.
            places: Its place there.
        """
        order, begins = _grouped(digests[:, 0], digests[:, 1])
        first = order[begins]
        entries = np.empty(len(first), ENTRY)
        entries["high"], entries["low"] = digests[first, 0], digests[first, 1]
        entries["file"], entries["place"], entries["row"] = (
            files[first],
            places[first],
            first,
        )
        kept = np.repeat(first, np.diff(np.append(begins, len(order))))
        is_copy = np.ones(len(order), bool)
        is_copy[begins] = False
        rows, kept = order[is_copy], kept[is_copy]
        copies = _removed(files[rows], places[rows], files[kept], places[kept], kept)
        return cls(entries, copies)

    def fences(self, partitions: int) -> npt.NDArray[np.int64]:
        """Returns where the entries of each partition begin: int64 [partitions + 1].

        Args:
            partitions: A power of two, at most `MOST_PARTITIONS`.
        """
        high = np.ascontiguousarray(self.entries["high"])
        bits = np.uint64(65 - partitions.bit_length())
        inner = np.arange(1, partitions, dtype=np.uint64) << bits
        return np.concatenate([[0], np.searchsorted(high, inner), [len(high)]])


def _removed(file: Any, place: Any, kept_file: Any, kept_place: Any, row: Any) -> Array:
    found = np.empty(len(row), REMOVED)
    found["file"], found["place"], found["row"] = file, place, row
    found["kept_file"], found["kept_place"] = kept_file, kept_place
    return found


def _grouped(high: Array, low: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """Returns the order by digest, stable, and where each digest begins in it."""
    order = np.argsort(high, kind="stable")
    changes = high[order][1:] != high[order][:-1]
    sorted_low = low[order]
    if (changes < (sorted_low[1:] != sorted_low[:-1])).any():
        # Two digests have the same upper half.
        order = np.lexsort((low, high))
        sorted_high, sorted_low = high[order], low[order]
        changes = sorted_high[1:] != sorted_high[:-1]
        changes |= sorted_low[1:] != sorted_low[:-1]
    return order, np.flatnonzero(np.append(np.full(min(len(order), 1), True), changes))


def resolve(blocks: Sequence[Array]) -> list[Array]:
    """Returns the entries of a partition that others stand for, of each run.

    Args:
        blocks: Entries of each run, the runs in order.
    """
    entries = np.concatenate([np.empty(0, ENTRY), *blocks])
    order, begins = _grouped(entries["high"], entries["low"])
    kept = np.repeat(order[begins], np.diff(np.append(begins, len(order))))
    lost = np.flatnonzero(order != kept)
    lost = lost[np.argsort(order[lost])]
    rows, kept = entries[order[lost]], entries[kept[lost]]
    found = _removed(
        *(rows["file"], rows["place"], kept["file"], kept["place"], rows["row"])
    )
    ends = np.searchsorted(order[lost], np.cumsum([len(block) for block in blocks]))
    return np.split(found, ends[:-1]) if blocks else []


def removals_of(copies: Array, resolved: Sequence[Array]) -> Removals:
    """Returns the removals of a run, in order.

    Args:
        copies: Those of the run.
        resolved: What `resolve` returned for it, of all partitions.
    """
    lost = np.concatenate([np.empty(0, REMOVED), *resolved])
    # A copy of an entry that is removed itself stands for what is kept for that.
    lost = lost[np.argsort(lost["row"])]
    at = np.searchsorted(lost["row"], copies["row"])
    inside = np.minimum(at, max(len(lost) - 1, 0))
    moved = (
        lost["row"][inside] == copies["row"]
        if len(lost)
        else np.zeros(len(copies), bool)
    )
    copies = copies.copy()
    for name in ("kept_file", "kept_place"):
        copies[name][moved] = lost[name][inside[moved]]
    every = np.concatenate([lost, copies])
    every = every[np.lexsort((every["place"], every["file"]))]
    found = np.empty(len(every), REMOVAL)
    for name in REMOVAL.names or ():
        found[name] = every[name]
    return found
