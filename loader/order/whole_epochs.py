"""The records of the epochs of a dataset that are over, counted without a walk.

An epoch has all records of its lanes but those that were removed before their turn, so
a few ranges of numbers say how often each was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gristmill.loader.base.indices import IntArray, Removed
from gristmill.loader.order.epochs import Epochs, Lane


class WholeEpochs(NamedTuple):
    """How often each record was seen in epochs that are over.

    Attributes:
        ranges: Ranges of records, by the numbers that they have now, and how often each
            record of a range was seen. A record can be in several.
        removed: int64 [removed], the lasting numbers of records that are removed now.
        removed_times: int64 [removed], how often each of these was seen.
    """

    ranges: tuple[tuple[range, int], ...]
    removed: IntArray
    removed_times: IntArray


def whole_epochs(
    layout: Epochs,
    position: int,
    records_at: Callable[[Lane, int, IntArray], IntArray],
) -> WholeEpochs:
    """Returns the whole epochs before a position.

    Args:
        layout: The epochs.
        position: The position.
        records_at: Returns the lasting numbers of the records at places of a lane in an
            epoch.
    """
    end = layout.start_of(layout.epoch_at(position))
    removed, ranges = layout.removed, []
    times = np.zeros(len(removed), np.int64)
    stops = [*(run.from_position for run in layout.runs[1:]), end]
    for run, stop in zip(layout.runs, stops, strict=True):
        count = max(min(stop, end) - run.from_position, 0) // run.num_records
        for number, gaps in zip(run.lanes, run.gaps, strict=True):
            lane = layout.lanes[number]
            first, last = lane.lasting(np.array([0, lane.num_records - 1], np.int64))
            bounds = np.array([first, last + 1], np.int64)
            ranges.append((range(*removed.closed(bounds).tolist()), count))
            own = slice(*np.searchsorted(removed.numbers, bounds).tolist())
            gone = lane.gone.has(removed.numbers[own])
            if len(gaps):
                unseen = records_at(lane, run.first_epoch, gaps.numbers)
                gone |= Removed(unseen).has(removed.numbers[own])
            times[own] += np.where(gone, 0, count)
    seen = tuple(one for one in ranges if one[1])
    return WholeEpochs(seen, removed.numbers, times)
