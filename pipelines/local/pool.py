"""A pool of worker processes on this machine, and running jobs on it.

Beam's multi-processing mode divides the work before it starts, and hangs when a worker
is killed. This pool hands out one item at a time and detects dead workers. The pools of
the standard library run one call at a time in each process; here several threads of a
process can wait for storage while one computes.
"""

from __future__ import annotations

import functools
import itertools
import logging
import queue
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.system import daemon_call, usable_cores
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.progress import Counter, shown
from gristmill.transforms.jobs.job import Begun, Job, list_results

if TYPE_CHECKING:
    from gristmill.pipelines.local.workers import Outcome

_log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
# Yields results, and returns the first error.
_Results = Generator[Any, None, BaseException | None]

# The approximate time to start a process: shorter work is done before it would begin.
_START_SECONDS = 0.25
_LITTLE_BYTES = 16 << 20


def default_workers() -> int:
    """Returns the default number of worker processes."""
    return usable_cores()


def alone_seconds(workers: int | None, stored_bytes: int, *, remote: bool) -> float:
    """Returns the CPU seconds that this process should work before starting others.

    CPU time, because if it waits for a core, others would wait as well.

    Args:
        workers: Number of processes that the user requests; these start at once.
        stored_bytes: Size of all files to read; if it is large, several start at once.
        remote: Whether they are remote, so that several processes share the latency.
    """
    little = workers is None and stored_bytes <= _LITTLE_BYTES
    return _START_SECONDS if little and not remote else 0.0


def map_unordered(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    workers: int,
    threads: int = 1,
    alone_seconds: float = 0.0,
    patience_seconds: float = 5.0,
) -> Iterator[R]:
    """Yields function(item) for every item, in the order in which they finish.

    With one worker everything runs in this process. When a call fails, the running
    calls are finished and then the first error is raised: the next run finds their
    results on storage.

    Args:
        function: The function to call in a worker process. Must be picklable.
        items: Its arguments. Must be picklable.
        workers: Number of processes.
        threads: Concurrent calls in each process.
        alone_seconds: CPU time in which this process works on items one by one, before
            it starts processes for the rest.
        patience_seconds: Time for processes to end when all items are done. Those that
            continue, such as for a remaining thread, are then killed.

    Raises:
        WorkerDiedError: A worker process was killed, or ended itself.
    """
    if workers < 1:
        raise InputError(
            "number of workers must be positive", got=workers, cure="see --workers"
        )
    items = iter(items)
    if alone_seconds:
        until = time.process_time() + alone_seconds
        for item in items:
            if time.process_time() >= until:
                items = itertools.chain([item], items)
                break
            yield function(item)
        else:
            return
    error: BaseException | None = None
    if workers > 1:
        # Its library takes a while to import.
        from gristmill.pipelines.local.workers import Workers

        with Workers(
            function, count=workers, threads=threads, patience_seconds=patience_seconds
        ) as processes:
            error = yield from _spread(
                items, workers * threads, processes.give, processes.take
            )
    elif threads > 1:
        error = yield from _map_in_threads(function, items, threads)
    else:
        yield from map(function, items)
    if error is not None:
        raise error


def call_apart(function: Callable[[], R]) -> R:
    """Returns the result of a function that runs in its own process.

    Args:
        function: The function. Must be picklable.

    Raises:
        WorkerDiedError: The process was killed, or ended itself.
    """
    from gristmill.pipelines.local.workers import Workers

    with Workers(_call, count=1, threads=1, patience_seconds=None) as processes:
        processes.give(function)
        result, error, _ = processes.take()
    if error is not None:
        raise error
    found: R = result
    return found


def _call(function: Callable[[], R]) -> R:
    return function()


def _spread(
    items: Iterable[T],
    at_once: int,
    give: Callable[[T], None],
    take: Callable[[], Outcome],
) -> _Results:
    """Starts a call for each item, several at once; `take` waits for the end of one."""
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
    from gristmill.pipelines.local.workers import call

    done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()

    def give(item: T) -> None:
        # A daemon, so that Ctrl-C ends the process.
        daemon_call(
            lambda: done.put(call(function, item)), thread_name="gristmill-step"
        )

    return (yield from _spread(items, threads, give, done.get))


def run_steps(
    step: Callable[[Any], Any],
    begun: Begun[Any],
    *,
    workers: int | None = None,
    threads: int = 1,
    apart: bool = False,
    show_progress: bool = False,
) -> Iterator[Any]:
    """Yields the results of all tasks, in the order in which they finish.

    Args:
        step: The function to call on each; it returns a result with `done`, or yields
            several.
        begun: The tasks.
        workers: Number of processes; None for one per core, started only if there is
            enough work.
        threads: Concurrent steps in each process.
        apart: Whether this process runs no step if there are several workers.
        show_progress: Whether to show progress on standard error.

    Raises:
        WorkerDiedError: A worker process was killed, or ended itself.
    """
    parts, size = begun.parts, begun.stored_bytes
    places = (*begun.sources, *filter(None, [begun.sink]))
    remote = any(storage_for(path).remote for path in places)
    made = map_unordered(
        functools.partial(list_results, step),
        begun.tasks,
        workers=max(1, min(workers or default_workers(), parts)),
        threads=threads,
        alone_seconds=0.0 if apart else alone_seconds(workers, size, remote=remote),
    )
    planned = parts if begun.planned is None else begun.planned
    counter = None
    if show_progress and planned:
        counter = Counter(begun.noun, planned, size)
    with nullcontext() if counter is None else shown(begun.label, counter):
        for result in itertools.chain.from_iterable(made):
            if counter is not None:
                counter.add(result.done)
            yield result


def run_job(job: Job[R], begun: Begun[Any] | None = None, **how: Any) -> R:
    """Runs all steps of a job, and returns the result of its commit.

    Args:
        job: The job.
        begun: The tasks, if the job has begun.
        how: As for `run_steps`.
    """
    begun = begun or job.begin()
    gathered = Gathered.of(begun.known)
    for result in run_steps(job.step, begun, **how):
        result.gather(gathered)
        _log.info("%s: %s", result.done.path, result.done.said)
    return job.commit(gathered)
