"""Statistics of a feed: where its time and the trainer's went, by clocks of threads.

Waiting for a processor is not waiting for storage: on a busy host a thread that could
run does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from gristmill.loader.base.table_text import table_text
from gristmill.loader.reading.cache_counts import NOT_CACHED, CacheCounts

_MIB = 1 << 20


# Not frozen, as that takes several times as long to create, for each batch.
@dataclasses.dataclass(slots=True, kw_only=True)
class ReadBatch:
    """A batch, and the time to make it; see `FeedStats`.

    Attributes:
        batch: The records, or the result of decode.
        cache: Counts of the cache of shards since the previous batch, in this process.
    """

    step: int
    batch: Any
    records: int
    record_bytes: int
    read_seconds: float
    read_cpu_seconds: float
    decode_seconds: float
    read_queued_seconds: float = 0.0
    decode_cpu_seconds: float = 0.0
    decode_queued_seconds: float = 0.0
    transfer_seconds: float = 0.0
    cache: CacheCounts = NOT_CACHED


class BatchesRead(NamedTuple):
    """Batches of consecutive steps, and the error of the next one, if any."""

    batches: list[ReadBatch]
    error: BaseException | None = None


# Fields of both a batch and the stats of a feed.
SUMS = (
    "records",
    "record_bytes",
    "read_seconds",
    "read_cpu_seconds",
    "read_queued_seconds",
    "decode_seconds",
    "decode_cpu_seconds",
    "decode_queued_seconds",
    "transfer_seconds",
    "cache",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedStats:
    """Statistics of a feed since its creation, on this host.

    Later stats minus earlier ones are those of the time in between.

    Attributes:
        batches: Batches given to the trainer.
        records: Records in them.
        record_bytes: Their size, before they were decoded.
        startups: Number of batches that were the first after a start or a `set_state`:
            for these, workers start and shards are opened.
        startup_seconds: Time that the trainer waited for those.
        wait_seconds: Time that it waited for all others.
        busy_seconds: Time that it worked, from receiving a batch to requesting the
            next.
        read_seconds: Time it took to read the batches, in all threads or workers.
        read_cpu_seconds: The part of it in which a processor was busy.
        read_queued_seconds: The part of it spent waiting for a processor; the rest is
            waiting for storage, or for Python's lock. 0 if the system does not tell.
        decode_seconds: Time that decode took, in all threads or workers.
        decode_cpu_seconds: The part of it in which a processor was busy.
        decode_queued_seconds: The part of it spent waiting for a processor.
        transfer_seconds: Time to hand over batches: from workers through shared memory,
            and to devices by `to_jax`.
        current_wait_seconds: Time of the trainer's current wait; 0 while it works.
        ready_batches: Batches that are now ready.
        prefetch: Batches to keep ready; there can be more if small ones are read
            together.
        workers: Processes that read and decode; 0 for threads.
        cache: Counts of the cache of shards in object storage, in all workers.
    """

    batches: int = 0
    records: int = 0
    record_bytes: int = 0
    startups: int = 0
    startup_seconds: float = 0.0
    wait_seconds: float = 0.0
    busy_seconds: float = 0.0
    read_seconds: float = 0.0
    read_cpu_seconds: float = 0.0
    read_queued_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_cpu_seconds: float = 0.0
    decode_queued_seconds: float = 0.0
    transfer_seconds: float = 0.0
    current_wait_seconds: float = 0.0
    ready_batches: int = 0
    prefetch: int = 0
    workers: int = 0
    cache: CacheCounts = NOT_CACHED

    def __sub__(self, before: FeedStats) -> FeedStats:
        """Returns the stats since `before`; current values stay as they are."""
        less: dict[str, Any] = {}
        for name in COUNTS:
            less[name] = getattr(self, name) - getattr(before, name)
        return dataclasses.replace(self, **less)

    def __str__(self) -> str:
        return table_text(type(self).__name__, self._facts())

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Yields the most important stats; the fields have all."""
        size = self.record_bytes / _MIB
        yield (
            "given",
            f"{self.batches:,} batches, {self.records:,} records, {size:,.1f} MiB",
        )
        speed = self.record_bytes_per_second / _MIB
        yield "speed", f"{self.records_per_second:,.0f} records/s, {speed:,.1f} MiB/s"
        yield (
            "trainer",
            f"waited {self.wait_seconds:,.1f} s ({self.waiting_share:.0%}), worked "
            f"{self.busy_seconds:,.1f} s; {self.startup_seconds:,.1f} s for "
            f"{self.startups:,} starts",
        )
        for name in ("read", "decode"):
            seconds = getattr(self, f"{name}_seconds")
            cpu = getattr(self, f"{name}_cpu_seconds")
            yield name, f"{seconds:,.1f} s in all threads, {cpu:,.1f} s of processors"
        made = f"{self.workers:,} workers" if self.workers else "threads"
        yield (
            "now",
            f"{self.ready_batches:,} batches ready of {self.prefetch:,}, {made}",
        )
        if self.cache != NOT_CACHED:
            yield "cache", f"{self.cache.hits:,} hits, {self.cache.misses:,} misses"

    @property
    def batches_per_second(self) -> float:
        """Batches per second, without startups; 0 at first."""
        seconds = self.wait_seconds + self.busy_seconds
        return (self.batches - self.startups) / seconds if seconds else 0.0

    @property
    def records_per_second(self) -> float:
        """As `batches_per_second`, in records."""
        return self.batches_per_second * self.records / max(self.batches, 1)

    @property
    def record_bytes_per_second(self) -> float:
        """As `batches_per_second`, in bytes of records."""
        return self.batches_per_second * self.record_bytes / max(self.batches, 1)

    @property
    def waiting_share(self) -> float:
        """Share of the trainer's time that it waited for data, 0 to 1."""
        seconds = self.wait_seconds + self.busy_seconds
        return self.wait_seconds / seconds if seconds else 0.0


# Fields that only grow. The others are current values.
COUNTS = (
    "batches",
    "startups",
    "startup_seconds",
    "wait_seconds",
    "busy_seconds",
    *SUMS,
)


class Meter:
    """Adds up the stats of a feed.

    Args:
        now: Returns the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        # Replaced by every batch: another thread may ask for the stats.
        self._sums: dict[str, Any] = {name: getattr(FeedStats, name) for name in COUNTS}
        self._given_at: float | None = None
        # When the trainer asked for the batch that it waits for.
        self._asked_at: float | None = None

    @property
    def stats(self) -> FeedStats:
        """The counts so far."""
        return FeedStats(**self._sums)

    def restart(self) -> None:
        """Marks the next batch as the first after a start."""
        self._given_at = None

    def asked(self) -> None:
        """Records that the trainer now requests a batch."""
        self._asked_at = self._now()

    def failed(self) -> None:
        """Records that the trainer stopped waiting without a batch."""
        self._asked_at = None

    def given(self, batch: ReadBatch) -> None:
        """Counts a batch that is now given to the trainer."""
        old, now = self._sums, self._now()
        asked_at = now if self._asked_at is None else self._asked_at
        new = {name: old[name] + getattr(batch, name) for name in SUMS}
        first = self._given_at is None
        new["batches"] = old["batches"] + 1
        new["startups"] = old["startups"] + first
        for name in ("startup_seconds", "wait_seconds"):
            new[name] = old[name]
        new["startup_seconds" if first else "wait_seconds"] += now - asked_at
        worked = 0.0 if self._given_at is None else asked_at - self._given_at
        new["busy_seconds"] = old["busy_seconds"] + worked
        self._sums = new
        self._given_at, self._asked_at = now, None

    def current(self, **now: int) -> FeedStats:
        """Returns the stats with current values. Another thread may call it.

        Args:
            **now: Fields of FeedStats.
        """
        asked_at = self._asked_at
        waited = 0.0 if asked_at is None else self._now() - asked_at
        fields: dict[str, Any] = {**now, **self._sums}
        return FeedStats(current_wait_seconds=waited, **fields)


class ThreadTimes(NamedTuple):
    """Times of a thread, in seconds, each with its own zero.

    Attributes:
        passed: Elapsed time.
        cpu: Processor time of the thread.
        queued: Time in which the thread was ready to run, but no processor was free or
            its container was throttled. 0 if the system does not tell.
    """

    passed: float
    cpu: float
    queued: float

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """Returns the times since `before`."""
        return ThreadTimes(
            self[0] - before[0], self[1] - before[1], self[2] - before[2]
        )


class SchedulerCounts:
    """The system's counts of one thread, kept open, as opening takes longest."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def queued_seconds(self) -> float:
        """Returns how long the thread has waited for a processor; 0 if not known."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A parameter, as module names are gone when the interpreter ends.
        if self._file >= 0:
            close(self._file)


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.counts = SchedulerCounts()

    def start_again(self) -> None:
        self.counts = SchedulerCounts()


this_thread = _ThisThread()
# A forked process would read the counts of its parent.
os.register_at_fork(after_in_child=this_thread.start_again)


def thread_times() -> ThreadTimes:
    """Returns the times of this thread."""
    queued = this_thread.counts.queued_seconds()
    return ThreadTimes(time.perf_counter(), time.thread_time(), queued)


WAIT = "gristmill.wait"
RECEIVE = "gristmill.receive"
SEND = "gristmill.send"

_NO_SPAN = contextlib.nullcontext()


def span(name: str, **fields: int) -> AbstractContextManager[Any]:
    """Returns a context that a trace of JAX shows as a span of this thread.

    Nothing is recorded while no trace runs, and JAX is not imported for it.

    Args:
        name: The name of the span.
        **fields: What the trace tells about it, such as its step.
    """
    annotation = getattr(sys.modules.get("jax.profiler"), "TraceAnnotation", None)
    if annotation is None:
        return _NO_SPAN
    made: AbstractContextManager[Any] = annotation(name, **fields)
    return made
