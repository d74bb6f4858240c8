"""Measures how fast a machine can feed a trainer, and what limits it."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

from gristmill.dataset.base.errors import InputError
from gristmill.loader.data.batches import Batches
from gristmill.loader.feed.feed import Feed
from gristmill.loader.feed.read_ahead import Passes
from gristmill.loader.feed.step_reads import Decode, StepReads
from gristmill.loader.order.step_records import Rows
from gristmill.loader.stats.causes import Waiting, waits_for
from gristmill.loader.stats.feed_stats import FeedStats, Meter, ReadBatch

_LEAST_BATCHES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Alone:
    """Batches made one after the other, by a single thread.

    Attributes:
        batches: How many.
        records: Records in them.
        record_bytes: Their size.
        io_seconds: Time that reading waited for storage.
        read_seconds: Processor time of reading: decompression, checks, copies.
        decode_seconds: Time that decode took.
        storage_bytes: Bytes read from local disks and not from memory, where the
            system reports them; None if a dataset is in object storage.
    """

    batches: int
    records: int
    record_bytes: int
    io_seconds: float
    read_seconds: float
    decode_seconds: float
    storage_bytes: int | None

    @property
    def seconds(self) -> float:
        """The sum of all times."""
        return self.io_seconds + self.read_seconds + self.decode_seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Results of `measure`.

    Attributes:
        alone: Batches made one after the other.
        fed: The work of a feed for a trainer.
        cached: The same trainer with batches that are in memory, if asked for.
        step_seconds: How long the trainer took for a step.
    """

    alone: Alone
    fed: FeedStats
    step_seconds: float
    cached: FeedStats | None = None

    @property
    def waiting(self) -> Waiting:
        """What the trainer waited for."""
        return waits_for(self.fed)


class _Repeated:
    """Batches in memory, given again and again."""

    def __init__(self, batches: list[ReadBatch]):
        self._batches, self._meter = itertools.cycle(batches), Meter()

    def __next__(self) -> Any:
        self._meter.asked()
        batch = next(self._batches)
        self._meter.given(batch)
        return batch.batch

    @property
    def stats(self) -> FeedStats:
        return self._meter.stats


def measure(
    batches: Batches,
    *,
    hosts: int = 1,
    decode: Decode | None = None,
    workers: int = 0,
    prefetch: int = 2,
    step_seconds: float = 0.0,
    seconds: float = 5.0,
    repeat_cached: int = 0,
) -> Measured:
    """Reads batches, first alone, then through a feed for a trainer.

    Args:
        batches: The global batches.
        hosts: How many hosts share them: the rows of the first are read.
        decode: As in `GlobalBatches.feed`.
        workers: As in `GlobalBatches.feed`.
        prefetch: As in `GlobalBatches.feed`.
        step_seconds: How long the trainer takes for a step; it sleeps.
        seconds: How long to measure; a quarter of it without a feed.
        repeat_cached: Number of batches to repeat from memory, for another quarter of
            the time; 0 for none.

    Raises:
        InputError: The number of steps is limited, or the hosts cannot share a batch.
    """
    if batches.steps is not None:
        raise InputError(
            "batches to measure must not have a last step",
            got=f"{batches.steps:,} steps",
            cure="make them with epochs=None",
        )
    rows = batches.host_rows((0, hosts))
    alone = _measure_alone(batches, rows, decode, seconds / 4)
    feed = Feed(
        batches,
        rows_of=lambda _: rows,
        decode=decode,
        workers=workers,
        prefetch=prefetch,
        start_step=alone.batches + 1,  # These batches are not in memory yet.
    )
    with feed:
        share = 1 / 2 if repeat_cached else 3 / 4
        fed = _measure_feed(feed, step_seconds, seconds * share)
    cached = None
    if repeat_cached:
        kept = _batches_in_memory(batches, rows, decode, repeat_cached)
        cached = _measure_feed(_Repeated(kept), step_seconds, seconds / 4)
    return Measured(alone=alone, fed=fed, step_seconds=step_seconds, cached=cached)


def _measure_alone(
    batches: Batches, rows: Rows, decode: Decode | None, seconds: float
) -> Alone:
    reads = StepReads(batches, rows=rows, decode=decode, in_turn=(0, 1))
    passes = Passes(reads.read, itertools.count(), threads=1)
    _next_batches(passes)  # opens shards
    stored = _storage_bytes()
    started = time.perf_counter()
    read: list[ReadBatch] = []
    while len(read) < _LEAST_BATCHES or time.perf_counter() - started < seconds:
        # The records themselves are not kept.
        read += [dataclasses.replace(one, batch=None) for one in _next_batches(passes)]
    wall = sum(batch.read_seconds for batch in read)
    cpu = sum(batch.read_cpu_seconds for batch in read)
    queued = sum(batch.read_queued_seconds for batch in read)
    stored_now = _storage_bytes()
    if any(dataset.read_options for dataset in batches.datasets):
        stored_now = None
    return Alone(
        batches=len(read),
        records=sum(batch.records for batch in read),
        record_bytes=sum(batch.record_bytes for batch in read),
        io_seconds=max(0.0, wall - cpu - queued),
        read_seconds=cpu,
        decode_seconds=sum(batch.decode_seconds for batch in read),
        storage_bytes=None
        if stored is None or stored_now is None
        else stored_now - stored,
    )


def _batches_in_memory(
    batches: Batches, rows: Rows, decode: Decode | None, count: int
) -> list[ReadBatch]:
    """Returns the first batches; all of them are in memory at once."""
    reads = StepReads(batches, rows=rows, decode=decode, in_turn=(0, 1))
    kept: list[ReadBatch] = []
    for step in range(count):
        read = reads.read([step])
        if read.error is not None:
            raise read.error
        kept += read.batches
    return kept


def _next_batches(passes: Passes) -> list[ReadBatch]:
    """Returns the batches of the next pass, or raises its error."""
    batches, error = next(passes)
    if error is not None:
        raise error
    return batches


def _measure_feed(
    feed: Feed | _Repeated, step_seconds: float, seconds: float
) -> FeedStats:
    next(feed)
    stop = time.perf_counter() + seconds  # Starting does not count.
    time.sleep(step_seconds)
    while time.perf_counter() < stop or feed.stats.batches < _LEAST_BATCHES:
        next(feed)
        time.sleep(step_seconds)
    return feed.stats


def _storage_bytes() -> int | None:
    """Bytes that the kernel has read from storage for this process, where known."""
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            fields = dict(line.split(": ") for line in file)
        return int(fields["read_bytes"])
    except (OSError, KeyError, ValueError):
        return None
