"""The records of a dataset that a run has seen, and how often.

Whole epochs have all records. Of an epoch that is not over, the records seen are a
bitmap: 1.125 bits for each record of the dataset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gristmill.loader.base.indices import IntArray
from gristmill.loader.columns.selection import Selection
from gristmill.loader.order.step_records import Passed


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenRecords:
    """How often each record of a dataset was seen.

    Attributes:
        whole: How many whole epochs had so many first records.
        parts: The records that were seen in each epoch that is not over.
        any_part: Those that were seen in one of these.
    """

    whole: Mapping[int, int]
    parts: tuple[Selection, ...]
    any_part: Selection

    def at(self, records: IntArray) -> IntArray:
        """Returns how often each of some records was seen: int64 [n]."""
        seen = np.zeros(len(records), np.int64)
        for first, epochs in self.whole.items():
            seen += epochs * (records < first)
        for part in self.parts:
            seen += part.has(records)
        return seen

    def between(self, bounds: IntArray) -> IntArray:
        """Returns how much was seen of the records in ranges.

        Args:
            bounds: int64 [ranges + 1], ascending numbers of records, at least one.

        Returns:
            int64 [ranges, 2]: how often records of the range were seen, and how many of
            them were.
        """
        seen = np.zeros(len(bounds) - 1, np.int64)
        for first, epochs in self.whole.items():
            seen += epochs * np.diff(np.minimum(bounds, first))
        for part in self.parts:
            seen += np.diff(part.ranks(bounds))
        all_of = max(self.whole, default=0)
        different = np.diff(np.minimum(bounds, all_of))
        different += np.diff(self.any_part.ranks(np.maximum(bounds, all_of)))
        return np.stack([seen, different], axis=1)


def seen_records(passed: Sequence[Passed], records: int) -> SeenRecords:
    """Returns how often each record of a dataset was seen.

    Args:
        passed: What each phase has given of it, or of its first records.
        records: How many records it has.
    """
    whole, parts = dict[int, int](), []
    together = Selection.empty_words(records)
    for _, order, count in passed:
        epochs, rest = divmod(count, order.num_records)
        if epochs:
            whole[order.num_records] = whole.get(order.num_records, 0) + epochs
        words = Selection.empty_words(records)
        for found in order.running_epoch(count):
            bits = np.uint64(1) << (found & 63).astype(np.uint64)
            np.bitwise_or.at(words, found >> 6, bits)
        if rest:
            parts.append(Selection(words, records))
            together |= words
    return SeenRecords(
        whole=whole, parts=tuple(parts), any_part=Selection(together, records)
    )
