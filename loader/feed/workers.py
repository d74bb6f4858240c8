"""Worker processes of a feed: they read and decode steps in turn.

Workers are fresh interpreters. They never see an accelerator, leave Ctrl-C to the
trainer, and end with it. A worker makes a batch only when the trainer asks for one, so
few are in memory. It ends only when told to: one that has ended has failed.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from typing import Any, TypeAlias

import cloudpickle

from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    StorageError,
    SystemLimitError,
    UserFunctionError,
    WorkerDiedError,
)
from gristmill.loader.data.batches import noted
from gristmill.loader.feed.read_ahead import closed_meanwhile
from gristmill.loader.feed.stats import ReadBatch
from gristmill.loader.feed.step_reads import StepReads

_POLL_SECONDS = 0.5
# How long workers may take for the batches that they are making.
_PATIENCE_SECONDS = 5
Packed: TypeAlias = tuple[str, list[tuple[int, int]]]
"""The name of a block of shared memory, and the parts in it."""

_READ, _STOP = b"read", b"stop"

_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}


class WorkerReads(Iterator[ReadBatch]):
    """The batches of steps, in order: worker w of W makes every W-th, from the w-th on.

    Args:
        make: Makes the `StepReads` of a worker.
        steps: The steps.
        workers: How many processes.
        prefetch: Least number of batches to keep ready, besides those being made.
    """

    def __init__(
        self,
        make: Callable[..., StepReads],
        steps: range,
        *,
        workers: int,
        prefetch: int,
    ):
        try:
            code = cloudpickle.dumps(make)
        except Exception as e:
            raise InputError(
                "decode cannot be sent to worker processes: it does not pickle",
                got=f"{type(e).__name__}: {e}",
                cure="use a function of a module, or an object that pickles; or "
                "workers=0",
            ) from e
        self._left = iter(steps)
        self._number, self._closed = 0, False
        self._prefix = f"gristmill-{os.getpid()}-{secrets.token_hex(2)}-"
        self._lock = threading.Lock()
        self._workers: list[tuple[BaseProcess, Connection]] = []
        context = multiprocessing.get_context("spawn")
        try:
            with _as_workers_start():
                for number in range(workers):
                    pipe, theirs = context.Pipe()
                    process = context.Process(
                        target=run_worker,
                        args=(theirs, code, steps[number::workers], self._prefix),
                        name=f"gristmill-worker-{number}",
                        daemon=True,
                    )
                    process.start()
                    theirs.close()
                    self._workers.append((process, pipe))
            for _, pipe in self._workers:
                for _ in range(1 + -(-prefetch // workers)):
                    self._ask(pipe)
        except BaseException:
            self.close()
            raise

    def __next__(self) -> ReadBatch:
        with self._lock:
            if self._closed:
                raise closed_meanwhile()
            next(self._left)
            _, pipe = self._workers[self._number]
            message = self._message(pipe)
            self._ask(pipe)
            self._number = (self._number + 1) % len(self._workers)
        return batch_of(message)

    def close(self) -> None:
        """Ends the workers, those that take too long by force."""
        self._closed = True
        with self._lock:
            workers, self._workers = self._workers, []
        for _, pipe in workers:
            with contextlib.suppress(OSError):
                pipe.send_bytes(_STOP)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for process, pipe in workers:
            process.join(max(0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        if workers:
            remove_leftovers(self._prefix)

    def _message(self, pipe: Connection) -> bytes:
        """Waits for a message; raises WorkerDiedError as soon as any worker ends."""
        ends = [process.sentinel for process, _ in self._workers]
        while pipe not in (ready := wait([pipe, *ends], _POLL_SECONDS)):
            if self._closed:
                raise closed_meanwhile()
            for process, _ in self._workers:
                if process.sentinel in ready:
                    raise _died(process)
        try:
            return pipe.recv_bytes()
        except (EOFError, OSError):
            raise _died(self._workers[self._number][0]) from None

    @staticmethod
    def _ask(pipe: Connection) -> None:
        with contextlib.suppress(OSError):  # Of one that has died: told by its end.
            pipe.send_bytes(_READ)


def _died(process: BaseProcess) -> WorkerDiedError:
    process.join(_PATIENCE_SECONDS)
    code = process.exitcode
    cure = "see its output above; the feed continues with new workers"
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
    got = f"process {process.pid} with exit code {code}"
    return WorkerDiedError("a worker of the feed died", got=got, cure=cure)


@contextlib.contextmanager
def _as_workers_start() -> Iterator[None]:
    """Sets the environment that workers inherit, and blocks interrupts meanwhile.

    This process has imported JAX and numpy, and reads those variables no more.
    """
    # It starts with the first worker, and unblocks interrupts when it does.
    resource_tracker.ensure_running()
    # One core each: numpy's linear algebra would start a thread for every core.
    values = {"OPENBLAS_NUM_THREADS": "1", **os.environ, **_ENVIRONMENT}
    before = dict(os.environ)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(values)
    try:
        yield
    finally:
        for name in {"OPENBLAS_NUM_THREADS", *_ENVIRONMENT} - before.keys():
            del os.environ[name]
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def run_worker(pipe: Connection, code: bytes, steps: range, prefix: str) -> None:
    """Makes the batches of steps, each when it is asked for, until it is told to stop.

    Args:
        pipe: Where it is asked, and sends batches.
        code: A pickled function that makes a `StepReads`.
        steps: The steps.
        prefix: Prefix of the names of shared memory.
    """
    # A script that was imported may have changed it, or have begun with JAX.
    os.environ.update(_ENVIRONMENT)
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    threading.Thread(target=_end_with_trainer, daemon=True).start()
    reads = pickle.loads(code)(in_turn=steps)
    asked, left = 0, iter(steps)
    with contextlib.suppress(EOFError, OSError):  # The trainer is gone.
        while True:
            while pipe.poll(0 if asked else None):
                if pipe.recv_bytes() == _STOP:
                    return
                asked += 1
            asked -= 1
            step = next(left, None)
            if step is not None:
                pipe.send_bytes(message_of(reads, step, prefix=prefix))


def _end_with_trainer() -> None:
    trainer = multiprocessing.parent_process()
    if trainer is not None:
        trainer.join()
        os._exit(1)


def batch_of(message: bytes) -> ReadBatch:
    """Returns the batch that a worker sent, or raises its error."""
    sent = pickle.loads(message)
    if isinstance(sent, BaseException):
        raise sent
    read: ReadBatch = unpack(sent)
    return read


def message_of(reads: StepReads, step: int, *, prefix: str) -> bytes:
    """Returns the message of a worker: the batch of a step, or its error."""
    read = reads.read([step])
    error = read.error
    if error is None:
        try:
            return pickle.dumps(pack(read.batches[0], prefix=prefix))
        except Exception as e:
            error = noted(e, step)
    if not isinstance(error, Exception):
        raise error
    text = "".join(traceback.format_exception(error))
    try:
        if not isinstance(error, GristmillError):
            error.add_note(f"In worker process {os.getpid()}:\n{text}")
        sent = pickle.dumps(error)
        pickle.loads(sent)
    except Exception:  # The error's own code may raise anything.
        sent = pickle.dumps(
            UserFunctionError(
                "a batch failed with an error that does not pickle",
                where=f"step {step:,}",
                got=text,
                cure="see the traceback; with workers=0 the error itself is raised",
            )
        )
    return sent


# The alignment that processors and devices need for arrays.
_ALIGNMENT_BYTES = 64


def pack(batch: Any, *, prefix: str) -> Packed:
    """Puts a batch into a block, from which `unpack` takes it, once.

    The block holds a pickle, and the arrays that it refers to. A batch that does not
    pickle is a UserFunctionError; one without room, a StorageError.
    """
    arrays: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(batch, protocol=5, buffer_callback=arrays.append)
    except Exception as e:  # Objects may raise anything when they are pickled.
        raise UserFunctionError(
            "the batch that decode returned does not pickle, so no worker can send it",
            where=f"worker process {os.getpid()}",
            got=f"{type(e).__name__}: {e}",
            cure="return arrays, numbers, texts, and lists, tuples or dicts of these; "
            "or use workers=0",
        ) from e
    parts = [memoryview(head), *(array.raw() for array in arrays)]
    spans, end = [], 0
    for part in parts:
        begin = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        end = begin + part.nbytes
        spans.append((begin, end))
    memory = _new_block(f"{prefix}{secrets.token_hex(4)}", end)
    for (begin, stop), part in zip(spans, parts, strict=True):
        memory.buf[begin:stop] = part  # type: ignore[index]
    memory.close()
    return memory.name, spans


def _new_block(name: str, size_bytes: int) -> SharedMemory:
    """Makes a block and allocates it: writing to missing memory would be SIGBUS."""
    memory = None
    try:
        memory = SharedMemory(name=name, create=True, size=size_bytes)
        if hasattr(os, "posix_fallocate"):  # Not on macOS.
            os.posix_fallocate(memory._fd, 0, size_bytes)  # type: ignore[attr-defined]
    except OSError as e:
        if memory is not None:
            memory.close()
            memory.unlink()
        raise StorageError(
            "no room for a batch in shared memory",
            where="/dev/shm",
            expected=f"room for {size_bytes:,} bytes",
            got=os.strerror(e.errno) if e.errno else str(e),
            cure=SystemLimitError.CURES.get(e.errno or 0)
            or "make room in /dev/shm, which carries batches from workers (containers "
            "have 64 MB: docker run --shm-size=2g), or use fewer workers",
        ) from e
    return memory


def unpack(packed: Packed) -> Any:
    """Returns the batch in a block. Its arrays stay there, without a copy."""
    name, spans = packed
    memory = SharedMemory(name)
    # Python closes its own mapping; the arrays keep this one. The name goes at once.
    view = memoryview(mmap.mmap(memory._fd, memory.size))  # type: ignore[attr-defined]
    memory.close()
    memory.unlink()
    head, *arrays = (view[begin:end] for begin, end in spans)
    try:
        return pickle.loads(head, buffers=arrays)
    except Exception as e:  # Objects may raise anything when they are made again.
        raise UserFunctionError(
            "the trainer cannot unpickle the batch that decode returned in a worker",
            got=f"{type(e).__name__}: {e}",
            cure="return arrays, numbers, texts, and lists, tuples or dicts of these; "
            "or use workers=0",
        ) from e


def remove_leftovers(prefix: str) -> None:
    """Removes the blocks that workers left behind.

    On macOS, where blocks have no directory, Python removes them at exit.
    """
    for path in glob.glob(f"/dev/shm/{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            # Or else Python would warn of it at exit.
            name = f"/{os.path.basename(path)}"
            resource_tracker.register(name, "shared_memory")
            resource_tracker.unregister(name, "shared_memory")
