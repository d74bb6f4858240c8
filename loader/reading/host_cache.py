"""Files that processes of one host share, and the indexes of plain files among them.

The index of a plain file is made from its footer once per host. Processes map it, and
so share its memory.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import itertools
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator

from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.base.errors import (
    GristmillError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.metadata.shard_index import (
    ShardIndex,
    encode_footer,
    index_of_footer,
    map_footer,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.local import open_regular
from gristmill.dataset.storage.paths import StrPath, path_text


def cache_dir_text(cache_dir: StrPath | None) -> str | None:
    """Returns the directory that a user gave as text; "" stands for none at all."""
    if cache_dir is None or cache_dir == "":
        return cache_dir
    return path_text(cache_dir, "cache directory")


def cache_root(cache_dir: str | None) -> str:
    """Returns the directory of the host's caches, and makes it.

    By default it is `GRISTMILL_CACHE_DIR`, or else one of this user under `TMPDIR`. If
    it cannot be made or belongs to another user, that is a StorageError.
    """
    root = cache_dir or os.environ.get("GRISTMILL_CACHE_DIR")
    own = root is None
    if root is None:
        root = os.path.join(tempfile.gettempdir(), f"gristmill-{os.getuid()}")
    with disk_errors(root):
        os.makedirs(root, mode=0o700 if own else 0o777, exist_ok=True)
        found = os.stat(root, follow_symlinks=not own)
    if own and (found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)):
        raise StorageError(
            "cache directory belongs to another user",
            where=root,
            cure="give a directory of your own as cache_dir or GRISTMILL_CACHE_DIR",
        )
    return root


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turns an OSError of the local disk into a StorageError that says what to do."""
    try:
        yield
    except GristmillError:
        raise
    except OSError as e:
        raise StorageError(
            "cannot keep a file that was fetched",
            where=path,
            got=os.strerror(e.errno) if e.errno else str(e),
            cure="free some space, or give another directory as cache_dir"
            if e.errno in (errno.ENOSPC, errno.EDQUOT)
            else SystemLimitError.CURES.get(
                e.errno or 0, "give another directory as cache_dir"
            ),
        ) from e


@contextlib.contextmanager
def locked(path: str, *, wait: bool = True, shared: bool = False) -> Iterator[bool]:
    """Keeps other processes and threads out. The lock ends with its process.

    A `shared` lock keeps out only those that are not.

    Yields:
        Whether it is locked now; without `wait`, others may have the lock.
    """
    with open_regular(path, "ab") as file:
        try:
            kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
            fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            # To close the file is not enough: a process that was forked meanwhile has
            # the descriptor, too.
            fcntl.flock(file, fcntl.LOCK_UN)


def write_whole(path: str, data: bytes) -> None:
    """Writes a file that gets its name only when it is complete."""
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


class EditionFiles:
    """Paths of local files for the shards of a split, in a directory per edition.

    A directory is named after the content of its edition. So files that were fetched
    before an append are used after it, and for older editions.

    Args:
        root: The parent of the directories.
        split: The split.

    Attributes:
        directories: [editions], the directory of each.
    """

    def __init__(self, root: str, split: Split):
        digests = [part.shards_digest.rpartition(":")[2] for part in split.parts]
        self.directories = [os.path.join(root, digest[:32]) for digest in digests]
        counts = (part.shards for part in split.parts)
        self._firsts = [*itertools.accumulate(counts, initial=0)]

    def path(self, shard: int, suffix: str) -> str:
        """Returns the path of a file, given the number of its shard in the split."""
        edition = bisect.bisect_right(self._firsts, shard) - 1
        number = shard - self._firsts[edition]
        return f"{self.directories[edition]}/{number:08d}{suffix}"


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
