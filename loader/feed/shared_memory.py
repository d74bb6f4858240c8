"""A batch as a block of shared memory, through which a worker sends it.

The message about it is a few hundred bytes, which a pipe takes at once: a killed worker
cannot leave half a message, for which the reader would wait forever.

The blocks of a feed have names with the same prefix. Python's resource tracker learns
of a block shortly after it was made: the block of a worker that is killed in between
is found by its name.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import secrets
import threading
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import (
    StorageError,
    SystemLimitError,
    UserFunctionError,
)

# The alignment that processors and devices need for arrays.
_ALIGNMENT_BYTES = 64
_DIRECTORY = "/dev/shm"

creating = threading.Lock()
"""Held while a block is made: a worker that exits by itself waits for it."""

_numbers = itertools.count()


def new_prefix() -> str:
    """Returns the prefix of the names of a feed's blocks."""
    return f"gristmill-{os.getpid()}-{secrets.token_hex(4)}-"


def pack(batch: Any, *, prefix: str) -> Any:
    """Returns a batch as one array of Grain's; `unpack` undoes it.

    What does not pickle is a UserFunctionError; no room for it is a StorageError.

    The bytes are the number of parts (int64), the end of each part (int64), and the
    parts, each from the next multiple of 64 on: a pickle, and the arrays that it
    refers to.
    """
    # Imported here: only worker processes need it.
    from grain.multiprocessing import SharedMemoryArray

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
    begins, ends = [], []
    end = 8 * (1 + len(parts))
    for part in parts:
        begins.append(-(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        end = begins[-1] + part.nbytes
        ends.append(end)
    # macOS allows no such long names, and has no directory to find them in.
    named = os.path.isdir(_DIRECTORY)
    name = f"{prefix}{os.getpid()}-{next(_numbers)}" if named else None
    with creating:
        memory = _new_block(name, end)
    packed = SharedMemoryArray.from_shared_memory(memory, (end,), np.uint8)
    packed[: 8 * (1 + len(parts))].view(np.int64)[:] = [len(parts), *ends]
    for begin, end, part in zip(begins, ends, parts, strict=True):
        packed[begin:end] = np.frombuffer(part, np.uint8)
    return packed


def _new_block(name: str | None, size_bytes: int) -> SharedMemory:
    """Makes a block with its memory: to write where there is none would be SIGBUS."""
    memory = None
    try:
        memory = SharedMemory(name=name, create=True, size=size_bytes)
        if name is not None:
            with open(f"{_DIRECTORY}/{name}", "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as e:
        if memory is not None:
            memory.close()
            memory.unlink()
        raise StorageError(
            "no room for a batch in shared memory",
            where=_DIRECTORY,
            expected=f"room for {size_bytes:,} bytes",
            got=os.strerror(e.errno) if e.errno else str(e),
            cure=SystemLimitError.CURES.get(e.errno or 0)
            or f"make room in {_DIRECTORY}, which carries batches from workers "
            "(containers have 64 MB: docker run --shm-size=2g), or use fewer workers",
        ) from e
    return memory


def unpack(packed: Any) -> Any:
    """Returns the packed object. Its arrays are in the shared memory, without a copy.

    Grain's array removes the name when it is freed, and must be freed before Python
    exits. So the memory is mapped a second time; the arrays keep that mapping.
    """
    view = memoryview(_mapped_again(packed.shm))
    (count,) = view[:8].cast("q")
    ends = view[8 : 8 * (1 + count)].cast("q").tolist()
    begin, parts = 8 * (1 + count), []
    for end in ends:
        begin = -(-begin // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        parts.append(view[begin:end])
        begin = end
    try:
        return pickle.loads(parts[0], buffers=parts[1:])
    except Exception as e:  # Objects may raise anything when they are made again.
        raise UserFunctionError(
            "the trainer cannot unpickle the batch that decode returned in a worker",
            got=f"{type(e).__name__}: {e}",
            cure="return arrays, numbers, texts, and lists, tuples or dicts of these; "
            "or use workers=0",
        ) from e


def _mapped_again(memory: SharedMemory) -> mmap.mmap:
    try:
        with open(f"{_DIRECTORY}/{memory.name}", "r+b") as file:
            return mmap.mmap(file.fileno(), 0)
    except FileNotFoundError:  # Not on Linux: only the descriptor leads to it.
        return mmap.mmap(memory._fd, memory.size)  # type: ignore[attr-defined]


def remove_leftovers(prefix: str) -> None:
    """Removes the blocks that a feed did not take; its workers have ended.

    Without a directory of blocks, as on macOS, Python removes them when it exits.
    """
    try:
        names = os.listdir(_DIRECTORY)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith(prefix):
            path = f"{_DIRECTORY}/{name}"
            # Grain may be about to remove it in a thread of its own. Who removes it
            # takes it from the tracker, which would warn of it at the end.
            with contextlib.suppress(FileNotFoundError):
                registered = os.path.getsize(path) > 0  # Else it is being made.
                os.unlink(path)
                if registered:
                    resource_tracker.register(f"/{name}", "shared_memory")
                    resource_tracker.unregister(f"/{name}", "shared_memory")
