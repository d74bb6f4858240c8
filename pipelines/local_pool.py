"""Worker processes on this machine: work spread evenly, and a dead worker noticed.

Beam's own multi-processing mode divides the work before it starts and hangs for ever
when a worker is killed. This pool hands out one item at a time.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from gristmill.dataset.errors import InputError, WorkerDiedError

T = TypeVar("T")
R = TypeVar("R")


def default_workers() -> int:
    """Returns the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def worker_died(which: str) -> WorkerDiedError:
    """Returns the error that says that a worker process was killed."""
    return WorkerDiedError(
        "a worker process ended without a result",
        expected="every worker at work until the end",
        got=f"{which} was killed, most often by the system for lack of memory",
        cure="run the same command again, with fewer workers if memory was short: "
        "finished shards are kept",
    )


def _start_worker() -> None:
    # Ctrl-C reaches the whole process group: workers end at once and in silence, the
    # parent reports. A worker whose parent is gone must not go on either.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def map_unordered(
    function: Callable[[T], R], items: Iterable[T], *, workers: int
) -> Iterator[R]:
    """Yields function(item) for every item, as they finish.

    With one worker everything runs in this process. When a call fails, the calls that
    have begun are finished, and then the first error is raised: their results are on
    storage for the next run.

    Args:
        function: Picklable; called in a worker process.
        items: Picklable.
        workers: Number of processes.

    Raises:
        WorkerDiedError: A worker process was killed.
    """
    if workers < 1:
        raise InputError(
            "number of workers must be positive", got=workers, cure="see --workers"
        )
    if workers == 1:
        yield from map(function, items)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        # A forked copy of a process with threads can deadlock.
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    waiting = iter(items)
    running: set[concurrent.futures.Future[R]] = set()
    try:
        while True:
            # One more than workers, so that none waits for its next item.
            for item in itertools.islice(waiting, 2 * workers - len(running)):
                running.add(pool.submit(function, item))
            if not running:
                return
            done, running = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                yield future.result()
    except BrokenProcessPool as e:
        raise worker_died(f"one of {workers} processes") from e
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
