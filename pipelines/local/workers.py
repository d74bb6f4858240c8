"""Worker processes of this machine, from their start to their end."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, Self

from gristmill.dataset.base.errors import WorkerDiedError
from gristmill.dataset.base.system import daemon_call

_log = logging.getLogger(__name__)

# A result, or an error and its traceback; see `call`.
Outcome = tuple[Any, BaseException | None, str]

_POLL_SECONDS = 0.01
# Interval of looking for dead workers while no result arrives.
_LOOK_SECONDS = 1.0
# Time for a process to end after a signal.
_LAST_SECONDS = 2.0


def worker_died(which: str, code: int = -signal.SIGKILL) -> WorkerDiedError:
    """Returns the error for a worker process that ended before its work.

    Args:
        which: Its name for the message.
        code: Its exit code, negative for a signal; by default that of a killed process.
    """
    if code == -signal.SIGKILL:
        got = f"{which} was killed, most often by the system for lack of memory"
        cure = "run the same command again, with fewer workers if memory was short; "
    elif code < 0:
        got = f"{which} was ended by a signal: {signal.strsignal(-code)}"
        cure = "look for the cause in the --map function and in the libraries that it "
        cure += "uses, then run the same command again; "
    else:
        got = f"{which} exited with code {code}"
        cure = "see its output above, and whether the --map function or a library "
        cure += "calls os._exit(); then run the same command again; "
    return WorkerDiedError(
        "a worker process ended without a result",
        expected="every worker to run until the end",
        got=got,
        cure=f"{cure}finished shards are kept",
    )


def call(function: Callable[[Any], Any], item: Any) -> Outcome:
    """Calls a function; returns its result, or its error with the traceback."""
    try:
        return function(item), None, ""
    except BaseException as e:
        return None, e, traceback.format_exc()


class Workers:
    """Worker processes, which call a function for one item after the other.

    Use them in a `with` statement. At its end they have ended, or are killed.

    Args:
        function: The function to call. Must be picklable.
        count: Number of processes.
        threads: Concurrent calls in each.
        patience_seconds: Time for them to end after the last result; None to end them
            at once, without a warning.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        count: int,
        threads: int,
        patience_seconds: float | None,
    ):
        self._function, self._count, self._threads = function, count, threads
        self._patience_seconds = patience_seconds
        self._workers: list[_Worker] = []
        self._free: deque[_Worker] = deque()
        self._ready: deque[Any] = deque()

    def __enter__(self) -> Self:
        # It would start with the first worker, and unblock interrupts.
        resource_tracker.ensure_running()
        # Ctrl-C is raised in the main thread, so it leaves no half-started process
        # here.
        started = daemon_call(self._start, thread_name="gristmill-start-workers")
        try:
            started.result()
        except BaseException:
            wait([started])
            self._end(patience_seconds=0)
            raise
        # Free threads: the first one of every worker before the second one of any.
        self._free.extend(self._workers * self._threads)
        return self

    def _start(self) -> None:
        # Processes inherit this; otherwise one that is importing would print a
        # traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(self._count):
            self._workers.append(_Worker(self._function, self._threads))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        patience = None if kind else self._patience_seconds
        killed = self._end(patience_seconds=patience or 0)
        if killed and patience is not None:
            _log.warning(
                "%d of %d worker processes were killed: they had not ended %g seconds "
                "after their last result. The --map function, or a library, left a "
                "thread, a process or an atexit function there. No result is lost.",
                killed,
                self._count,
                patience,
            )

    def give(self, item: Any) -> None:
        """Sends an item to a free worker; there must be one."""
        worker = self._free.popleft()
        worker.running += 1
        try:
            worker.connection.send(item)
        except ConnectionError as e:
            raise self._death() from e

    def take(self) -> Outcome:
        """Waits for an outcome, and returns it.

        Raises:
            WorkerDiedError: A worker has ended.
        """
        busy = {w.connection: w for w in self._workers if w.running}
        while not self._ready:
            self._ready.extend(
                multiprocessing.connection.wait(list(busy), _LOOK_SECONDS)
            )
            # A child of a dead worker can keep its connection open.
            if not self._ready and any(w.ended for w in busy.values()):
                raise self._death()
        connection = self._ready.popleft()
        try:
            result, error, where = connection.recv()
        except (EOFError, ConnectionError) as e:
            raise self._death() from e
        worker = busy[connection]
        worker.running -= 1
        self._free.append(worker)
        if error is not None:
            error.__cause__ = _WorkerError(where)
        return result, error, where

    def _death(self) -> WorkerDiedError:
        last = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < last:
            for worker in self._workers:
                code = worker.process.exitcode
                if code is not None:
                    return worker_died(f"process {worker.process.pid}", code)
            time.sleep(_POLL_SECONDS)
        return worker_died(f"one of {self._count} processes")

    def _end(self, *, patience_seconds: float) -> int:
        """Ends the workers; returns how many did not end by themselves."""
        for worker in self._workers:
            worker.connection.close()  # It then ends.
        left = self._wait_for_end(patience_seconds)
        for worker in left:
            worker.process.terminate()
        for worker in self._wait_for_end(_LAST_SECONDS):
            worker.process.kill()
        self._wait_for_end(_LAST_SECONDS)
        return len(left)

    def _wait_for_end(self, seconds: float) -> Sequence[_Worker]:
        # `join` waits for a pipe as well, which the worker's children hold open.
        last = time.monotonic() + seconds
        while left := [worker for worker in self._workers if not worker.ended]:
            if time.monotonic() >= last:
                break
            time.sleep(_POLL_SECONDS)
        return left


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

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None


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
    # Ctrl-C, which was blocked until here, reaches the whole process group: workers end
    # at once without a message, and the parent reports it. A worker whose parent has
    # died ends too.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    receiving, sending = threading.Lock(), threading.Lock()

    def serve() -> None:
        while True:
            try:
                with receiving:
                    item = connection.recv()
            except (EOFError, OSError):
                return  # The parent has closed the connection.
            outcome = call(function, item)
            with sending:
                try:
                    connection.send(outcome)
                except OSError:
                    return
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
