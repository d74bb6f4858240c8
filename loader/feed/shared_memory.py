"""A batch as a block of shared memory, through which a worker sends it."""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import pickle
import secrets
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from gristmill.dataset.base.errors import (
    StorageError,
    SystemLimitError,
    UserFunctionError,
)

# The alignment that processors and devices need for arrays.
_ALIGNMENT_BYTES = 64


def pack(batch: Any, *, prefix: str) -> bytes:
    """Returns a message from which `unpack` makes the batch again, once.

    The block holds a pickle, and the arrays that it refers to. What does not pickle is
    a UserFunctionError; no room for it is a StorageError.
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
    return pickle.dumps((memory.name, spans))


def _new_block(name: str, size_bytes: int) -> SharedMemory:
    """Makes a block with its memory: to write where there is none would be SIGBUS."""
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


def unpack(message: bytes) -> Any:
    """Returns the batch of a message. Its arrays are in the block, without a copy."""
    name, spans = pickle.loads(message)
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
    """Removes the blocks that no one took, of workers that have ended.

    Where they have no directory, as on macOS, Python removes them when it exits.
    """
    for path in glob.glob(f"/dev/shm/{prefix}*"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            # Else Python would warn of it at the end, if it knows of it.
            name = f"/{os.path.basename(path)}"
            resource_tracker.register(name, "shared_memory")
            resource_tracker.unregister(name, "shared_memory")
