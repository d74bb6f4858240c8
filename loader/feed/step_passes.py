"""Passes of a feed's threads over its steps, each as many steps as are read cheaply.

A pass of several steps saves calls and wake-ups of threads. Where a step takes long,
or its records are large, a pass is one step, so that threads share the work.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from gristmill.loader.stats.feed_stats import BatchesRead

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
    """Returns the number of such steps in a pass, at least one."""
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
