"""Counts of what was read from local copies of shards, and of the copies."""

from __future__ import annotations

import dataclasses
import threading


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
