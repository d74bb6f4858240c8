"""The limit of requests in flight, over all threads; counts of requests and copies."""

from __future__ import annotations

import dataclasses
import threading
import time

# Requests in flight together are throttled together: that is one event.
_ONE_EVENT_SECONDS = 0.1
_FEWEST_REQUESTS = 4


@dataclasses.dataclass
class ReadCounts:
    """Counts of a process's requests to object storage.

    Attributes:
        requests: All requests.
        received_bytes: Bytes of the answers that were used.
        retries: Requests after failures.
        hedges: Second requests for late ones.
        throttled: Answers that say that the server is overloaded.
    """

    requests: int = 0
    received_bytes: int = 0
    retries: int = 0
    hedges: int = 0
    throttled: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """Counts of a cache of shards, in one process or more.

    Attributes:
        hits: Records that were read from local copies.
        misses: Records that were read from object storage.
        filled_bytes: Bytes of shards that were fetched for copies.
        evictions: Copies that were deleted to make room.
    """

    hits: int = 0
    misses: int = 0
    filled_bytes: int = 0
    evictions: int = 0

    def __add__(self, other: CacheCounts) -> CacheCounts:
        if other is NOT_CACHED:
            return self  # As for every batch without a cache.
        added = {name: vars(self)[name] + vars(other)[name] for name in vars(self)}
        return CacheCounts(**added)

    def __sub__(self, other: CacheCounts) -> CacheCounts:
        left = {name: vars(self)[name] - vars(other)[name] for name in vars(self)}
        return CacheCounts(**left)


NOT_CACHED = CacheCounts()


class CacheCounter:
    """Adds up the counts of a process. Safe to share by threads.

    Attributes:
        counts: All counts so far.
    """

    def __init__(self) -> None:
        self.counts = self._taken = NOT_CACHED
        self._lock = threading.Lock()

    def add(self, counts: CacheCounts) -> None:
        """Adds counts."""
        with self._lock:
            self.counts += counts

    def take(self) -> CacheCounts:
        """Returns the additions since the last call."""
        with self._lock:
            new, self._taken = self.counts - self._taken, self.counts
        return new


class RequestLimit:
    """A limit on requests in flight, which drops while a server throttles.

    Args:
        most: Maximum requests in flight.

    Attributes:
        limit: Current limit.
        taken: Number of slots taken.
    """

    def __init__(self, most: int):
        self._most, self.limit = most, float(most)
        self.taken = self._waiting = 0
        self._last_cut = 0.0
        # The lock is entered directly and not through the condition, whose methods are
        # written in Python: Ctrl-C inside them could leave it locked.
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)


class RequestSlots:
    """The slots that one caller holds. They are counted so that none is lost."""

    def __init__(self, limit: RequestLimit):
        self._limit = limit
        self._held = 0

    def take(self, *, wait_seconds: float) -> bool:
        """Takes a slot; returns False if none was free in that time."""
        limit = self._limit
        with limit._lock:
            if limit.taken >= limit.limit and wait_seconds:
                limit._waiting += 1
                try:
                    limit._freed.wait(wait_seconds)
                finally:
                    limit._waiting -= 1
            if limit.taken >= limit.limit:
                return False
            # Ctrl-C can come at a call, but not between these two.
            limit.taken += 1
            self._held += 1
            return True

    def give_back(self, *, answered: bool = True, throttled: bool = False) -> None:
        """Gives one slot back after an answer, which may report an overload."""
        limit = self._limit
        with limit._lock:
            limit.taken -= 1
            self._held -= 1
            now = time.monotonic()
            if throttled and now - limit._last_cut > _ONE_EVENT_SECONDS:
                limit._last_cut = now
                limit.limit = max(limit.limit / 2, min(_FEWEST_REQUESTS, limit._most))
            elif answered and not throttled and limit.limit < limit._most:
                limit.limit = min(limit.limit + 1 / limit.limit, limit._most)
            if limit._waiting:
                limit._freed.notify()

    def give_back_all(self) -> None:
        """Gives back all remaining slots."""
        limit = self._limit
        with limit._lock:
            limit.taken -= self._held
            self._held = 0
            limit._freed.notify_all()
