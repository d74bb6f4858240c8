"""The records of a dataset that a run has seen, and how often.

Whole epochs are ranges of numbers. Of the epoch under way, the records seen are a
bitmap: 1.125 bits for each record of the dataset.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from gristmill.loader.base.indices import IntArray
from gristmill.loader.columns.selection import Selection
from gristmill.loader.order.dataset_order import (
    DatasetOrder,
    begun_epoch_of,
    whole_epochs_of,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenRecords:
    """How often each record comes before a position of a dataset's order.

    Attributes:
        edges: int64 [runs + 1], from 0 to the number of records: where `times` changes.
        times: int64 [runs], in how many whole epochs the records of a run were seen.
        running: The records that were seen in the epoch under way.
        removed: int64 [removed], the numbers that batches have of records which are
            removed now, all negative.
        removed_times: int64 [removed], how often each of these was seen.
    """

    edges: IntArray
    times: IntArray
    running: Selection
    removed: IntArray
    removed_times: IntArray

    def at(self, records: IntArray) -> IntArray:
        """Returns how often each of some records was seen: int64 [n]."""
        whole: IntArray = self.times[self._runs_of(records)]
        return whole + self.running.has(records)

    def between(self, bounds: IntArray) -> IntArray:
        """Returns how much was seen of the records in ranges.

        Args:
            bounds: int64 [ranges + 1], ascending numbers of records, at least one.

        Returns:
            int64 [ranges, 2]: how often records of the range were seen, and how many of
            them were.
        """
        cuts = np.union1d(bounds, self.edges)
        times = self.times[self._runs_of(cuts[:-1])]
        sizes, running = np.diff(cuts), np.diff(self.running.ranks(cuts))
        both = [times * sizes + running, np.where(times > 0, sizes, running)]
        sums = np.zeros((len(cuts), 2), np.int64)
        np.cumsum(np.stack(both, axis=1), axis=0, out=sums[1:])
        return np.diff(sums[np.searchsorted(cuts, bounds)], axis=0)

    def _runs_of(self, records: IntArray) -> IntArray:
        return np.searchsorted(self.edges, records, side="right") - 1


def seen_records(order: DatasetOrder, position: int, records: int) -> SeenRecords:
    """Returns how often each record comes before a position.

    Args:
        order: The order of the dataset.
        position: A position of it.
        records: How many records the dataset has.
    """
    ranges, lasting, removed_times = whole_epochs_of(order, position)
    edges = np.unique([0, records, *(n for r, _ in ranges for n in (r.start, r.stop))])
    times = np.zeros(len(edges) - 1, np.int64)
    for one, count in ranges:
        times[slice(*np.searchsorted(edges, [one.start, one.stop]).tolist())] += count
    words = Selection.empty_words(records)
    removed_times = removed_times.copy()
    for found in begun_epoch_of(order, position):
        if order.removes:
            lost = -1 - found[found < 0]
            removed_times[np.searchsorted(lasting, lost)] += 1
            found = found[found >= 0]
        bits = np.uint64(1) << (found & 63).astype(np.uint64)
        np.bitwise_or.at(words, found >> 6, bits)
    return SeenRecords(
        edges=edges,
        times=times,
        running=Selection(words, records),
        removed=-1 - lasting,
        removed_times=removed_times,
    )
