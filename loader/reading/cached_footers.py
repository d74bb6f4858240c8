"""Indexes that were made of the footers of plain files, kept on this host.

Each is made once per host. The files are mapped, so that all processes share them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import time
from collections.abc import Callable

from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.base.errors import GristmillError, StorageError
from gristmill.dataset.metadata.shard_index import (
    ShardIndex,
    encode_footer,
    index_of_footer,
    map_footer,
)
from gristmill.loader.reading.host_files import cache_root, write_whole

_MOST_BYTES = 1 << 30
_SUFFIX = ".footer"
# The time of last use is this exact.
_TOUCH_SECONDS = 3600

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FooterCache:
    """A directory with indexes of plain files. Safe to share by threads, processes.

    Attributes:
        directory: Holds nothing else.
    """

    directory: str

    def index(
        self, path: str, *, file_bytes: int, stamp: str, read: Callable[[], Footer]
    ) -> ShardIndex:
        """Returns the index of a file; makes and keeps it if it is not in the cache.

        The `stamp` differs after the file was written again; `read` reads its footer.
        """
        what = "\0".join((os.path.abspath(path), str(file_bytes), stamp))
        name = hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        place = os.path.join(self.directory, name + _SUFFIX)
        found = self._find(place, path, file_bytes)
        if found is not None:
            return found
        footer = read()
        try:
            os.makedirs(self.directory, exist_ok=True)
            write_whole(place, encode_footer(footer, file_bytes=file_bytes))
        except OSError as e:
            # Without a cache, each process reads footers for itself.
            _log.warning("cannot keep the index of %s in %s: %s", path, place, e)
        else:
            found = self._find(place, path, file_bytes)
        return found or index_of_footer(footer, path=path, file_bytes=file_bytes)

    def _find(self, place: str, path: str, file_bytes: int) -> ShardIndex | None:
        try:
            if time.time() - os.stat(place).st_mtime > _TOUCH_SECONDS:
                os.utime(place)
            index = map_footer(place)
            index.check()
        except (OSError, GristmillError):
            return None  # Missing, just deleted, or damaged: it is made again.
        if index.file_bytes != file_bytes:
            return None
        return dataclasses.replace(index, path=path)

    def trim(self, most_bytes: int = _MOST_BYTES) -> None:
        """Deletes the least recently used indexes, down to a size.

        Processes that have mapped a deleted index can still use it.
        """
        found = []
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.directory) as entries,
        ):
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat()
                    found.append((about.st_mtime, about.st_blocks * 512, entry.path))
        excess = sum(size for _, size, _ in found) - most_bytes
        for _, size, path in sorted(found):
            if excess <= 0:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size


def footer_cache(cache_dir: str | None) -> FooterCache | None:
    """Returns the cache of this host, trimmed; None for the directory "".

    By default it is in the directory of `cache_root`; if that cannot be used, there is
    no cache. A given directory that cannot be used is a StorageError.
    """
    chosen = os.environ.get("GRISTMILL_CACHE_DIR") if cache_dir is None else cache_dir
    if chosen == "":
        return None
    try:
        cache = FooterCache(os.path.join(cache_root(cache_dir), "footers"))
        cache.trim()
    except (OSError, StorageError) as e:
        if cache_dir is not None:
            raise
        _log.warning("footers of plain files are not cached: %s", e)
        return None
    return cache
