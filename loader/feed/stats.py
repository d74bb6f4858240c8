"""What a feed has done, and where its time and that of the trainer went."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from gristmill.loader.cache.cache_counts import NOT_CACHED, CacheCounts


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    cache: CacheCounts = NOT_CACHED


# What a batch and the stats of a feed both have.
SUMS = (
    "records",
    "record_bytes",
    "read_seconds",
    "read_cpu_seconds",
    "decode_seconds",
    "cache",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedStats:
    """What a feed has done since it was made, on this host.

    Attributes:
        batches: Batches given to the trainer.
        records: Records in them.
        record_bytes: Their size, before they were decoded.
        startups: How many of the batches were the first after a start or a
            `set_state`: for these, workers start and shards are opened.
        startup_seconds: How long the trainer waited for those.
        wait_seconds: How long it waited for all others.
        busy_seconds: How long it worked, from receiving a batch to asking for the next.
        read_seconds: Time it took to read the batches, in all threads or workers.
        read_cpu_seconds: Of that, the time that a processor was busy; the rest is
            waiting for storage or for a processor.
        decode_seconds: Time that decode took, in all threads or workers.
        ready_batches: Batches that are ready now.
        prefetch: Most batches that can be ready.
        cache: What the cache of shards in object storage did, in all workers.
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
    decode_seconds: float = 0.0
    ready_batches: int = 0
    prefetch: int = 0
    cache: CacheCounts = NOT_CACHED

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


class Meter:
    """Adds up the stats of a feed."""

    def __init__(self) -> None:
        self.stats = FeedStats()
        self._given_at: float | None = None

    def restart(self) -> None:
        """Marks the next batch as the first after a start."""
        self._given_at = None

    def given(self, batch: ReadBatch, *, asked_at: float) -> None:
        """Counts a batch that is given to the trainer now.

        The trainer asked for it at `asked_at`, by `time.perf_counter`.
        """
        old, now = self.stats, time.perf_counter()
        first = self._given_at is None
        waited = now - asked_at
        self.stats = FeedStats(
            batches=old.batches + 1,
            startups=old.startups + first,
            startup_seconds=old.startup_seconds + (waited if first else 0.0),
            wait_seconds=old.wait_seconds + (0.0 if first else waited),
            busy_seconds=old.busy_seconds + asked_at - (self._given_at or asked_at),
            **{name: getattr(old, name) + getattr(batch, name) for name in SUMS},
        )
        self._given_at = now
