"""A host's rows as a source for Grain: an element is the batch of a step.

What is in consecutive steps is computed for several steps at once. A permutation takes
a hundred short operations on arrays. For a thousand rows most of the time goes into the
calls, which hold the interpreter's lock; computed for several steps together, a step
takes a third of it.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from gristmill.dataset.errors import (
    DecodeError,
    SystemLimitError,
    UserFunctionError,
)
from gristmill.loader.batches import Batches, describe_row
from gristmill.loader.cache.cache_counts import NOT_CACHED
from gristmill.loader.feed.last_batch import filled_up, rows_there
from gristmill.loader.feed.shared_memory import pack
from gristmill.loader.feed.window_reads import WindowReads
from gristmill.loader.order.schedule import MixedBatch, RowsBySize, Schedule
from gristmill.loader.stats.clocks import thread_times
from gristmill.loader.stats.feed_stats import ReadBatch

Decode: TypeAlias = Callable[[Sequence[bytes]], Any]

_MOST_STEPS_AHEAD = 64


class BatchSource:
    """Element i is the batch of step `start_step + i * every`.

    It has no end: past the last step there are empty elements. So a worker that reads
    ahead never exits by itself: one that has exited has failed.

    Args:
        batches: The global batches.
        rows: The rows of this host.
        decode: Called with the records of each batch, if given.
        start_step: The first step.
        every: Steps from one element to the next.
        packed: The prefix of names of shared memory, if elements are sent to another
            process; None if they stay in this one.
        mask: The name of a mask; with it, a last batch that is not full is filled up.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        rows: RowsBySize,
        decode: Decode | None,
        start_step: int,
        every: int = 1,
        packed: str | None,
        mask: str | None = None,
    ):
        self._batches, self._rows, self._decode = batches, rows, decode
        self._mask = mask
        self._start_step, self._every, self._packed = start_step, every, packed
        # How long it took to send the batch before; a worker has one thread.
        self._sent_seconds = 0.0
        self._windows: WindowReads | None = None
        self._ahead: BatchesAhead | None = None
        # Only in one process: each worker has every n-th step, but would prepare all.
        if packed is None:
            schedule = batches.schedule
            self._windows = WindowReads.of(
                batches.datasets, schedule, rows, steps=(start_step, every)
            )
            self._ahead = BatchesAhead(schedule, rows, every=every)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: int) -> Any:
        step = self._start_step + index * self._every
        steps = self._batches.steps
        if steps is not None and step >= steps:
            return np.empty(0, np.uint8)
        try:
            batch = self._read(step)
            return batch if self._packed is None else self._send(batch, self._packed)
        except Exception as e:
            error = SystemLimitError.of(e) or e
            error.add_note(f"in the batch of step {step:,}")
            if self._packed is None or _pickles(error):
                if error is e:
                    raise
                raise error from e
            text = "".join(traceback.format_exception(e))
        # Outside the handler: some libraries pickle the context of an error (tblib).
        raise UserFunctionError(
            "a batch failed with an error that does not pickle",
            where=f"step {step:,}",
            got=text,
            cure="see the traceback; with workers=0 the error itself is raised",
        )

    def _decoded(self, decode: Decode, records: list[bytes], step: int) -> Any:
        schedule, rows = self._batches.schedule, self._rows
        there = None if self._mask is None else rows_there(schedule, step, rows)
        if there is not None and not there.any():
            # All rows of this host are padding: the first of all tells their shapes.
            rows = slice(0, 1)
            records = self._batches.read(step, rows)
        try:
            batch = decode(records)
        except DecodeError as e:
            place = schedule.positions(step, rows)[e.row]
            row = int(place) - schedule.sizes.start(step)
            raise e.of(describe_row(self._batches, step, row)) from e
        except BaseException as e:
            if isinstance(e, Exception) and not isinstance(e, StopIteration):
                raise
            # StopIteration would end the feed, SystemExit its worker.
            raise UserFunctionError(
                "decode ended instead of returning a batch",
                got=repr(e),
                cure="let decode raise an error of its own",
            ) from e
        if self._mask is None or there is None:
            return batch
        return filled_up(batch, there, mask=self._mask)

    def _send(self, batch: ReadBatch, prefix: str) -> Any:
        started = time.perf_counter()
        packed = pack(batch, prefix=prefix)
        self._sent_seconds = time.perf_counter() - started
        return packed

    def _read(self, step: int) -> ReadBatch:
        started, worked_seconds = thread_times(), 0.0
        if self._windows is not None:
            records, worked_seconds = self._windows.read(step)
        elif self._ahead is not None:
            records = self._batches.read_batch(self._ahead.batch(step))
        else:
            records = self._batches.read(step, self._rows)
        done = thread_times()
        read = done.since(started)
        batch: Any = records
        if self._decode is not None:
            batch = self._decoded(self._decode, records, step)
        decoded = thread_times().since(done)
        return ReadBatch(
            step=step,
            batch=batch,
            records=len(records),
            record_bytes=sum(map(len, records)),
            read_seconds=read.passed,
            read_cpu_seconds=read.cpu + worked_seconds,
            read_queued_seconds=read.queued,
            decode_seconds=decoded.passed,
            decode_cpu_seconds=decoded.cpu,
            decode_queued_seconds=decoded.queued,
            transfer_seconds=self._sent_seconds,
            cache=sum(
                (data.take_cache_counts() for data in self._batches.datasets),
                NOT_CACHED,
            ),
        )


class BatchesAhead:
    """`Schedule.batch` for a caller that asks for step after step. Safe for threads.

    It computes about `rows_at_once` rows together, those of every `every`-th step.
    """

    def __init__(
        self,
        schedule: Schedule,
        rows: RowsBySize,
        *,
        every: int = 1,
        rows_at_once: int = 8192,
    ):
        self._schedule, self._rows, self._every = schedule, rows, every
        self._at_once = rows_at_once
        self._batches = dict[int, MixedBatch]()
        self._lock = threading.Lock()

    def batch(self, step: int) -> MixedBatch:
        """Returns the datasets and record indices of the rows of a step."""
        with self._lock:
            if step not in self._batches:
                self._batches = self._from(step)
            return self._batches[step]

    def _from(self, step: int) -> dict[int, MixedBatch]:
        positions = [self._schedule.positions(step, self._rows)]
        most = min(
            max(1, self._at_once // max(len(positions[0]), 1)), _MOST_STEPS_AHEAD
        )
        last = min(step + most * self._every, self._schedule.step_limit)
        steps = range(step, last, self._every)
        positions += [
            self._schedule.positions(number, self._rows) for number in steps[1:]
        ]
        together = self._schedule.batch_unchecked(np.concatenate(positions))
        ends = np.cumsum([len(part) for part in positions[:-1]])
        parts = (np.split(column, ends) for column in together)
        batches = (MixedBatch(*columns) for columns in zip(*parts, strict=True))
        return dict(zip(steps, batches, strict=True))


def _pickles(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # The error's own code may raise anything.
        return False
    return True
