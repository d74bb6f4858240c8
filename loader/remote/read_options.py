"""Options and counts of reading object storage."""

from __future__ import annotations

import dataclasses
import numbers
import threading

from gristmill.dataset.base.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of reading object storage.

    The defaults suit records of kilobytes at a latency of tens of milliseconds: 256
    requests in flight at 20 ms are 12,800 a second, more than one process decodes.

    Attributes:
        in_flight: Maximum requests in flight of one process; fewer while a server
            throttles.
        timeout_seconds: Time after which an unanswered request is repeated. Each try
            has twice the time of the one before, up to eight times as much.
        deadline_seconds: How long to retry a range after temporary failures.
        hedge_factor: A request that takes this multiple of the 95th percentile gets a
            second one, at most one in a hundred; None for never.
        window_bytes: Memory for the records of two windows of a block shuffle, in each
            process that reads batches. If the windows are larger, batches are read one
            by one, with about one request for each record.
    """

    in_flight: int = 256
    timeout_seconds: float = 10.0
    deadline_seconds: float = 120.0
    hedge_factor: float | None = 3.0
    window_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 1 if name in ("in_flight", "hedge_factor") else 1e-9
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            # Not NaN, which is not at least anything.
            fits = number and (value >= least or name == "window_bytes")
            if not fits and not (value is None and name == "hedge_factor"):
                raise InputError(
                    f"{name} of the read options is out of range",
                    expected=f"{'1 or more' if least == 1 else 'a number over 0'}",
                    got=f"{value!r:.100}",
                    cure=f"give such a {name}, or leave it out",
                )


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
        added = {name: vars(self)[name] + vars(other)[name] for name in vars(self)}
        return CacheCounts(**added)


NOT_CACHED = CacheCounts()


class CacheCounter:
    """Adds up the counts of a process. Safe to share by threads.

    Attributes:
        counts: All counts so far.
    """

    def __init__(self) -> None:
        self.counts = NOT_CACHED
        self._lock = threading.Lock()

    def add(self, counts: CacheCounts) -> None:
        """Adds counts."""
        with self._lock:
            self.counts += counts


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
