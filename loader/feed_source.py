"""A host's rows of every step as a source: one element is a whole batch, read at once.

Worker processes hand a batch over in one piece of shared memory. The message about it
is then a few hundred bytes, which a pipe takes at once: a worker that is killed cannot
leave half a message behind, for which the reader would wait for ever.
"""

from __future__ import annotations

import dataclasses
import mmap
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gristmill.dataset.errors import UserFunctionError
from gristmill.loader.cache_counts import NOT_CACHED, CacheCounts
from gristmill.loader.decode_error import DecodeError
from gristmill.loader.locate import describe
from gristmill.loader.schedule import Schedule
from gristmill.loader.window_reads import WindowReads

if TYPE_CHECKING:
    from gristmill.loader.batches import GlobalBatches
    from gristmill.loader.schedule import Rows

Decode: TypeAlias = Callable[[Sequence[bytes]], Any]

# What processors and devices want of the arrays of a batch.
_ALIGNMENT_BYTES = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadBatch:
    """A batch, and what it took to make it.

    Attributes:
        step: Its step.
        batch: The records, or what decode made of them.
        records: How many records it is made of.
        record_bytes: Their size.
        read_seconds: Time until the records were there.
        read_cpu_seconds: Of that, the time that a processor was busy; the rest is
            waiting for storage or for a processor.
        decode_seconds: Time that decode took.
        cache: What local copies of shards did since the batch before, of this process.
    """

    step: int
    batch: Any
    records: int
    record_bytes: int
    read_seconds: float
    read_cpu_seconds: float
    decode_seconds: float
    cache: CacheCounts = NOT_CACHED


class BatchSource:
    """Element i is the batch of step `start_step + i`.

    It has no end: past the last step there are empty elements. So a worker that reads
    ahead never leaves by itself, and one that is gone must have died.

    Args:
        batches: The global batches.
        rows: The rows of this host.
        decode: What to make of the records, if anything.
        start_step: The first step.
        packed: Whether elements go to another process.
    """

    def __init__(
        self,
        batches: GlobalBatches,
        *,
        rows: Rows,
        decode: Decode | None,
        start_step: int,
        packed: bool,
    ):
        self._batches, self._rows, self._decode = batches, rows, decode
        self._start_step, self._packed = start_step, packed
        # Worker processes take turns with the steps: each would read whole windows.
        schedule = batches.schedule
        self._windows = (
            WindowReads.of(batches.datasets[0], schedule, rows)
            if isinstance(schedule, Schedule) and not packed
            else None
        )

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        step = self._start_step + index
        steps = self._batches.steps
        if steps is not None and step >= steps:
            return np.empty(0, np.uint8)
        try:
            batch = self._read(step)
        except Exception as e:
            e.add_note(f"in the batch of step {step:,}")
            if self._packed and not _pickles(e):
                raise UserFunctionError(
                    "a batch failed with an error that does not pickle",
                    where=f"step {step:,}",
                    got="".join(traceback.format_exception(e)),
                ) from None
            raise
        return pack(batch) if self._packed else batch

    def _read(self, step: int) -> ReadBatch:
        started, cpu_started = time.perf_counter(), time.thread_time()
        if self._windows is not None:
            records = self._windows.read(step)
        else:
            records = self._batches.read(step, self._rows)
        cpu_read, read = time.thread_time(), time.perf_counter()
        batch: Any = records
        if self._decode is not None:
            try:
                batch = self._decode(records)
            except (StopIteration, SystemExit) as e:
                # One would end the feed without a word, the other its worker.
                raise UserFunctionError(
                    "decode ended instead of returning a batch",
                    got=repr(e),
                    cure="let decode raise an error of its own",
                ) from e
            except DecodeError as e:
                place = self._batches.schedule.positions(step, self._rows)[e.row]
                row = int(place) - step * self._batches.batch_size
                raise e.of(describe(self._batches, step, row)) from e
        decoded = time.perf_counter()
        return ReadBatch(
            step=step,
            batch=batch,
            records=len(records),
            record_bytes=sum(map(len, records)),
            read_seconds=read - started,
            read_cpu_seconds=cpu_read - cpu_started,
            decode_seconds=decoded - read,
            cache=sum(
                (data.take_cache_counts() for data in self._batches.datasets),
                NOT_CACHED,
            ),
        )


def _pickles(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # Whatever the error's own code does.
        return False
    return True


def pack(batch: ReadBatch) -> Any:
    """Returns a batch as one array in shared memory; `unpack` undoes it.

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
    packed = SharedMemoryArray((end,), np.uint8)
    packed[: 8 * (1 + len(parts))].view(np.int64)[:] = [len(parts), *ends]
    for begin, end, part in zip(begins, ends, parts, strict=True):
        packed[begin:end] = np.frombuffer(part, np.uint8)
    return packed


def unpack(packed: Any) -> ReadBatch:
    """Returns a packed batch. Its arrays lie in the shared memory, without a name.

    Grain's array of it loses the name when it goes, and must go before Python does. So
    the memory is mapped once more; this map goes with the arrays, whenever that is.
    """
    with open(f"/dev/shm/{packed.shm.name}", "r+b") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0))
    (count,) = view[:8].cast("q")
    ends = view[8 : 8 * (1 + count)].cast("q").tolist()
    begin, parts = 8 * (1 + count), []
    for end in ends:
        begin = -(-begin // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        parts.append(view[begin:end])
        begin = end
    batch: ReadBatch = pickle.loads(parts[0], buffers=parts[1:])
    return batch
