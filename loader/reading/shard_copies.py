"""Copies of shards from object storage on a local disk, shared by all processes.

A copy gets its name only when it is complete and has the checksum of its shard. The
directory of an edition is named after the content of its shards, so editions of other
content do not share copies.

    lock                    held by the one process of the host that adds a copy
    <edition>/lock          held, shared, by every process that reads the edition
    <edition>/00000007.shard
    <edition>/00000009.tmp  being fetched

A thread makes one copy at a time, by a few large requests beside the hundreds of small
ones for records. While records are read, it spends at most half of the time on copies.

Before a shard is read, the bucket is asked for its size, checksum and generation. Size
and checksum must be those of the table of shards; the generation is requested from then
on.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.util import Finalize

import google_crc32c

from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    InputError,
    StorageChangedError,
    StorageMissingError,
)
from gristmill.dataset.metadata.shard_files import ShardFacts, check_shard
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.local import OpenFile, open_regular
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import checked_count
from gristmill.loader.reading.host_cache import (
    EditionFiles,
    cache_root,
    disk_errors,
    locked,
)
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import CacheCounter, CacheCounts

_ASKED_ALONE = 2


@dataclasses.dataclass(kw_only=True, eq=False)
class StoredShards:
    """The shards of a dataset in object storage, their table, and their fetcher.

    Attributes:
        where: The dataset, for messages.
        paths: The shards.
        index_paths: Their indexes.
        table: Their table.
        split: Their split.
        fetcher: Fetches records and indexes.
        cache_dir: The directory of the host's caches, None for the default.
        counter: Counts the use of copies.
    """

    where: str
    paths: Sequence[str]
    index_paths: Sequence[str]
    table: ShardTable
    split: Split
    fetcher: RangeFetcher
    cache_dir: str | None
    counter: CacheCounter = dataclasses.field(default_factory=CacheCounter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listed: dict[str, dict[str, FileInfo]] = {}
        self._asked = 0

    def described(self, shard: int) -> ShardFacts:
        """Returns the size and checksum that a shard has by the table."""
        return ShardFacts(
            file_bytes=int(self.table.file_bytes[shard]),
            file_crc32c=int(self.table.file_crc32cs[shard]),
        )

    def version(self, shard: int) -> str:
        """Returns the generation of a shard, which must be the one of the table."""
        path = self.paths[shard]
        found = self._stat(path)
        stored = ShardFacts(file_bytes=found.size_bytes, file_crc32c=found.crc32c)
        check_shard(self.described(shard), stored, where=path)
        return found.version

    def _stat(self, path: str) -> FileInfo:
        """Returns size and version of an object of the dataset.

        The first few are requested singly, enough to trace a row. Then a listing of
        their directory gives a thousand at once.
        """
        directory = path.rpartition("/")[0]
        storage = storage_for(directory)
        with self._lock:
            self._asked += 1
            if self._asked > _ASKED_ALONE and directory not in self._listed:
                listed = storage.list(directory)
                self._listed[directory] = {info.path: info for info in listed}
            known = self._listed.get(directory)
        found = storage.stat(path) if known is None else known.get(path)
        if found is None:
            raise StorageMissingError(
                "object of the dataset does not exist",
                where=path,
                cure="restore it from a copy, or convert its shard again",
            )
        return found


_REQUESTS_IN_FLIGHT = 4
_COPY, _TEMPORARY = ".shard", ".tmp"
_RANGE_BYTES = 8 << 20
_PIECE_BYTES = 1 << 20  # Other threads wait for the checksum of a piece.
_TRIES = 3  # How often to fetch a shard that arrives damaged.
_POLL_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 300.0
# The thread ends as a feed does: before the parts of multiprocessing, and soon.
_EXIT_PRIORITY = 100
_EXIT_SECONDS = 2.0

_log = logging.getLogger(__name__)


class _StoppedError(Exception):
    """The process is ending."""


class ShardCopies:
    """Copies of the shards of one dataset. Safe to share by threads.

    It makes the directories, which count as in use from then on. Its thread starts with
    the first read, and ends when this is collected or the process exits. It raises
    InputError if no directory is given or no shard fits, StorageError if the directory
    cannot be used.

    Args:
        stored: The shards.
        cache_bytes: Maximum bytes of all copies on this host, of all datasets.

    Attributes:
        pause_seconds: How long to wait when no more copies fit, and after a failure of
            disk or storage; twice as long after each failure that follows.
    """

    pause_seconds = 5.0

    def __init__(self, stored: StoredShards, cache_bytes: int):
        if not (stored.cache_dir or os.environ.get("GRISTMILL_CACHE_DIR")):
            raise InputError(
                "no directory given for copies of shards",
                where=stored.where,
                cure="give a directory on a fast local disk as cache_dir, or as "
                "GRISTMILL_CACHE_DIR",
            )
        sizes = stored.table.file_bytes[stored.table.records > 0]
        smallest = int(sizes.min(initial=2**62))
        if checked_count(cache_bytes, what="cache_bytes") < smallest and len(sizes):
            raise InputError(
                "cache_bytes is smaller than the smallest shard",
                where=stored.where,
                expected=f"cache_bytes of at least {smallest:,}, its size",
                got=f"{cache_bytes:,}",
                cure="give more, or leave cache_bytes out",
            )
        self._stored, self._cache_bytes = stored, cache_bytes
        options = dataclasses.replace(
            stored.fetcher.options, in_flight=_REQUESTS_IN_FLIGHT, hedge_factor=None
        )
        self._fetcher = RangeFetcher(options)
        self._directory = directory = os.path.join(
            cache_root(stored.cache_dir), "shards"
        )
        self._files = files = EditionFiles(directory, stored.split)
        self._wanted: collections.Counter[int] = collections.Counter()
        self._wrong: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()
        self._changed, self._stop = threading.Event(), threading.Event()
        self._trimmed = False
        self._thread: threading.Thread | None = None
        self._failures = 0
        in_use = contextlib.ExitStack()
        weakref.finalize(self, in_use.close)
        with disk_errors(directory):
            os.makedirs(directory, exist_ok=True)
            open_regular(f"{directory}/lock", "ab").close()
            for own in files.directories:
                os.makedirs(own, exist_ok=True)
                in_use.enter_context(locked(f"{own}/lock", shared=True))

    def find(self, shard: int) -> OpenFile | None:
        """Returns an opened copy; None if there is none.

        It stays readable when the copy is deleted.
        """
        try:
            file = OpenFile(self._files.path(shard, _COPY))
        except OSError:
            return None  # Not there, or just deleted.
        if file.size_bytes == self._size(shard) > 0:
            return file
        self.delete(shard)  # It was truncated.
        return None

    def _size(self, shard: int) -> int:
        return int(self._stored.table.file_bytes[shard])

    def delete(self, shard: int) -> None:
        """Deletes a copy."""
        _delete(self._files.path(shard, _COPY))

    def count(self, shard: int, records: int, *, fetched: bool) -> None:
        """Counts records that were read, and asks for a copy if they were fetched."""
        name = "misses" if fetched else "hits"
        self._stored.counter.add(CacheCounts(**{name: records}))
        with self._lock:
            self._wanted[shard] += records if fetched else 0
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
        if fetched:
            self._changed.set()

    def copy_one(self) -> float | None:
        """Makes the copy that saves most requests for its bytes.

        Returns how many seconds to pause; None to wait until records are read.
        """
        try:
            with locked(os.path.join(self._directory, "lock"), wait=False) as free:
                return self._copy_best() if free else _POLL_SECONDS
        except _StoppedError:
            return None
        except (GristmillError, OSError) as e:
            # Records can be read without copies.
            pause: float = self.pause_seconds * 2 ** min(self._failures, 10)
            pause = min(pause, _LONGEST_PAUSE_SECONDS)
            self._failures += 1
            text = "no copies of shards in %s for %d seconds: %s"
            _log.warning(text, self._directory, pause, e)
            return pause

    def _copy_best(self) -> float | None:
        if not self._trimmed:
            # A job may give the cache fewer bytes than the job before.
            self._trimmed = self._make_room(0, also_used=True)
        with self._lock:
            for shard in list(self._wanted):
                place = self._files.path(shard, _COPY)
                if os.path.exists(place) or self._wrong[shard] >= _TRIES:
                    del self._wanted[shard]
            worth = {s: n / max(self._size(s), 1) for s, n in self._wanted.items()}
        for shard in sorted(worth, key=lambda shard: -worth[shard]):
            if self._make_room(self._size(shard)):
                self._copy(shard)
                return 0.0
        return self.pause_seconds if worth else None

    def _make_room(self, size_bytes: int, *, also_used: bool = False) -> bool:
        """Deletes the oldest copies of editions that no process reads, to make room.

        Copies that are read stay: every epoch reads each record once, so all are worth
        the same, and to replace one costs a fetch and gains nothing.
        """
        left, unused = self._cache_bytes - size_bytes, []
        with contextlib.ExitStack() as stack:
            for entry in os.scandir(self._directory):
                if entry.is_dir():
                    copies = list(_copies(entry.path))
                    left -= sum(size for _, size, _ in copies)
                    if also_used or (
                        copies
                        and stack.enter_context(
                            locked(f"{entry.path}/lock", wait=False)
                        )
                    ):
                        unused += copies
            if left + sum(size for _, size, _ in unused) < 0:
                return False
            for _, size, path in sorted(unused):
                if left >= 0:
                    break
                _delete(path)
                left += size
                self._stored.counter.add(CacheCounts(evictions=1))
        return True

    def _copy(self, shard: int) -> None:
        temporary = self._files.path(shard, _TEMPORARY)
        try:
            with open_regular(temporary, "w+b") as file:
                if hasattr(os, "posix_fallocate"):  # macOS has none.
                    os.posix_fallocate(file.fileno(), 0, self._size(shard))
                self._fetch(shard, file.fileno())
                crc32c, size = 0, 0
                file.seek(0)
                while piece := file.read(_PIECE_BYTES):
                    crc32c = google_crc32c.extend(crc32c, piece)
                    size += len(piece)
                fetched = ShardFacts(file_bytes=size, file_crc32c=crc32c)
                check_shard(self._stored.described(shard), fetched, where=temporary)
                # After a power failure, a file with its name must have its bytes.
                os.fsync(file.fileno())
            os.replace(temporary, self._files.path(shard, _COPY))
        except (CorruptShardError, StorageChangedError) as e:
            # Reading its records by ranges raises the error.
            self._wrong[shard] += 1
            _log.warning("no copy of %s: %s", self._stored.paths[shard], e)
        else:
            self._failures = 0
        finally:
            _delete(temporary)

    def _fetch(self, shard: int, copy: int) -> None:
        path, version = self._stored.paths[shard], self._stored.version(shard)
        size, group_bytes = self._size(shard), _RANGE_BYTES * _REQUESTS_IN_FLIGHT
        group: list[ByteRange] = []

        def take(number: int, data: bytes) -> None:
            os.pwrite(copy, data, group[number].begin)
            self._stored.counter.add(CacheCounts(filled_bytes=len(data)))
            if self._stop.is_set():
                raise _StoppedError

        for first in range(0, size, group_bytes):
            group = [
                ByteRange(path, begin, min(begin + _RANGE_BYTES, size), version)
                for begin in range(first, min(first + group_bytes, size), _RANGE_BYTES)
            ]
            before, begun = self._stored.fetcher.counts.requests, time.monotonic()
            self._fetcher.fetch(group, take)
            if self._stored.fetcher.counts.requests != before:
                self._stop.wait(time.monotonic() - begun)


def _copies(place: str) -> Iterator[tuple[float, int, str]]:
    """Yields age, size and path of copies; deletes what dead processes have left."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if name.endswith(_TEMPORARY):
            _delete(path)
        elif name.endswith(_COPY):
            with contextlib.suppress(FileNotFoundError):
                about = os.stat(path)
                yield about.st_mtime, about.st_size, path


def _delete(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _run(
    reference: weakref.ref[ShardCopies],
    changed: threading.Event,
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        changed.clear()
        copies = reference()
        if copies is None:
            return
        pause = copies.copy_one()
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
