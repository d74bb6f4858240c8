"""A batch as one piece of shared memory, by which a worker hands it over.

The message about it is a few hundred bytes, which a pipe takes at once: a worker that
is killed cannot leave half a message behind, for which the reader would wait for ever.

The pieces of a feed are named alike. Python's own bookkeeping learns of a piece a
moment after it was made: what a worker leaves behind that is killed in this moment is
found by its name.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import pickle
import secrets
import threading
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

# What processors and devices want of the arrays of a batch.
_ALIGNMENT_BYTES = 64
_DIRECTORY = "/dev/shm"

creating = threading.Lock()
"""Held while a piece is made: a worker that leaves by itself waits for it."""

_numbers = itertools.count()


def new_prefix() -> str:
    """Returns what the names of the pieces of one feed begin with."""
    return f"gristmill-{os.getpid()}-{secrets.token_hex(4)}-"


def pack(batch: Any, *, prefix: str) -> Any:
    """Returns anything that pickles as one array of Grain's; `unpack` undoes it.

    The bytes are the number of parts (int64), the end of each part (int64), and the
    parts, each from the next multiple of 64 on: a pickle, and the arrays that it
    refers to.
    """
    # Imported here: only worker processes need it.
    from grain.multiprocessing import SharedMemoryArray

    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(batch, protocol=5, buffer_callback=arrays.append)
    parts = [memoryview(head), *(array.raw() for array in arrays)]
    begins, ends = [], []
    end = 8 * (1 + len(parts))
    for part in parts:
        begins.append(-(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        end = begins[-1] + part.nbytes
        ends.append(end)
    name = f"{prefix}{os.getpid()}-{next(_numbers)}"
    with creating:
        memory = SharedMemory(name=name, create=True, size=end)
    packed = SharedMemoryArray.from_shared_memory(memory, (end,), np.uint8)
    packed[: 8 * (1 + len(parts))].view(np.int64)[:] = [len(parts), *ends]
    for begin, end, part in zip(begins, ends, parts, strict=True):
        packed[begin:end] = np.frombuffer(part, np.uint8)
    return packed


def unpack(packed: Any) -> Any:
    """Returns what was packed. Its arrays lie in the shared memory, without a name.

    Grain's array of it loses the name when it goes, and must go before Python does. So
    the memory is mapped once more; this map goes with the arrays, whenever that is.
    """
    with open(f"{_DIRECTORY}/{packed.shm.name}", "r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0))
    (count,) = view[:8].cast("q")
    ends = view[8 : 8 * (1 + count)].cast("q").tolist()
    begin, parts = 8 * (1 + count), []
    for end in ends:
        begin = -(-begin // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        parts.append(view[begin:end])
        begin = end
    return pickle.loads(parts[0], buffers=parts[1:])


def remove_leftovers(prefix: str) -> None:
    """Removes the pieces of a feed that nobody took, when its workers are gone."""
    for name in os.listdir(_DIRECTORY):
        if name.startswith(prefix):
            # Grain may be about to remove it in a thread of its own.
            with contextlib.suppress(FileNotFoundError):
                path = f"{_DIRECTORY}/{name}"
                if not os.path.getsize(path):  # Python has not even given it a size.
                    os.unlink(path)
                    continue
                memory = SharedMemory(name=name)
                memory.close()
                memory.unlink()
