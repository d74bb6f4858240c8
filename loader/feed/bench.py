"""Measures how fast a machine can feed a trainer, and what limits it."""

from __future__ import annotations

import dataclasses
import time
from typing import Literal

from gristmill.dataset.base.errors import InputError
from gristmill.loader.data.batches import Batches
from gristmill.loader.feed.feed import Feed
from gristmill.loader.feed.stats import FeedStats
from gristmill.loader.feed.step_reads import Decode

Cause = Literal["trainer", "read", "decode"]

_LEAST_BATCHES = 3
# A trainer that waits less than this share of its time is not held up.
_WAITING_SHARE = 0.05

_CURES: dict[Cause, str] = {
    "trainer": "a faster feed would not help",
    "read": "use more workers or hosts; from a bucket or a slow disk, read larger "
    "ranges (shuffle='block', larger groups of records), keep copies of shards on this "
    "host, raise prefetch, or look for throttling",
    "decode": "use more workers, or convert what decode does into the dataset",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Results of `measure`.

    Attributes:
        stats: Statistics of the feed, without its first batch.
        first_seconds: How long the trainer waited for the first batch.
        seconds: How long the others took.
        step_seconds: How long the trainer took for a step.
    """

    stats: FeedStats
    first_seconds: float
    seconds: float
    step_seconds: float

    @property
    def cause(self) -> Cause:
        """The step that the trainer waits for; `trainer` if it hardly waits."""
        if self.waiting_share < _WAITING_SHARE:
            return "trainer"
        is_read = self.stats.read_seconds >= self.stats.decode_seconds
        return "read" if is_read else "decode"

    @property
    def waiting_share(self) -> float:
        """Share of the trainer's time that it waited for data, 0 to 1."""
        return self.stats.wait_seconds / self.seconds

    @property
    def sentence(self) -> str:
        """The cause with its numbers, and what to do."""
        text = f"the trainer waits {self.waiting_share:.0%} of its time for batches"
        if self.cause != "trainer":
            took = {
                "read": self.stats.read_seconds,
                "decode": self.stats.decode_seconds,
            }
            share = took[self.cause] / max(sum(took.values()), 1e-9)
            text += f", and {share:.0%} of the time of a batch goes to {self.cause}"
        return f"{text}: {_CURES[self.cause]}"


def measure(
    batches: Batches,
    *,
    hosts: int = 1,
    decode: Decode | None = None,
    workers: int = 0,
    prefetch: int = 2,
    step_seconds: float = 0.0,
    seconds: float = 5.0,
) -> Measured:
    """Reads batches through a feed for a trainer that sleeps.

    Args:
        batches: The global batches.
        hosts: How many hosts share them: the rows of the first are read.
        decode: As in `GlobalBatches.feed`.
        workers: As in `GlobalBatches.feed`.
        prefetch: As in `GlobalBatches.feed`.
        step_seconds: How long the trainer takes for a step.
        seconds: How long to measure.

    Raises:
        InputError: The number of steps is limited, or the hosts cannot share a batch.
    """
    if batches.steps is not None:
        raise InputError(
            "batches to measure must not have a last step",
            got=f"{batches.steps:,} steps",
            cure="make them with epochs=None",
        )
    rows = batches.schedule.host_rows((0, hosts))
    with Feed(
        batches,
        rows_of=lambda _: rows,
        decode=decode,
        workers=workers,
        prefetch=prefetch,
        start_step=0,
    ) as feed:
        next(feed)
        first = feed.stats
        started = time.perf_counter()
        time.sleep(step_seconds)
        while (
            time.perf_counter() < started + seconds
            or feed.stats.batches <= _LEAST_BATCHES
        ):
            next(feed)
            time.sleep(step_seconds)
        return Measured(
            stats=feed.stats - first,
            first_seconds=first.wait_seconds,
            seconds=time.perf_counter() - started,
            step_seconds=step_seconds,
        )
