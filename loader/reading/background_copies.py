"""Copies shards to the local cache in the background, while records are read by ranges.

A host makes one copy at a time, by a few large requests beside the hundreds of small
ones for records. While records are read, it spends at most half of the time on copies.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.util import Finalize

from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    StorageChangedError,
)
from gristmill.loader.reading.cached_shards import CacheRoom, ShardCache
from gristmill.loader.reading.shard_list import CacheCounter, CacheCounts
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

REQUESTS_IN_FLIGHT = 4
# How long one process adds copies before another one of the host may.
_HOLD_LOCK_SECONDS = 30.0
_PAUSE_SECONDS = 0.25
_POLL_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 300.0
# How often to fetch a shard that arrives damaged.
_TRIES = 3
# The thread ends as a feed does: before the parts of multiprocessing, and soon.
_EXIT_PRIORITY = 100
_EXIT_SECONDS = 2.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """How to make copies.

    Attributes:
        range_bytes: Bytes of one request.
        time_share: Share of the time to spend on copies while records are read.
        full_pause_seconds: How long to wait if no more copies fit.
        failed_pause_seconds: How long to wait after the first failure of disk or
            storage; twice as long after each one that follows.
    """

    range_bytes: int = 8 << 20
    time_share: float = 0.5
    full_pause_seconds: float = 30.0
    failed_pause_seconds: float = 5.0


class _StoppedError(Exception):
    """The process is ending."""


class BackgroundCopies:
    """Makes copies of the shards that are read. Safe to share by threads.

    Its thread ends with it, or with the process.

    Args:
        cache: Where to put the copies of the shards at `paths`.
        version: Returns the version of a shard to copy.
        fetcher: Fetches the shards, `REQUESTS_IN_FLIGHT` at a time.
        requests: Returns how many requests were made for records.
        counter: Counts fetched bytes and evictions.
    """

    def __init__(
        self,
        cache: ShardCache,
        *,
        paths: Sequence[str],
        version: Callable[[int], str],
        fetcher: RangeFetcher,
        requests: Callable[[], int],
        counter: CacheCounter,
    ):
        self._cache, self._paths, self._version = cache, paths, version
        self._fetcher, self._requests, self._counter = fetcher, requests, counter
        self.options = CopyOptions()
        self._wanted: collections.Counter[int] = collections.Counter()
        self._wrong: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()
        self._changed, self._stop = threading.Event(), threading.Event()
        self._trimmed = False
        self._thread: threading.Thread | None = None
        self._failures = 0

    def want(self, records: Mapping[int, int]) -> None:
        """Asks for copies of shards, by how many records were read of each without."""
        with self._lock:
            self._wanted.update(records)
            if self._thread is None:
                events = self._changed, self._stop
                self._thread = threading.Thread(
                    target=_run,
                    args=(weakref.ref(self), *events),
                    name="gristmill-copies",
                    daemon=True,
                )
                self._thread.start()
                end = (*events, self._thread)
                Finalize(self, _end, end, exitpriority=_EXIT_PRIORITY)
        if records:
            self._changed.set()

    def copy_for_a_while(self) -> float | None:
        """Makes copies until none is wanted or others of the host should.

        Returns how many seconds to pause; None until the next `want`.
        """
        try:
            with self._cache.filling() as room:
                if room is None:
                    return _POLL_SECONDS
                try:
                    pause = self._fill(room)
                finally:
                    self._counter.add(CacheCounts(evictions=room.evictions))
        except _StoppedError:
            return None
        except (GristmillError, OSError) as e:
            # Records can be read without copies.
            pause = self.options.failed_pause_seconds * 2 ** min(self._failures, 10)
            pause = min(pause, _LONGEST_PAUSE_SECONDS)
            self._failures += 1
            text = "no copies of shards in %s for %d seconds: %s"
            _log.warning(text, self._cache.directory, pause, e)
        return pause

    def _fill(self, room: CacheRoom) -> float | None:
        if not self._trimmed:
            room.trim()
            self._trimmed = True
        with self._lock:
            # Shards that save most requests for their bytes come first.
            sizes = self._cache.file_bytes
            worth = {s: n / max(int(sizes[s]), 1) for s, n in self._wanted.items()}
            order = sorted(worth, key=lambda shard: -worth[shard])
        begun, full, left = time.monotonic(), False, False
        most_bytes = room.most_bytes()
        for shard in order:
            size = int(sizes[shard])
            if self._cache.has(shard) or self._wrong[shard] >= _TRIES:
                self._forget(shard)
            elif size > most_bytes:
                full = True
            elif time.monotonic() - begun >= _HOLD_LOCK_SECONDS:
                return _PAUSE_SECONDS
            elif self._copy(shard, size, room):
                self._forget(shard)
                most_bytes = room.most_bytes()
            else:
                left = True
        if left:
            return _PAUSE_SECONDS
        return self.options.full_pause_seconds if full else None

    def _forget(self, shard: int) -> None:
        with self._lock:
            self._wanted.pop(shard, None)

    def _copy(self, shard: int, size: int, room: CacheRoom) -> bool:
        """Makes one copy; returns whether it is the shard."""
        room.free(size)
        try:
            with self._cache.write(shard) as copy:
                self._fetch(shard, size, copy)
        except (CorruptShardError, StorageChangedError) as e:
            # To read its records by ranges raises the error.
            self._wrong[shard] += 1
            _log.warning("no copy of %s: %s", self._paths[shard], e)
            return False
        room.add(size)
        self._failures = 0
        return True

    def _fetch(self, shard: int, size: int, copy: int) -> None:
        path, version = self._paths[shard], self._version(shard)
        options = self.options
        ranges = [
            ByteRange(path, begin, min(begin + options.range_bytes, size), version)
            for begin in range(0, size, options.range_bytes)
        ]
        group: list[ByteRange] = []

        def take(number: int, data: bytes) -> None:
            os.pwrite(copy, data, group[number].begin)
            self._counter.add(CacheCounts(filled_bytes=len(data)))
            if self._stop.is_set():
                raise _StoppedError

        for first in range(0, len(ranges), REQUESTS_IN_FLIGHT):
            group = ranges[first : first + REQUESTS_IN_FLIGHT]
            before, begun = self._requests(), time.monotonic()
            self._fetcher.fetch(group, take)
            if self._requests() != before:
                self._stop.wait(
                    (time.monotonic() - begun) * (1 / options.time_share - 1)
                )


def _run(
    reference: weakref.ref[BackgroundCopies],
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        changed.clear()
        copies = reference()
        if copies is None:
            return
        pause = copies.copy_for_a_while()
        del copies  # While it waits, the thread keeps nothing alive.
        if pause is None:
            changed.wait()
        else:
            stop.wait(pause)


def _end(
    changed: threading.Event, stop: threading.Event, thread: threading.Thread
) -> None:
    stop.set()
    changed.set()
    if thread is not threading.current_thread():
        thread.join(_EXIT_SECONDS)
