"""Batches read ahead of the trainer: passes of threads, and windows of a shuffle.

A pass of several steps saves calls and wake-ups of threads. Where a step takes long,
or its records are large, a pass is one step, so that threads share the work.

A batch of a block shuffle takes its records from all blocks of a window. Read batch by
batch from object storage, a chunk would be requested as often as it has records. Read
as a window, all that this reader needs of it comes in a few large ranges and is decoded
once, while the batches of the previous window are used.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.system import daemon_call
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.feed.stats import BatchesRead, ReadBatch
from gristmill.loader.order.schedule import RowsBySize, Schedule, rows_of
from gristmill.loader.order.shuffle import BlockShuffle

# Limits of a pass: more time, records or steps save little.
_PASS_SECONDS = 0.01
_PASS_BYTES = 2 << 20
_MOST_STEPS = 16


_POLL_SECONDS = 0.5


class Passes(Iterator[ReadBatch]):
    """The batches of steps, in order, several of them read by a thread at a time.

    Args:
        read: Reads the batches of steps, in any thread.
        steps: The steps, in order.
        threads: How many passes are read at a time.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], BatchesRead],
        steps: Iterable[int],
        *,
        threads: int,
    ):
        self._read, self._steps, self._threads = read, iter(steps), threads
        self._size, self._closed = 1, False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gristmill-read")
        self._pending: deque[Future[BatchesRead]] = deque()
        self._ready: deque[ReadBatch] = deque()
        self._error: BaseException | None = None
        self._fill()

    def __next__(self) -> ReadBatch:
        while not self._ready:
            if self._error is not None:
                raise self._error
            self._take()
        return self._ready.popleft()

    def close(self) -> None:
        """Ends the threads and drops their reads."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> None:
        """Waits for the next pass, and has threads read another."""
        if not self._pending:
            raise StopIteration
        future = self._pending[0]
        while True:
            if self._closed:
                raise closed_meanwhile()
            with contextlib.suppress(TimeoutError, CancelledError):
                read = future.result(_POLL_SECONDS)
                break
        self._pending.popleft()
        self._size = min(steps_of_next(read), 2 * self._size)
        self._ready.extend(read.batches)
        self._error = read.error
        if self._error is None:
            self._fill()

    def _fill(self) -> None:
        while len(self._pending) < self._threads:
            steps = list(itertools.islice(self._steps, self._size))
            if not steps:
                break
            self._pending.append(self._pool.submit(self._read, steps))


def steps_of_next(read: BatchesRead) -> int:
    """Returns the number of steps for the next pass, at least one."""
    count = len(read.batches)
    seconds = sum(each.read_seconds + each.decode_seconds for each in read.batches)
    size_bytes = sum(each.record_bytes for each in read.batches)
    by_time = count * _PASS_SECONDS / max(seconds, 1e-9)
    by_bytes = count * _PASS_BYTES / max(size_bytes, 1)
    return max(1, int(min(by_time, by_bytes, _MOST_STEPS)))


def closed_meanwhile() -> InputError:
    """Returns the error for a reader whose feed another thread has closed."""
    return InputError(
        "the feed was closed while a batch was read",
        cure="close the feed after the last batch, or make another feed",
    )


# The one in use, and the next.
_WINDOWS = 2


class _Window(NamedTuple):
    positions: IntArray  # Those of this reader, ascending.
    records: list[bytes]


class WindowReads:
    """The rows that a reader needs of the batches of one dataset, in a block shuffle.

    Safe to share by threads. It reads all of `steps`, in any order.
    """

    def __init__(
        self,
        dataset: Dataset,
        schedule: Schedule,
        shuffle: BlockShuffle,
        rows: RowsBySize,
        steps: range,
    ):
        self._dataset, self._schedule, self._rows = dataset, schedule, rows
        self._steps = steps
        self._order, self._shuffle = schedule.phases[0].orders[0], shuffle
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
        steps: range = range(sys.maxsize),
    ) -> WindowReads | None:
        """Returns a reader by windows, None if reading by windows is not faster.

        It is faster for a single dataset in object storage whose shuffle has windows,
        where two of them fit `ReadOptions.window_bytes`. It knows a single phase only.
        """
        if len(datasets) != 1 or isinstance(rows, Mapping) or schedule.phases[1:]:
            return None
        (dataset,), shuffle = datasets, schedule.phases[0].orders[0].shuffle
        remote = dataset.stored.shards.remote
        if remote is None or not isinstance(shuffle, BlockShuffle):
            return None
        record_bytes = dataset.facts.mean_record_bytes
        if record_bytes is None:
            return None
        reads = cls(dataset, schedule, shuffle, rows, steps)
        window_records = min(
            shuffle.block_records * shuffle.window_blocks, max(len(dataset), 1)
        )
        size = schedule.batch_size(0)
        own = np.arange(size)[rows_of(rows, size, size)].size
        share = own / size / steps.step * record_bytes
        if _WINDOWS * window_records * share > remote.fetcher.options.window_bytes:
            return None
        return reads

    def read(self, step: int) -> list[bytes]:
        """Returns the rows of a step's batch."""
        positions = self._schedule.positions(step, self._rows)
        out = [b""] * len(positions)
        left = np.ones(len(positions), bool)
        while left.any():
            begin, end = self._bounds(int(positions[left].min()))
            inside = (positions >= begin) & (positions < end)
            last = int(positions[inside].max())
            window = self._window(begin, end, last).result()
            found = np.searchsorted(window.positions, positions[inside]).tolist()
            for place, number in zip(
                np.flatnonzero(inside).tolist(), found, strict=True
            ):
                out[place] = window.records[number]
            left &= ~inside
        return out

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
            if position - begin >= (end - begin) // 4 and end < self._schedule.stop:
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

    def _load(self, begin: int, end: int) -> _Window:
        schedule, steps = self._schedule, self._steps
        first, last = (schedule.find_step(place)[0] for place in (begin, end - 1))
        # Those of this reader, which takes every n-th step.
        first += (steps.start - first) % steps.step
        last = min(last, schedule.step_limit - 1)
        found = [
            schedule.positions(step, self._rows)
            for step in range(first, last + 1, steps.step)
        ]
        positions = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
        positions = positions[(positions >= begin) & (positions < end)]
        numbers = self._order.records(positions)
        return _Window(positions, self._dataset.stored.read(numbers))
