"""Batches read ahead of the trainer by threads.

A pass of several steps saves calls and wake-ups of threads. Where a step takes long,
or its records are large, a pass is one step, so that threads share the work.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from gristmill.dataset.base.errors import InputError
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
