"""Grain's worker processes: the batches that they send, and how they end.

Workers are fresh interpreters. They never see an accelerator, leave Ctrl-C to their
parent, and do not outlive it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle
import grain
import numpy as np

from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    UserFunctionError,
    WorkerDiedError,
)
from gristmill.dataset.base.system_limits import check_files
from gristmill.loader.data.batches import noted
from gristmill.loader.feed.shared_memory import pack
from gristmill.loader.feed.worker_process import allow_unparsed_flags, prepare_worker
from gristmill.loader.stats.feed_stats import BatchesRead, ReadBatch

_START_SECONDS = 30
# What this process opens for each worker and for all: pipes, and batches on their way.
_WORKER_FILES, _SHARED_FILES = 12, 8
_POLL_SECONDS = 0.005
# Tells a process that it is a worker, which ends with this exit code where it imports a
# script that starts a feed: the trainer has one error instead of one from each worker.
_WORKER_VARIABLE = "_GRISTMILL_FEED_WORKER"
_NO_GUARD = 97

# Feeds start their workers one feed at a time: they tell their own by the difference.
_starting = threading.Lock()


class Workers:
    """The worker processes of one feed; none if it reads in threads.

    If a worker has exited with code 0, that counts as a failure after the feed has
    waited for a batch for `silent_seconds`.
    """

    def __init__(
        self, processes: Sequence[BaseProcess] = (), *, silent_seconds: float = 0
    ):
        self._processes, self._silent_seconds = tuple(processes), silent_seconds

    def check(self, waited_seconds: float) -> None:
        """Raises WorkerDiedError if a worker has ended: none does so by itself.

        Grain ends a failed worker with exit code 0 and sends the error; a worker that
        exits by itself with code 0 looks the same, but nothing arrives while the caller
        waits for a batch.
        """
        for process in self._processes:
            code = process.exitcode
            if code or (code == 0 and waited_seconds > self._silent_seconds):
                raise _died(f"process {process.pid} with exit code {code}", code)

    def kill(self) -> None:
        """Kills the workers that are left."""
        for process in self._processes:
            process.kill()


def iterate_in_workers(
    source: grain.sources.RandomAccessDataSource,
    *,
    workers: int,
    silent_seconds: float,
) -> tuple[Any, Workers]:
    """Returns Grain's iterator of a source, read by processes, and the processes.

    Raises:
        InputError: The source does not pickle, or a worker is importing the script
            that starts the feed.
        SystemLimitError: The process may open too few files.
    """
    _refuse_where_none_can_start()
    try:
        cloudpickle.dumps(source)
    except Exception as e:
        raise InputError(
            "decode cannot be sent to worker processes: it does not pickle",
            got=f"{type(e).__name__}: {e}",
            cure="use a function of a module, or an object that pickles; or workers=0",
        ) from e
    check_files(_SHARED_FILES + _WORKER_FILES * workers, what=f"{workers} workers")
    allow_unparsed_flags()
    dataset = (
        grain.MapDataset.source(source)
        # Workers have no threads: there is a worker for each batch at a time.
        .to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        .mp_prefetch(
            grain.MultiprocessingOptions(num_workers=workers),
            worker_init_fn=prepare_worker,
        )
    )
    iterator = iter(dataset)
    # One core each: numpy's linear algebra would start a thread for every core.
    blas_threads = os.environ.get("OPENBLAS_NUM_THREADS", "1")
    environment = {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": blas_threads}
    environment[_WORKER_VARIABLE] = "1"
    with _starting, _environment(environment), _interrupts_held_back():
        before = set(multiprocessing.active_children())
        # The state makes Grain hold the iterators of all workers from the beginning,
        # so that it starts them together, and closes all of them.
        iterator.get_state()
        iterator.start_prefetch()
        processes = _new_processes(before, workers)
        return iterator, Workers(processes, silent_seconds=silent_seconds)


def _new_processes(before: set[BaseProcess], workers: int) -> list[BaseProcess]:
    """Waits until Grain's threads have started the workers, and returns these."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        new = [
            process
            for process in multiprocessing.active_children()
            if process not in before and process.name.startswith("grain-process")
        ]
        if len(new) >= workers:
            # Others' processes among them? Then only Grain watches ours.
            return new if len(new) == workers else []
        time.sleep(_POLL_SECONDS)
    return []  # Grain says what went wrong, when the first batch is asked for.


def explained(error: Exception) -> Exception:
    """Returns the error that a feed raises for an error of Grain's iterator."""
    text = str(error)
    _, found, rest = text.partition("terminated unexpectedly with exit code ")
    if not isinstance(error, RuntimeError) or not found:
        return error
    code = rest.split(".")[0]
    number = int(code) if code.lstrip("-").isdigit() else 1
    return _died(f"a process with exit code {code}", number)


def _died(got: str, code: int) -> GristmillError:
    if code == _NO_GUARD:
        return _no_guard(sys.modules.get("__main__"))
    cure = "see its output above; the feed continues after set_state(get_state())"
    if code == -signal.SIGKILL:
        cure = "check whether the kernel ran out of memory (dmesg); use fewer workers "
        cure += "or a smaller prefetch"
    elif code == -signal.SIGBUS:
        # Shards and shared memory have errors of their own.
        cure = "an index, or a file that decode has mapped, was truncated, or a disk "
        cure += "or memory failed: see dmesg, and check the dataset with `gristmill "
        cure += "verify`"
    elif code == 1:
        cure = "see its output above. Workers import the script: put its top level "
        cure += "under if __name__ == '__main__':"
    return WorkerDiedError("a worker of the feed died", got=got, cure=cure)


def _no_guard(script: object) -> InputError:
    return InputError(
        "a script that starts a feed with workers at its top level cannot be imported "
        "by them",
        where=getattr(script, "__file__", None),
        got="workers that would start workers themselves",
        cure="put the script's top level under if __name__ == '__main__':, or use "
        "workers=0",
    )


def _refuse_where_none_can_start() -> None:
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        if _WORKER_VARIABLE in os.environ:
            sys.exit(_NO_GUARD)  # The trainer says it.
        raise _no_guard(sys.modules.get("__mp_main__"))
    if process.daemon:
        raise InputError(
            "a daemonic process cannot start workers: it is a worker itself",
            got=f"a feed with workers in the process {process.name}",
            cure="use workers=0",
        )


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for the processes that are started meanwhile.

    This process does not read them any more: JAX and numpy are imported.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Blocks Ctrl-C in the threads and processes that are started meanwhile."""
    # It starts with the first worker, and unblocks interrupts when it does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class BatchSource:
    """Element i is the batch of step `start_step + i * every`, in shared memory.

    It has no end: past the last step there are empty elements. So a worker that reads
    ahead never exits by itself: one that has exited has failed.

    Args:
        read: Reads the batches of steps.
        start_step: The first step.
        every: Steps from one element to the next.
        steps: How many there are; None if there is no end.
        prefix: Prefix of the names of shared memory.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], BatchesRead],
        *,
        start_step: int,
        every: int = 1,
        steps: int | None,
        prefix: str,
    ):
        self._read, self._prefix = read, prefix
        self._start_step, self._every, self._steps = start_step, every, steps
        # How long it took to send the batch before; a worker has one thread.
        self._sent_seconds = 0.0

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        step = self._start_step + index * self._every
        if self._steps is not None and step >= self._steps:
            return np.empty(0, np.uint8)
        read = self._read([step])
        error = read.error
        if error is None:
            try:
                return self._send(read.batches[0])
            except Exception as e:
                error = noted(e, step)
        if not isinstance(error, Exception) or _pickles(error):
            raise error
        text = "".join(traceback.format_exception(error))
        # Without a context: some libraries pickle that of an error (tblib).
        raise UserFunctionError(
            "a batch failed with an error that does not pickle",
            where=f"step {step:,}",
            got=text,
            cure="see the traceback; with workers=0 the error itself is raised",
        )

    def _send(self, batch: ReadBatch) -> Any:
        batch.transfer_seconds = self._sent_seconds
        started = time.perf_counter()
        packed = pack(batch, prefix=self._prefix)
        self._sent_seconds = time.perf_counter() - started
        return packed


def _pickles(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # The error's own code may raise anything.
        return False
    return True
