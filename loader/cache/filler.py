"""Fills a cache of shards in the background, while records are read by ranges.

A host makes one copy at a time, in a few large ranges at once beside the hundreds of
small ones for records; and while there are such, at most half of the time.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.util import Finalize

from gristmill.dataset.errors import (
    CorruptShardError,
    GristmillError,
    StorageChangedError,
)
from gristmill.loader.cache.counts import CacheCounts, CacheMeter
from gristmill.loader.cache.shards import Room, ShardCache
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetch import RangeFetcher

RANGES_IN_FLIGHT = 4
_RANGE_BYTES = 8 << 20
# Of the time, while records are read.
_SHARE = 0.5
# How long one process adds copies before others of the host may.
_TURN_SECONDS = 30.0
_PAUSE_SECONDS = 0.25
_POLL_SECONDS = 0.1
# How long to wait where there is no room, or the disk or storage fails.
_FULL_SECONDS = 30.0
_FAILED_SECONDS = 5.0
_LONGEST_SECONDS = 300.0
# How often to ask for a shard that is not what it should be.
_TRIES = 3
# As a feed: before the parts of multiprocessing, and never for long.
_EXIT_PRIORITY = 100
_LEAVE_SECONDS = 2.0

_log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The process is about to end."""


class CacheFill:
    """Makes copies of the shards that are read. Safe to share by threads.

    Its thread ends with it, or with the process.

    Args:
        cache: Where to.
        paths: The shards.
        version: Returns which version of a shard is meant.
        fetcher: What reads them, `RANGES_IN_FLIGHT` at a time.
        requests: Returns how many requests were made for records.
        meter: Counts.
    """

    def __init__(
        self,
        cache: ShardCache,
        *,
        paths: Sequence[str],
        version: Callable[[int], str],
        fetcher: RangeFetcher,
        requests: Callable[[], int],
        meter: CacheMeter,
    ):
        self._cache, self._paths, self._version = cache, paths, version
        self._fetcher, self._requests, self._meter = fetcher, requests, meter
        self._wanted: collections.Counter[int] = collections.Counter()
        self._wrong: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()
        self._changed, self._stop = threading.Event(), threading.Event()
        self._started = self._trimmed = False
        self._failed_seconds = _FAILED_SECONDS

    def want(self, records: Mapping[int, int]) -> None:
        """Says which shards were read; copies of them are made some time later.

        Args:
            records: How many records, of each shard that has no copy.
        """
        with self._lock:
            self._wanted.update(records)
            if not self._started:
                self._start()
        if records:
            self._changed.set()

    def _start(self) -> None:
        self._started = True
        thread = threading.Thread(
            target=_run,
            args=(weakref.ref(self), self._changed, self._stop),
            name="gristmill-fill",
            daemon=True,
        )
        thread.start()
        end = self._changed, self._stop, thread
        Finalize(self, _end, end, exitpriority=_EXIT_PRIORITY)

    def take_turn(self) -> float | None:
        """Makes copies for a while.

        Returns:
            For how many seconds to make none; None until others are wanted.
        """
        try:
            with self._cache.filling() as room:
                if room is None:
                    return _POLL_SECONDS
                try:
                    pause = self._fill(room)
                finally:
                    self._meter.add(CacheCounts(evictions=room.evictions))
        except _StoppedError:
            return None
        except (GristmillError, OSError) as e:
            # Records are read without copies as well; if they can be read at all.
            pause = self._failed_seconds
            self._failed_seconds = min(2 * pause, _LONGEST_SECONDS)
            text = "no copies of shards in %s for %d seconds: %s"
            _log.warning(text, self._cache.directory, pause, e)
        return pause

    def _fill(self, room: Room) -> float | None:
        if not self._trimmed:
            room.trim()
            self._trimmed = True
        with self._lock:
            # Those that save most requests for their bytes first.
            order = sorted(self._wanted, key=self._worth, reverse=True)
        begun, full, left = time.monotonic(), False, False
        most_bytes = room.most_bytes()
        for shard in order:
            size = int(self._cache.file_bytes[shard])
            if self._cache.has(shard) or self._wrong[shard] >= _TRIES:
                self._forget(shard)
            elif size > most_bytes:
                full = True
            elif time.monotonic() - begun >= _TURN_SECONDS:
                return _PAUSE_SECONDS
            elif self._copy(shard, room):
                self._forget(shard)
                most_bytes = room.most_bytes()
            else:
                left = True
        if left:
            return _PAUSE_SECONDS
        return _FULL_SECONDS if full else None

    def _worth(self, shard: int) -> float:
        return self._wanted[shard] / max(int(self._cache.file_bytes[shard]), 1)

    def _forget(self, shard: int) -> None:
        with self._lock:
            self._wanted.pop(shard, None)

    def _copy(self, shard: int, room: Room) -> bool:
        """Makes one copy; tells whether it is what it should be."""
        size = int(self._cache.file_bytes[shard])
        room.make(size)
        try:
            with self._cache.write(shard) as copy:
                self._fetch(shard, size, copy)
        except (CorruptShardError, StorageChangedError) as e:
            # Whoever reads its records by ranges is told so by an error.
            self._wrong[shard] += 1
            _log.warning("no copy of %s: %s", self._paths[shard], e)
            return False
        room.added(size)
        self._failed_seconds = _FAILED_SECONDS
        return True

    def _fetch(self, shard: int, size: int, copy: int) -> None:
        path, version = self._paths[shard], self._version(shard)
        ranges = [
            ByteRange(path, begin, min(begin + _RANGE_BYTES, size), version)
            for begin in range(0, size, _RANGE_BYTES)
        ]
        for first in range(0, len(ranges), RANGES_IN_FLIGHT):
            group = ranges[first : first + RANGES_IN_FLIGHT]
            before, begun = self._requests(), time.monotonic()
            self._fetch_group(group, copy)
            if self._requests() != before:
                self._stop.wait((time.monotonic() - begun) * (1 / _SHARE - 1))

    def _fetch_group(self, ranges: list[ByteRange], copy: int) -> None:
        def take(number: int, data: bytes) -> None:
            os.pwrite(copy, data, ranges[number].begin)
            self._meter.add(CacheCounts(filled_bytes=len(data)))
            if self._stop.is_set():
                raise _StoppedError

        self._fetcher.fetch(ranges, take)


def _run(
    me: weakref.ref[CacheFill], changed: threading.Event, stop: threading.Event
) -> None:
    while not stop.is_set():
        changed.clear()
        fill = me()
        if fill is None:
            return
        pause = fill.take_turn()
        del fill  # Whoever waits keeps nothing alive.
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
        thread.join(_LEAVE_SECONDS)
