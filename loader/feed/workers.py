"""Grain's threads and worker processes, started so that they do no harm.

Workers are fresh interpreters. They never see an accelerator, leave Ctrl-C to their
parent, and do not outlive it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle
import grain

from gristmill.dataset.errors import InputError, WorkerDiedError
from gristmill.loader.feed.shared_memory import creating
from gristmill.loader.feed.source import BatchSource
from gristmill.loader.grain_source.source import allow_unparsed_flags

_START_SECONDS = 30
_SILENT_SECONDS = 20
_POLL_SECONDS = 0.005

# Feeds start their workers one feed at a time: they tell their own by the difference.
_starting = threading.Lock()


class Workers:
    """The worker processes of one feed; none if it reads in threads."""

    def __init__(self, processes: Sequence[BaseProcess] = ()):
        self._processes = tuple(processes)

    def check(self, waited_seconds: float) -> None:
        """Raises WorkerDiedError if a worker has ended: none does so by itself.

        Args:
            waited_seconds: How long the caller waits for a batch. Grain ends a worker
                in good order when it failed, with the error on its way to the caller;
                one that left by itself looks alike, but then nothing comes.
        """
        for process in self._processes:
            code = process.exitcode
            if code or (code == 0 and waited_seconds > _SILENT_SECONDS):
                raise _died(f"process {process.pid} with exit code {code}", code)

    def kill(self) -> None:
        """Ends those that are left, whatever they do."""
        for process in self._processes:
            process.kill()


def iterate_in_threads(source: BatchSource, *, threads: int) -> Any:
    """Returns Grain's iterator of a source, read by threads of this process."""
    dataset = grain.MapDataset.source(source).to_iter_dataset(
        grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
    )
    return iter(dataset)


def iterate_in_workers(source: BatchSource, *, workers: int) -> tuple[Any, Workers]:
    """Returns Grain's iterator of a source, read by processes, and the processes.

    Raises:
        InputError: The source cannot go to another process, or the script that is run
            is being imported by one.
    """
    _refuse_where_none_can_start()
    try:
        cloudpickle.dumps(source)
    except Exception as e:
        raise InputError(
            "decode cannot go to worker processes: it does not pickle",
            got=f"{type(e).__name__}: {e}",
            cure="use a function of a module, or an object that pickles; or workers=0",
        ) from e
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
    with _starting, _environment(environment), _interrupts_held_back():
        before = set(multiprocessing.active_children())
        # The state makes Grain hold the iterators of all workers from the beginning,
        # so that it starts them together, and closes all of them.
        iterator.get_state()
        iterator.start_prefetch()
        return iterator, Workers(_new_processes(before, workers))


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
            # Somebody else's among them? Then Grain alone watches over ours.
            return new if len(new) == workers else []
        time.sleep(_POLL_SECONDS)
    return []  # Grain says what went wrong, when the first batch is asked for.


def prepare_worker(index: int, count: int) -> None:
    """Runs in a worker before all else."""
    del index, count
    # The first stands in the environment already, and JAX may have read it.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        with creating:
            os._exit(1)


def explained(error: Exception) -> Exception:
    """Returns what a feed raises for an error that came out of Grain's iterator."""
    text = str(error)
    _, found, rest = text.partition("terminated unexpectedly with exit code ")
    if not isinstance(error, RuntimeError) or not found:
        return error
    code = rest.split(".")[0]
    number = int(code) if code.lstrip("-").isdigit() else 1
    return _died(f"a process with exit code {code}", number)


def _died(got: str, code: int) -> WorkerDiedError:
    cure = "look at what it wrote above; the state of the feed is still good"
    if code == -signal.SIGKILL:
        cure = "see whether the kernel killed it for want of memory (dmesg); fewer "
        cure += "workers and a smaller prefetch need less"
    elif code == -signal.SIGBUS:
        cure = "make room in /dev/shm, through which batches travel (in containers "
        cure += "it is 64 MB by default: --shm-size), or use fewer workers"
    elif code == 1:
        cure = "look at what it wrote above. A script that uses workers must be "
        cure += "importable: its top level belongs under if __name__ == '__main__':"
    return WorkerDiedError("a worker of the feed died", got=got, cure=cure)


def _refuse_where_none_can_start() -> None:
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):
        raise InputError(
            "a worker of a feed was about to start workers itself",
            where=getattr(sys.modules.get("__mp_main__"), "__file__", None),
            got="a script that starts a feed at its top level, which workers import",
            cure="put what the script does under if __name__ == '__main__':, or use "
            "workers=0",
        )
    if process.daemon:
        raise InputError(
            "workers cannot be started by a process that is a worker itself",
            got=f"a feed with workers in the daemonic process {process.name}",
            cure="use workers=0",
        )


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets variables that processes started meanwhile inherit.

    Nothing in this process looks at them any more: JAX and numpy are imported.
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
    """Lets the threads and processes that are started meanwhile miss every Ctrl-C."""
    # It starts with the first worker, and lets interrupts through when it has.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
