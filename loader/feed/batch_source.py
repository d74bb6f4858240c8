"""A host's rows as a source for Grain's workers: an element is the batch of a step."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import UserFunctionError
from gristmill.loader.data.batches import noted
from gristmill.loader.feed.shared_memory import pack
from gristmill.loader.stats.feed_stats import BatchesRead, ReadBatch


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
