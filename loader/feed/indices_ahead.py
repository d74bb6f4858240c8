"""The record indices of consecutive steps, worked out for several steps at once.

A permutation is a hundred short operations on arrays. For a thousand rows most of their
time goes into the calls, which hold the interpreter's lock; for many they cost a third.
"""

from __future__ import annotations

import threading

import numpy as np

from gristmill.loader.indices import IntArray
from gristmill.loader.order.schedule import Rows, Schedule

_ROWS_AT_ONCE = 8192
_MOST_STEPS = 64


class IndicesAhead:
    """`Schedule.indices` for one that asks for step after step. Safe for threads.

    Args:
        schedule: The batches.
        rows: The rows wanted of each.
    """

    def __init__(self, schedule: Schedule, rows: Rows):
        self._schedule, self._rows = schedule, rows
        size = len(np.arange(schedule.batch_size)[rows])
        self._steps = min(max(1, _ROWS_AT_ONCE // max(size, 1)), _MOST_STEPS)
        self._first, self._indices = 0, list[IntArray]()
        self._lock = threading.Lock()

    def indices(self, step: int) -> IntArray:
        """Returns the record indices of the rows of a step, int64 [rows].

        Raises:
            OutOfRangeError: There is no such step.
        """
        with self._lock:
            if not 0 <= step - self._first < len(self._indices):
                self._first, self._indices = step, self._from(step)
            return self._indices[step - self._first]

    def _from(self, step: int) -> list[IntArray]:
        last = step + self._steps
        if self._schedule.steps is not None:
            last = max(min(last, self._schedule.steps), step + 1)
        positions = [
            self._schedule.positions(number, self._rows) for number in range(step, last)
        ]
        records = self._schedule.stream.records(np.concatenate(positions))
        return np.split(records, np.cumsum([len(part) for part in positions[:-1]]))
