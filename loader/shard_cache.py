"""Shards of a dataset in object storage on a local disk, filled while records are read.

A shard that is touched is fetched whole in the background, in large ranges, while its
records are still read by ranges. A file has its name only when it is whole, on disk and
has the checksum that the dataset says; records from it are compared like any others.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import CorruptShardError, GristmillError
from gristmill.loader.index_arrays import IntArray
from gristmill.loader.index_cache import explained, locked
from gristmill.loader.object_reads import ByteRange
from gristmill.loader.range_fetch import RangeFetcher
from gristmill.loader.range_plan import MOST_RANGE_BYTES

# What was used so lately stays: in random order the least recently used shard is no
# less wanted than others, and to exchange them would only cost requests.
KEEP_SECONDS = 600.0
# How often to note that a file is in use, and to look whether it is still there.
_TOUCH_SECONDS = 30.0

_log = logging.getLogger(__name__)


class ShardCache:
    """Whole shards of one dataset. Safe to share by threads, and by processes of a host.

    Args:
        root: For the shards of all datasets.
        name: Of this dataset's directory, made from its content.
        cache_bytes: Most bytes of all datasets together.
        paths: The shards.
        file_bytes: int64 [shards], their sizes.
        file_crc32cs: uint32 [shards], their checksums.
        version: Returns the generation of a shard.
        fetcher: Reads them; another one than that for records, so that these do not
            wait.
    """

    def __init__(
        self,
        root: str,
        name: str,
        *,
        cache_bytes: int,
        paths: Sequence[str],
        file_bytes: IntArray,
        file_crc32cs: npt.NDArray[np.uint32],
        version: Callable[[int], str],
        fetcher: RangeFetcher,
    ):
        self._root, self._directory = root, os.path.join(root, name)
        self._cache_bytes, self._paths = cache_bytes, paths
        self._file_bytes, self._file_crc32cs = file_bytes, file_crc32cs
        self._version, self._fetcher = version, fetcher
        self._maps: dict[int, memoryview] = {}
        self._touched: dict[int, float] = {}
        self._asked: set[int] = set()
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.filled = 0
        with explained(self._directory):
            os.makedirs(self._directory, exist_ok=True)

    def get(self, shard: int) -> memoryview | None:
        """Returns a shard's bytes if they are here; else it is fetched soon."""
        found = self._maps.get(shard)
        now = time.monotonic()
        if found is not None and now - self._touched[shard] < _TOUCH_SECONDS:
            return found
        path = self._file(shard)
        try:
            os.utime(path)
            if found is None:
                with open(path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    if size != self._file_bytes[shard]:
                        raise FileNotFoundError  # noqa: TRY301
                    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                found = memoryview(data)
        except OSError:
            # Not there yet, or evicted by another process.
            self._maps.pop(shard, None)
            self._ask(shard)
            return None
        self._maps[shard], self._touched[shard] = found, now
        return found

    def drop(self, shard: int) -> None:
        """Forgets a file that does not hold what it should."""
        self._maps.pop(shard, None)
        self._asked.discard(shard)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(shard))

    def _file(self, shard: int) -> str:
        return f"{self._directory}/{shard:08d}.array_record"

    def _ask(self, shard: int) -> None:
        with self._lock:
            if shard in self._asked:
                return
            self._asked.add(shard)
            self._queue.put(shard)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gristmill-shard-cache", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            shard = self._queue.get()
            try:
                with explained(self._directory):
                    self._fill(shard)
            except GristmillError as e:
                # Records are read by ranges all the same, and say what is wrong.
                _log.warning("shard is not kept on the local disk: %s", e)

    def _fill(self, shard: int) -> None:
        part = f"{self._file(shard)}.part"
        with open(part, "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._asked.discard(shard)  # Another process is at it.
                return
            if os.path.exists(self._file(shard)):
                os.unlink(part)
                return
            size = int(self._file_bytes[shard])
            if not self._make_room(size, part):
                os.unlink(part)
                return
            file.truncate(0)
            try:
                self._fetch(shard, file, size)
                os.fsync(file.fileno())
            except BaseException:
                os.unlink(part)
                raise
            os.replace(part, self._file(shard))
            self.filled += 1

    def _fetch(self, shard: int, file: BinaryIO, size: int) -> None:
        path, version = self._paths[shard], self._version(shard)
        ranges = [
            ByteRange(path, begin, min(begin + MOST_RANGE_BYTES, size), version)
            for begin in range(0, size, MOST_RANGE_BYTES)
        ]
        for tries in (1, 2):
            for number, data in self._fetcher.fetch(ranges):
                os.pwrite(file.fileno(), data, ranges[number].begin)
            crc32c = 0
            file.seek(0)
            while block := file.read(1 << 20):
                crc32c = google_crc32c.extend(crc32c, block)
            expected = int(self._file_crc32cs[shard])
            if crc32c == expected:
                return
            if tries == 2:
                raise CorruptShardError(
                    "shard is not the one that the dataset describes",
                    where=path,
                    expected=f"crc32c {expected:#010x}",
                    got=f"crc32c {crc32c:#010x}",
                    cure="restore the shard from a copy, or convert it again",
                )

    def _make_room(self, size: int, part: str) -> bool:
        """Evicts what was not used for longest; tells whether there is room now.

        Holds the place: the file gets its size, which others count.
        """
        with locked(os.path.join(self._root, "lock")):
            found = []
            for directory in os.scandir(self._root):
                if directory.is_dir():
                    found += [
                        (entry.stat().st_mtime, entry.stat().st_size, entry.path)
                        for entry in os.scandir(directory.path)
                    ]
            left = self._cache_bytes - sum(held for _, held, _ in found)
            lately = time.time() - KEEP_SECONDS
            for used, held, path in sorted(found):
                if left >= size or used > lately:
                    break
                if path.endswith(".array_record"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                    left += held
            if left < size:
                return False
            os.truncate(part, size)
            return True


