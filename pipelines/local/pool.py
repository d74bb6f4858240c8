"""A pool of worker processes on this machine.

Beam's own multi-processing mode divides the work before it starts, and hangs when a
worker is killed. This pool hands out one item at a time and detects dead workers. The
pools of the standard library run one call at a time in each process; here several
threads of a process can wait for storage while one computes.
"""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

from gristmill.dataset.errors import InputError, WorkerDiedError

T = TypeVar("T")
R = TypeVar("R")
# A result, or an error and its traceback; see `_call`.
_Outcome = tuple[Any, BaseException | None, str]
# Yields results, and returns the first error.
_Results = Generator[Any, None, BaseException | None]


def default_workers() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def worker_died(which: str) -> WorkerDiedError:
    """Returns the error for a worker process that was killed."""
    return WorkerDiedError(
        "a worker process ended without a result",
        expected="every worker to run until the end",
        got=f"{which} was killed, most often by the system for lack of memory",
        cure="run the same command again, with fewer workers if memory was short; "
        "finished shards are kept",
    )


def map_unordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    threads: int = 1,
) -> Iterator[R]:
    """Yields function(item) for every item, in the order in which they finish.

    With one worker everything runs in this process. When a call fails, the running
    calls are finished and then the first error is raised: the next run finds their
    results on storage.

    Args:
        function: What to call in a worker process. Must be picklable.
        items: Its arguments. Must be picklable.
        workers: Number of processes.
        threads: Concurrent calls in each process.

    Raises:
        WorkerDiedError: A worker process was killed.
    """
    if workers < 1:
        raise InputError(
            "number of workers must be positive", got=workers, cure="see --workers"
        )
    error: BaseException | None = None
    if workers > 1:
        error = yield from _map_in_processes(function, items, workers, threads)
    elif threads > 1:
        error = yield from _map_in_threads(function, items, threads)
    else:
        yield from map(function, items)
    if error is not None:
        raise error


def _call(function: Callable[[T], R], item: T) -> _Outcome:
    try:
        return function(item), None, ""
    except BaseException as e:
        return None, e, traceback.format_exc()


def _spread(
    items: Iterable[T],
    at_once: int,
    give: Callable[[T], None],
    take: Callable[[], _Outcome],
) -> _Results:
    """Starts a call for each item, some at once; `take` waits for the end of one."""
    waiting = iter(items)
    running = 0
    error: BaseException | None = None
    while True:
        if error is None:
            for item in itertools.islice(waiting, at_once - running):
                give(item)
                running += 1
        if not running:
            break
        result, failure, _ = take()
        running -= 1
        if failure is None:
            yield result
        elif error is None:
            error = failure
    return error


def _map_in_threads(
    function: Callable[[T], R], items: Iterable[T], threads: int
) -> _Results:
    todo: queue.SimpleQueue[tuple[T] | None] = queue.SimpleQueue()
    done: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()

    def work() -> None:
        while (item := todo.get()) is not None:
            done.put(_call(function, item[0]))

    for _ in range(threads):
        # Daemons, so that Ctrl-C ends the process.
        threading.Thread(target=work, daemon=True).start()
    try:
        return (
            yield from _spread(items, threads, lambda item: todo.put((item,)), done.get)
        )
    finally:
        for _ in range(threads):
            todo.put(None)


class _Worker:
    """A worker process, and its number of running calls."""

    def __init__(self, function: Callable[[Any], Any], threads: int):
        # A forked copy of a process with threads can deadlock.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.running = 0
        self.process = context.Process(target=_work, args=(theirs, function, threads))
        self.process.start()
        theirs.close()  # Otherwise its death would not close the connection.


def _map_in_processes(
    function: Callable[[T], R], items: Iterable[T], count: int, threads: int
) -> _Results:
    workers = [_Worker(function, threads) for _ in range(count)]
    by_connection: dict[Any, _Worker] = {w.connection: w for w in workers}
    # Free threads: the first one of every worker before the second one of any.
    free = deque(workers * threads)
    ready: deque[Any] = deque()

    def give(item: T) -> None:
        worker = free.popleft()
        worker.connection.send(item)
        worker.running += 1

    def take() -> _Outcome:
        if not ready:
            busy = [worker.connection for worker in workers if worker.running]
            ready.extend(multiprocessing.connection.wait(busy))
        worker = by_connection[ready.popleft()]
        result, error, where = worker.connection.recv()
        worker.running -= 1
        free.append(worker)
        if error is not None:
            error.__cause__ = _WorkerError(where)
        return result, error, where

    broken = False
    try:
        return (yield from _spread(items, count * threads, give, take))
    except (EOFError, ConnectionError) as e:
        broken = True
        raise worker_died(f"one of {count} processes") from e
    finally:
        for worker in workers:
            if broken:
                worker.process.terminate()
            worker.connection.close()  # The worker then ends.
            worker.process.join()


class _WorkerError(Exception):
    """The traceback in the worker, as the cause of the error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _work(
    connection: multiprocessing.connection.Connection[Any, Any],
    function: Callable[[Any], Any],
    threads: int,
) -> None:
    """Calls a function for every item that arrives; the main loop of a worker."""
    # Ctrl-C reaches the whole process group: workers end at once without a message, and
    # the parent reports. A worker whose parent has died ends, too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    receiving, sending = threading.Lock(), threading.Lock()

    def serve() -> None:
        while True:
            try:
                with receiving:
                    item = connection.recv()
            except EOFError:
                return
            outcome = _call(function, item)
            with sending:
                try:
                    connection.send(outcome)
                except OSError:
                    return  # The parent has closed the connection.
                except Exception as e:  # The outcome does not pickle.
                    # Its repr may fail as well.
                    kind = type(outcome[1] or outcome[0]).__name__
                    error = TypeError(f"{kind} does not pickle: {e}")
                    connection.send((None, error, outcome[2]))

    others = [threading.Thread(target=serve) for _ in range(threads - 1)]
    for other in others:
        other.start()
    serve()
    for other in others:
        other.join()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
