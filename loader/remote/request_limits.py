"""The limit of requests in flight, over all threads, and counts of requests."""

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
