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
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.order.shuffle import BlockShuffle
from gristmill.loader.order.step_records import Rows, RowsBySize, Schedule
from gristmill.loader.stats.feed_stats import BatchesRead, thread_times

# The time and the records of a pass, and its steps: more of them save little.
_PASS_SECONDS = 0.01
_PASS_BYTES = 2 << 20
_MOST_STEPS = 16


class Passes(Iterator[BatchesRead]):
    """What threads read of steps, in order. One thread at a time may use it.

    The last of it is the first with an error.

    Args:
        read: Reads the batches of steps, in any thread.
        steps: The steps, in order.
        threads: How many passes are read at a time; a single one is read by the caller.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], BatchesRead],
        steps: Iterator[int],
        *,
        threads: int,
    ):
        self._read, self._steps, self._threads = read, steps, threads
        self._size = 1
        self._pool: ThreadPoolExecutor | None = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(
                threads, thread_name_prefix="gristmill-read"
            )
        self._pending: deque[Future[BatchesRead]] = deque()

    def __next__(self) -> BatchesRead:
        if self._pool is None:
            steps = self._next_steps()
            if not steps:
                raise StopIteration
            read = self._read(steps)
        else:
            while len(self._pending) < self._threads and (steps := self._next_steps()):
                self._pending.append(self._pool.submit(self._read, steps))
            if not self._pending:
                raise StopIteration
            read = self._pending.popleft().result()
        self._size = min(steps_of_next(read), 2 * self._size)
        return read

    def close(self) -> None:
        """Ends the threads; what they read now is lost."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _next_steps(self) -> list[int]:
        return list(itertools.islice(self._steps, self._size))


def steps_of_next(read: BatchesRead) -> int:
    """Returns how many steps such as these a pass can have, at least one."""
    count = len(read.batches)
    seconds = sum(
        batch.read_seconds
        - batch.read_queued_seconds
        + batch.decode_seconds
        - batch.decode_queued_seconds
        for batch in read.batches
    )
    size_bytes = sum(batch.record_bytes for batch in read.batches)
    by_time = count * _PASS_SECONDS / max(seconds, 1e-9)
    by_bytes = count * _PASS_BYTES / max(size_bytes, 1)
    return max(1, int(min(by_time, by_bytes, _MOST_STEPS)))


T = TypeVar("T")

_POLL_SECONDS = 0.5
# How long to wait for an orderly end, and for the end after a failure or a kill.
_PATIENCE_SECONDS = 5
_LAST_SECONDS = 2


class ReadAhead(Generic[T]):
    """The items of an iterator, read ahead by a thread while fewer than `depth` wait.

    Args:
        iterator: Gives lists of items, those that come together. It is used and closed
            by the thread alone, as it may be unsafe to share.
        close: Closes the iterator. It is called once.
        check: Raises if a process after the iterator has died; its argument is how many
            seconds the caller of `get` has waited.
        kill: Makes the iterator fail if it does not return.
    """

    def __init__(
        self,
        iterator: Iterator[list[T]],
        *,
        depth: int,
        close: Callable[[], None],
        check: Callable[[float], None],
        kill: Callable[[], None],
    ):
        self._depth, self._check, self._kill = depth, check, kill
        self._ready: deque[T] = deque()
        self._changed = threading.Condition()
        self._stop = self._ended = self._begun = self._dead = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run,
            # Only the thread holds these: they are freed when it ends.
            args=(iterator, close),
            name="gristmill-feed",
            daemon=True,
        )
        self._thread.start()

    def __len__(self) -> int:
        """How many items are ready."""
        return len(self._ready)

    def get(self) -> T:
        """Waits for the next item and returns it, as `next` does.

        It raises what the iterator raised after the items before it, and InputError if
        it was closed meanwhile.
        """
        asked_at = time.monotonic()
        with self._changed:
            while True:
                if self._stop:
                    raise InputError(
                        "the feed was closed while a batch was read",
                        cure="close the feed after the last batch, or make another "
                        "feed",
                    )
                if not self._ended:  # Even if items are ready: fail early.
                    self._check_life(time.monotonic() - asked_at)
                if self._ready:
                    item = self._ready.popleft()
                    # To wake the thread for nothing would cost more than the rest.
                    if len(self._ready) < self._depth:
                        self._changed.notify_all()
                    return item
                if self._error is not None:
                    raise self._error
                if self._ended:
                    raise StopIteration
                self._changed.wait(_POLL_SECONDS)

    def close(self) -> None:
        """Ends the thread and closes the iterator. It may be called again.

        It does not wait for an iterator that has not given its first item yet.
        """
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if self._thread is threading.current_thread():
            return  # The garbage collector called this in the thread, which is ending.
        if self._begun:
            self._thread.join(_LAST_SECONDS if self._dead else _PATIENCE_SECONDS)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(_LAST_SECONDS)
        self._error = None

    def _check_life(self, waited_seconds: float) -> None:
        try:
            self._check(waited_seconds)
        except Exception:
            self._dead = True
            raise

    def _run(self, iterator: Iterator[list[T]], close: Callable[[], None]) -> None:
        try:
            for items in iterator:
                with self._changed:
                    self._begun = True
                    while len(self._ready) >= self._depth and not self._stop:
                        self._changed.wait()
                    if self._stop:
                        break
                    self._ready.extend(items)
                    items.clear()  # From here on only the caller has them.
                    self._changed.notify_all()
        except BaseException as e:  # Panics of Rust code are not Exceptions.
            self._error = e
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            close()
            del iterator, close


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
        self._order, self._shuffle = schedule.phases[0].orders[0], shuffle
        self._batch_size = schedule.batch_size(0)
        self._wanted = _among(rows, self._batch_size)
        self._wanted_last = _among(rows, schedule.remainder or self._batch_size)
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
        where two of them fit `ReadOptions.window_bytes`. It knows a single phase only.
        """
        if len(datasets) != 1 or isinstance(rows, Mapping) or schedule.phases[1:]:
            return None
        (dataset,), shuffle = datasets, schedule.phases[0].orders[0].shuffle
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
        return stop if steps is None else min(stop, steps * self._batch_size)

    def _load(self, begin: int, end: int) -> _Window:
        positions = np.arange(begin, min(end, self._stop), dtype=np.int64)
        steps, rows = np.divmod(positions, self._batch_size)
        wanted = self._wanted[rows]
        if self._schedule.remainder:
            last = steps == self._schedule.step_limit - 1
            wanted[last] = self._wanted_last[rows[last]]
        if self._every > 1:
            wanted &= (steps - self._first_step) % self._every == 0
        positions = positions[wanted]
        started = thread_times()
        numbers = self._order.records(positions)
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
