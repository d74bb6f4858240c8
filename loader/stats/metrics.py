"""The metrics of feeds, for whatever exports them: names, units, values, causes."""

from __future__ import annotations

import collections
import operator
import time
import weakref
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from gristmill.dataset.base.errors import InputError
from gristmill.loader.stats.causes import CAUSES, Cause, waits_for
from gristmill.loader.stats.feed_stats import FeedStats

COUNTERS = {
    "batches": "Batches given to the trainer",
    "records": "Records given to the trainer",
    "record_bytes": "Bytes of records given to the trainer",
    "startups": "First batches after a start",
    "startup_seconds": "Time that the trainer waited for first batches",
    "wait_seconds": "Time that the trainer waited for all other batches",
    "busy_seconds": "Time that the trainer worked",
    "busy_cpu_seconds": "Processor time of the trainer's thread in that time",
    "read_seconds": "Time that reading took, in all threads or workers",
    "read_cpu_seconds": "Processor time that reading took",
    "read_queued_seconds": "Time that reading waited for a processor",
    "decode_seconds": "Time that decode took, in all threads or workers",
    "decode_cpu_seconds": "Processor time that decode took",
    "decode_queued_seconds": "Time that decode waited for a processor",
    "transfer_seconds": "Time that it took to hand batches over",
    "cache.hits": "Records read from local copies of shards",
    "cache.misses": "Records read from object storage, without a local copy",
    "cache.filled_bytes": "Bytes fetched for local copies of shards",
    "cache.evictions": "Local copies of shards that were deleted",
}
GAUGES = {
    "current_wait_seconds": "How long the trainer has waited for a batch now",
    "ready_batches": "Batches that are ready",
    "prefetch": "Batches that are kept ready; of small ones more can be",
    "workers": "Processes that read and decode; 0 for threads",
    "makers": "Workers or threads that read and decode",
    "processors": "Processors that the trainer's process may use",
}
WAITS_FOR = "waits_for"
WAITS_FOR_TEXT = "1 for what the trainer waited for in the last minute, else 0"

# Period of the reported cause of waiting: long enough for some steps.
_RECENT_SECONDS = 60.0


class HasStats(Protocol):
    """A feed, or the result of `to_jax` for one."""

    @property
    def stats(self) -> FeedStats:
        """Its statistics so far."""


class Value(NamedTuple):
    """A value of a metric, for a named feed, and for a cause if there is one."""

    feed: str
    value: float
    cause: str | None = None


class Feeds:
    """The live feeds that are exported in one place, by name."""

    def __init__(self) -> None:
        self._feeds: weakref.WeakValueDictionary[str, HasStats]
        self._feeds = weakref.WeakValueDictionary()
        self._recent: dict[str, _Recent] = {}

    def add(self, name: str, feed: HasStats) -> None:
        """Adds a feed; raises InputError if its name is taken."""
        other = self._feeds.get(name)
        if other is not None and other is not feed:
            raise InputError(
                "another feed has that name", got=repr(name), cure="choose another name"
            )
        self._feeds[name], self._recent[name] = feed, _Recent()

    def values(self, field: str) -> Iterator[Value]:
        """Yields the values of a metric, a field of COUNTERS or GAUGES, or WAITS_FOR.

        The last has a value for every cause.
        """
        for name, feed in sorted(self._feeds.items()):
            if field == WAITS_FOR:
                found = self._recent[name].cause(feed.stats)
                for cause in CAUSES:
                    yield Value(name, float(cause == found), cause)
            else:
                yield Value(name, operator.attrgetter(field)(feed.stats))


class _Recent:
    """Stats of a feed since about `_RECENT_SECONDS` ago, at any time."""

    def __init__(self) -> None:
        self._kept: collections.deque[tuple[float, FeedStats]] = collections.deque()
        self._cause: Cause = "unknown"

    def cause(self, stats: FeedStats) -> Cause:
        """Returns the recent cause of waiting; the last one if there was no batch."""
        now = time.monotonic()
        while len(self._kept) > 1 and self._kept[1][0] <= now - _RECENT_SECONDS:
            self._kept.popleft()
        before = self._kept[0][1] if self._kept else FeedStats()
        if stats.batches > before.batches:
            self._cause = waits_for(stats - before).cause
        self._kept.append((now, stats))
        return self._cause
