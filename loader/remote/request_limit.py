"""How many requests are in flight, of all threads, and how long they take."""

from __future__ import annotations

import collections
import threading
import time

# Those that were in flight together are throttled together: one event.
_ONE_EVENT_SECONDS = 0.1
_FEWEST = 4
# At most one request in so many is a second one for a straggler.
_HEDGE_EVERY = 100
_HEDGE_SHORTEST_SECONDS = 0.05


class Places:
    """So many requests may be in flight; fewer for a while when the server throttles.

    Args:
        most: Requests.

    Attributes:
        limit: How many may be at the moment.
        taken: How many are.
    """

    def __init__(self, most: int):
        self._most, self.limit = most, float(most)
        self.taken = self._waiting = 0
        self._last_cut = 0.0
        # Entered itself and not through the condition, whose methods are Python's own:
        # Ctrl-C inside them could leave it locked.
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)

    def claim(self) -> Claim:
        """Returns the places of one caller: none yet."""
        return Claim(self)

    def _throttled(self) -> None:
        now = time.monotonic()
        if now - self._last_cut > _ONE_EVENT_SECONDS:
            self._last_cut = now
            self.limit = max(self.limit / 2, min(_FEWEST, self._most))


class Claim:
    """The places that one caller has. They are counted, so that none is lost."""

    def __init__(self, places: Places):
        self._places = places
        self._held = 0

    def take(self, *, wait_seconds: float) -> bool:
        """Takes a place; tells whether there was one in that time."""
        places = self._places
        with places._lock:
            if places.taken >= places.limit and wait_seconds:
                places._waiting += 1
                try:
                    places._freed.wait(wait_seconds)
                finally:
                    places._waiting -= 1
            if places.taken >= places.limit:
                return False
            # Ctrl-C can come at a call, but not between these two.
            places.taken += 1
            self._held += 1
            return True

    def give_back(self, *, answered: bool = True, throttled: bool = False) -> None:
        """Gives one back.

        Args:
            answered: Whether there was an answer.
            throttled: Whether it was that the server is asked too much.
        """
        places = self._places
        with places._lock:
            places.taken -= 1
            self._held -= 1
            if throttled:
                places._throttled()
            elif answered and places.limit < places._most:
                places.limit = min(places.limit + 1 / places.limit, places._most)
            if places._waiting:
                places._freed.notify()

    def give_back_all(self) -> None:
        """Gives all back that are left."""
        places = self._places
        with places._lock:
            places.taken -= self._held
            self._held = 0
            places._freed.notify_all()


class Lateness:
    """How long an answer may take before it is a straggler.

    Args:
        factor: So many times as long as 95 of 100 others; None for never.

    Attributes:
        after_seconds: The answer.
    """

    def __init__(self, factor: float | None):
        self._factor = factor
        self._seconds: collections.deque[float] = collections.deque(maxlen=256)
        self._count = 0
        self._hedges = 0
        self.after_seconds = float("inf")

    def took(self, seconds: float) -> None:
        """Counts an answer."""
        self._seconds.append(seconds)
        self._count += 1
        if self._factor is not None and self._count % 64 == 0:
            ordered = sorted(self._seconds)
            usual = ordered[len(ordered) * 95 // 100]
            self.after_seconds = max(self._factor * usual, _HEDGE_SHORTEST_SECONDS)

    def hedge(self) -> bool:
        """Tells whether one more second request may be sent, and counts it."""
        if (self._hedges + 1) * _HEDGE_EVERY > self._count:
            return False
        self._hedges += 1
        return True
