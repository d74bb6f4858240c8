"""What a feed has done, and where its time and that of the trainer went."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from gristmill.loader.base.notebook import table_text
from gristmill.loader.reading.cache_counts import NOT_CACHED, CacheCounts

_MIB = 1 << 20


# Not frozen, which takes several times as long to make: there is one for each batch.
@dataclasses.dataclass(slots=True, kw_only=True)
class ReadBatch:
    """A batch, and how long it took to make; see `FeedStats`.

    Attributes:
        batch: The records, or what decode returned.
        cache: What the cache of shards did since the batch before, in this process.
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
    """Batches of consecutive steps, and the error of the one behind them, if any."""

    batches: list[ReadBatch]
    error: BaseException | None = None


# What a batch and the stats of a feed both have.
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
    """What a feed has done since it was made, on this host.

    The later stats of a feed minus earlier ones are what it did in between.

    Attributes:
        batches: Batches given to the trainer.
        records: Records in them.
        record_bytes: Their size, before they were decoded.
        startups: How many of the batches were the first after a start or a
            `set_state`: for these, workers start and shards are opened.
        startup_seconds: How long the trainer waited for those.
        wait_seconds: How long it waited for all others.
        busy_seconds: How long it worked, from receiving a batch to asking for the next.
        busy_cpu_seconds: Of that, the time that a processor worked for its thread.
        read_seconds: Time it took to read the batches, in all threads or workers.
        read_cpu_seconds: Of that, the time that a processor was busy.
        read_queued_seconds: Of that, waiting for a processor; the rest is waiting for
            storage, or for Python's lock. 0 where the system does not tell.
        decode_seconds: Time that decode took, in all threads or workers.
        decode_cpu_seconds: Of that, the time that a processor was busy.
        decode_queued_seconds: Of that, waiting for a processor.
        transfer_seconds: Time it took to hand batches over: from workers through
            shared memory, and to devices by `to_jax`.
        current_wait_seconds: How long the trainer has waited for a batch now; 0 while
            it works.
        ready_batches: Batches that are ready now.
        prefetch: Batches that are kept ready; of small ones that were read together
            more can be.
        workers: Processes that read and decode; 0 for threads.
        makers: Workers or threads that read and decode, each a batch at a time.
        processors: Those that the feed's process may use at a time.
        cache: What the cache of shards in object storage did, in all workers.
    """

    batches: int = 0
    records: int = 0
    record_bytes: int = 0
    startups: int = 0
    startup_seconds: float = 0.0
    wait_seconds: float = 0.0
    busy_seconds: float = 0.0
    busy_cpu_seconds: float = 0.0
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
    makers: int = 0
    processors: int = 0
    cache: CacheCounts = NOT_CACHED

    def __sub__(self, before: FeedStats) -> FeedStats:
        """Returns what was done since `before`; what is now stays as it is."""
        less: dict[str, Any] = {}
        for name in COUNTS:
            less[name] = getattr(self, name) - getattr(before, name)
        return dataclasses.replace(self, **less)

    def __str__(self) -> str:
        return table_text(type(self).__name__, self._facts())

    def _facts(self) -> Iterator[tuple[str, str]]:
        """Yields what people ask first; the fields have all."""
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


# What only grows. The rest of the stats is what is so now.
COUNTS = (
    "batches",
    "startups",
    "startup_seconds",
    "wait_seconds",
    "busy_seconds",
    "busy_cpu_seconds",
    *SUMS,
)


class Meter:
    """Adds up the stats of a feed."""

    def __init__(self) -> None:
        # Replaced by every batch: another thread may ask for the stats.
        self._sums: dict[str, Any] = {name: getattr(FeedStats, name) for name in COUNTS}
        self._given_at: float | None = None
        # When the trainer asked for the batch that it waits for.
        self._asked_at: float | None = None
        # The processor time of the trainer's thread when it got a batch, and which
        # thread that was; how much it used since then.
        self._cpu_from = (0, 0.0)
        self._busy_cpu = 0.0

    @property
    def stats(self) -> FeedStats:
        """What was counted so far."""
        return FeedStats(**self._sums)

    def restart(self) -> None:
        """Marks the next batch as the first after a start."""
        self._given_at = None

    def asked(self) -> None:
        """Notes that the trainer asks for a batch now, in this thread."""
        thread, cpu = self._cpu_from
        same = thread == threading.get_ident()
        self._busy_cpu = time.thread_time() - cpu if same else 0.0
        self._asked_at = time.perf_counter()

    def failed(self) -> None:
        """Notes that the trainer does not wait any more, and got no batch."""
        self._asked_at = None

    def given(self, batch: ReadBatch) -> None:
        """Counts a batch that is given to the trainer now."""
        old, now = self._sums, time.perf_counter()
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
        cpu = 0.0 if first else self._busy_cpu
        new["busy_cpu_seconds"] = old["busy_cpu_seconds"] + cpu
        self._sums = new
        self._given_at, self._asked_at = now, None
        self._cpu_from = threading.get_ident(), time.thread_time()

    def current(self, **now: int) -> FeedStats:
        """Returns the stats, with what is so now. Another thread may ask.

        Args:
            **now: Fields of FeedStats.
        """
        asked_at = self._asked_at
        waited = 0.0 if asked_at is None else time.perf_counter() - asked_at
        fields: dict[str, Any] = {**now, **self._sums}
        return FeedStats(current_wait_seconds=waited, **fields)
