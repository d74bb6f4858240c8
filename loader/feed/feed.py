"""The feed of one host: its rows of the global batches, read ahead of the trainer.

The position of a feed is one number, the step it gives next. Threads or workers start
with the first batch, read from that step on, and end when the feed is closed, garbage
collected, or set to another step.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import grain
import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.system import limits_named
from gristmill.loader.base.indices import POSITION_LIMIT, Rows, checked_count
from gristmill.loader.data.batches import Batches
from gristmill.loader.feed.read_ahead import Passes
from gristmill.loader.feed.state import resumed, state_of
from gristmill.loader.feed.stats import FeedStats, ReadBatch, span
from gristmill.loader.feed.step_reads import Decode, StepReads
from gristmill.loader.order.schedule import RowsBySize

if TYPE_CHECKING:
    from gristmill.loader.feed.workers import WorkerReads

RowsOf: TypeAlias = Callable[[int], Rows]
"""Returns a host's rows of a batch, given its size, or raises InputError."""

_log = logging.getLogger(__name__)

# A feed is closed at exit before Grain's and multiprocessing's own parts are.
_EXIT_PRIORITY = 100


class RootIterator(grain.DatasetIterator):  # type: ignore[misc]  # Grain has no types.
    """An iterator of Grain without a parent."""

    @property
    def _parent(self) -> NoReturn:
        # Grain asserts that there is one, also where a trainer asks by `hasattr`, as
        # MaxText does when it drops its iterators.
        raise AttributeError(f"{type(self).__name__} has no parent")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Feed(RootIterator):
    """An iterator of one host's batches. Made by `GlobalBatches.feed`.

    It is an iterator of Grain, so that Grain's checkpoint handlers save and restore it.
    One thread at a time may use it.

    Attributes:
        batches: The global batches.
        rows: The rows of a batch that this feed yields, a slice or numbers; where the
            batch size changes, those of each size from the feed's step on.
        mask: Name of the mask, if a partial last batch is padded; None otherwise.
    """

    batches: Batches
    rows: RowsBySize
    _reading: Passes | WorkerReads | None = None

    def __init__(
        self,
        batches: Batches,
        *,
        rows_of: RowsOf,
        decode: Decode | None,
        workers: int,
        prefetch: int,
        start_step: int,
        every: int = 1,
        divides_last: bool = False,
        mask: str | None = None,
        columns: Sequence[str] = (),
    ):
        super().__init__()
        # Of `every` readers each takes every `every`-th step. With `divides_last`, a
        # partial last batch is divided like a full one.
        self._every, self._divides_last = every, divides_last
        self.batches, self._rows_of = batches, rows_of
        self._decode, self.mask, self._columns = decode, mask, columns
        self._workers = checked_count(workers, what="workers", least=0)
        self._prefetch = checked_count(prefetch, what="prefetch")
        most = POSITION_LIMIT if batches.steps is None else batches.steps
        self._step = checked_count(start_step, what="start_step", least=0, most=most)
        self.rows = self._rows_from(self._step, batches)
        self._order = state_of(batches, self._step)
        self._stats = FeedStats()

    def __repr__(self) -> str:
        size = self.batches.schedule.batch_size(self._step)
        rows = np.arange(size)[self._rows_of(size)].size
        return (
            f"<Feed of {self.batches!r}: step {self._step:,}, {rows:,} of {size:,} "
            f"rows, {self._workers} workers, prefetch {self._prefetch}>"
        )

    def __next__(self) -> Any:
        """Returns the batch of the next step.

        Raises:
            StopIteration: There is no other step.
            CorruptShardError: A shard does not hold what was written.
            WorkerDiedError: A worker process ended. The state is still valid, and the
                next call starts new workers.
            Exception: What decode raised, with a note of the step.
        """
        asked_at = time.perf_counter()
        try:
            with span("gristmill.wait", step=self._step):
                read = self._next_read()
        except BaseException:
            # Ctrl-C may have lost a batch: the next call begins at its step.
            self._stop_reading()
            raise
        self._stats = self._stats.after(read, time.perf_counter() - asked_at)
        self._step = min(self._step + self._every, self._last_step)
        return read.batch

    def _next_read(self) -> ReadBatch:
        while True:
            self.start_prefetch()
            reading = self._reading  # Another thread may close the feed.
            if reading is None:
                self._check_open()
                raise StopIteration
            read = next(reading)
            if read.step == self._step:
                return read
            # Ctrl-C came after the last batch was taken and before it was counted.
            self._stop_reading()

    @limits_named()
    def start_prefetch(self) -> None:
        """Starts to read ahead; asking for a batch does it too.

        Raises:
            InputError: The feed is closed, or workers cannot get decode, which does not
            pickle.
            SystemLimitError: The system has no room for threads or workers.
        """
        self._check_open()
        steps = range(self._step, self._last_step, self._every)
        if self._reading is not None or not steps:
            return
        make = functools.partial(
            StepReads,
            self.batches,
            rows=self.rows,
            decode=self._decode,
            mask=self.mask,
            columns=self._columns,
        )
        if self._workers:
            from gristmill.loader.feed.workers import WorkerReads

            reading: Passes | WorkerReads = WorkerReads(
                make, steps, workers=self._workers, prefetch=self._prefetch
            )
        else:
            read = make(in_turn=steps).read
            reading = Passes(read, steps, threads=self._prefetch)
        self._stop = Finalize(self, reading.close, exitpriority=_EXIT_PRIORITY)
        self._reading = reading
        if self._closed:  # By another thread, which found nothing to stop.
            self._stop_reading()
            self._check_open()

    @property
    def _last_step(self) -> int:
        steps = self.batches.steps
        return sys.maxsize if steps is None else steps

    def get_state(self) -> dict[str, Any]:
        """Returns the next step and what determines the order, as JSON values.

        It is the same on all hosts. Batches that were only read ahead do not count.
        """
        return {**self._order, "step": self._step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to the step of a state, whichever host wrote it.

        It continues with the editions that the state names, whatever was appended or
        removed since; `batches` then has these editions.

        Raises:
            StateMismatchError: It is of other datasets, another order, or an edition
                that is gone; the error names the differences. The feed stays as it is.
            FormatVersionError: Another version wrote the state.
            InputError: It is not the state of a feed, or a batch from its step on does
                not divide among the hosts.
        """
        batches, step = resumed(self.batches, state)
        rows = self._rows_from(step, batches)
        self._stop_reading()
        if batches is not self.batches:
            _log.warning(
                "going on with %r, of which the state is, instead of %r",
                batches,
                self.batches,
            )
            self.batches, self._order = batches, state_of(batches, step)
        self._step, self.rows = step, rows

    @property
    def stats(self) -> FeedStats:
        """What the feed has given, and how long it took. Any thread may ask."""
        return self._stats

    def close(self) -> None:
        """Ends threads and workers, and with them the feed. It may be called again."""
        self._closed = True
        self._stop_reading()

    def _rows_from(self, step: int, batches: Batches) -> RowsBySize:
        """Returns the rows of the batches from a step on."""
        if self._divides_last:
            return self._rows_of
        sizes = batches.schedule.sizes_from(step)
        if len({*batches.schedule.sizes_from(0)}) == 1:
            return self._rows_of(sizes[0])
        try:
            return {size: self._rows_of(size) for size in sizes}
        except InputError as e:
            e.add_note(
                f"in batches of {', '.join(f'{size:,}' for size in sizes)} rows, which "
                f"are those from step {step:,} on; a feed with a later start_step, or "
                "set to the state of a later step, leaves earlier sizes out"
            )
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the feed is closed", cure="make another feed")

    def _stop_reading(self) -> None:
        if self._reading is not None:
            # First, as Ctrl-C may come while it ends: the next batch is read again.
            self._reading = None
            self._stop()
