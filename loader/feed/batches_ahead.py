"""What is in consecutive steps, computed for several steps at once.

A permutation takes a hundred short operations on arrays. For a thousand rows most of
the time goes into the calls, which hold the interpreter's lock; computed for several
steps together, a step takes a third of it.
"""

from __future__ import annotations

import threading

import numpy as np

from gristmill.loader.order.schedule import MixedBatch, Rows, Schedule

_MOST_STEPS = 64


class BatchesAhead:
    """`Schedule.batch` for a caller that asks for step after step. Safe for threads.

    Args:
        schedule: The batches.
        rows: The rows wanted of each.
        rows_at_once: About how many rows to compute together.
    """

    def __init__(self, schedule: Schedule, rows: Rows, *, rows_at_once: int = 8192):
        self._schedule, self._rows = schedule, rows
        size = len(np.arange(schedule.batch_size)[rows])
        self._steps = min(max(1, rows_at_once // max(size, 1)), _MOST_STEPS)
        self._first, self._batches = 0, list[MixedBatch]()
        self._lock = threading.Lock()

    def batch(self, step: int) -> MixedBatch:
        """Returns the datasets and record indices of the rows of a step.

        Raises:
            OutOfRangeError: There is no such step.
        """
        with self._lock:
            if not 0 <= step - self._first < len(self._batches):
                self._first, self._batches = step, self._from(step)
            return self._batches[step - self._first]

    def _from(self, step: int) -> list[MixedBatch]:
        last = step + self._steps
        if self._schedule.steps is not None:
            last = max(min(last, self._schedule.steps), step + 1)
        positions = [
            self._schedule.positions(number, self._rows) for number in range(step, last)
        ]
        together = self._schedule.batch_unchecked(np.concatenate(positions))
        ends = np.cumsum([len(part) for part in positions[:-1]])
        parts = (np.split(column, ends) for column in together)
        return [MixedBatch(*columns) for columns in zip(*parts, strict=True)]
