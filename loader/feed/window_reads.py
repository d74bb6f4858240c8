"""Block shuffle from object storage: a window at a time, each block in one request.

A batch of a block shuffle takes its records from all blocks of a window. Read batch by
batch, a chunk would be requested as often as it has records. Read as a window, all that
this reader needs of it comes in a few large ranges and is decoded once, while the
batches of the previous window are used.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.order.schedule import Rows, RowsBySize, Schedule
from gristmill.loader.order.shuffle import BlockShuffle
from gristmill.loader.stats.feed_stats import thread_times

# The one in use, and the next.
_WINDOWS = 2


class _Window(NamedTuple):
    positions: IntArray  # Those of this reader, ascending.
    records: list[bytes]
    # Of the time that reading them took, that a processor was busy, or waited for.
    working_share: float


class WindowReads:
    """The rows that a reader needs of the batches of one dataset, in a block shuffle.

    Safe to share by threads. `steps` are the first step that it reads, and how many
    steps there are from one that it reads to the next.
    """

    def __init__(
        self,
        dataset: Dataset,
        schedule: Schedule,
        shuffle: BlockShuffle,
        rows: Rows | Callable[[int], Rows],
        steps: tuple[int, int],
    ):
        self._dataset, self._schedule, self._rows = dataset, schedule, rows
        self._first_step, self._every = steps
        self._order, self._shuffle = schedule.orders[0], shuffle
        self._wanted = _among(rows, schedule.batch_size)
        self._wanted_last = _among(rows, schedule.remainder or schedule.batch_size)
        self._windows: collections.OrderedDict[int, Future[_Window]] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        datasets: tuple[Dataset, ...],
        schedule: Schedule,
        rows: RowsBySize,
        *,
        steps: tuple[int, int] = (0, 1),
    ) -> WindowReads | None:
        """Returns a reader by windows, None where reading by windows is not faster.

        It is faster for a single dataset in object storage whose shuffle has windows,
        where two of them fit `ReadOptions.window_bytes`. Batches that change at a step
        have other windows and other rows from there on, which this does not know.
        """
        changes = schedule.resizes or schedule.extensions
        if len(datasets) != 1 or isinstance(rows, Mapping) or changes:
            return None
        (dataset,), shuffle = datasets, schedule.orders[0].shuffle
        options, record_bytes = dataset.read_options, dataset.mean_record_bytes
        if options is None or record_bytes is None:
            return None
        if not isinstance(shuffle, BlockShuffle):
            return None
        reads = cls(dataset, schedule, shuffle, rows, steps)
        window_records = min(
            shuffle.block_records * shuffle.window_blocks, max(len(dataset), 1)
        )
        share = reads._wanted.mean() / reads._every * record_bytes
        if _WINDOWS * window_records * share > options.window_bytes:
            return None
        return reads

    def read(self, step: int) -> tuple[list[bytes], float]:
        """Returns the rows of a step's batch, and seconds of work that it waited for.

        A thread of its own reads a window: that time is not waiting for storage.
        """
        worked_seconds = 0.0
        positions = self._schedule.positions(step, self._rows)
        out = [b""] * len(positions)
        left = np.ones(len(positions), bool)
        while left.any():
            begin, end = self._bounds(int(positions[left].min()))
            inside = (positions >= begin) & (positions < end)
            last = int(positions[inside].max())
            waiting_since = time.perf_counter()
            window = self._window(begin, end, last).result()
            waited_seconds = time.perf_counter() - waiting_since
            worked_seconds += waited_seconds * window.working_share
            found = np.searchsorted(window.positions, positions[inside]).tolist()
            for place, number in zip(
                np.flatnonzero(inside).tolist(), found, strict=True
            ):
                out[place] = window.records[number]
            left &= ~inside
        return out, worked_seconds

    def _bounds(self, position: int) -> tuple[int, int]:
        """Returns the half-open positions of the window that holds one."""
        epoch, place = divmod(position, self._order.num_records)
        begin, end = self._shuffle.window(
            place, self._order.shuffle_key(np.array([epoch], np.int64))
        )
        first = epoch * self._order.num_records
        return first + begin, first + end

    def _window(self, begin: int, end: int, position: int) -> Future[_Window]:
        with self._lock:
            found = self._keep(begin, end)
            # Not at once: other threads may still read the end of the previous window.
            if position - begin >= (end - begin) // 4 and end < self._stop:
                self._keep(*self._bounds(end))
        return found

    def _keep(self, begin: int, end: int) -> Future[_Window]:
        found = self._windows.get(begin)
        if found is not None and found.done() and found.exception() is not None:
            found = None  # Try again.
        if found is None:
            found = daemon_call(
                lambda: self._load(begin, end), thread_name="gristmill-window"
            )
            self._windows[begin] = found
        self._windows.move_to_end(begin)
        while len(self._windows) > _WINDOWS:
            self._windows.popitem(last=False)
        return found

    @property
    def _stop(self) -> int:
        steps, stop = self._schedule.steps, self._schedule.stop
        return stop if steps is None else min(stop, steps * self._schedule.batch_size)

    def _load(self, begin: int, end: int) -> _Window:
        positions = np.arange(begin, min(end, self._stop), dtype=np.int64)
        steps, rows = np.divmod(positions, self._schedule.batch_size)
        wanted = self._wanted[rows]
        if self._schedule.remainder:
            last = steps == self._schedule.step_limit - 1
            wanted[last] = self._wanted_last[rows[last]]
        if self._every > 1:
            wanted &= (steps - self._first_step) % self._every == 0
        positions = positions[wanted]
        started = thread_times()
        numbers = self._order.records_unchecked(positions)
        records = self._dataset.read_unchecked(numbers)
        took = thread_times().since(started)
        share = (took.cpu + took.queued) / took.passed if took.passed else 0.0
        return _Window(positions, records, min(1.0, share))


def _among(rows: Rows | Callable[[int], Rows], count: int) -> npt.NDArray[np.bool_]:
    """Returns whether each of some rows belongs to a reader, bool [count]."""
    found = np.zeros(count, bool)
    taken = rows(count) if callable(rows) else rows
    if not isinstance(taken, slice):
        taken = taken[taken < count]
    found[taken] = True
    return found
