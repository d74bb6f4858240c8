"""Files that processes of one host share: their places, locks and whole writes."""

from __future__ import annotations

import bisect
import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence

from gristmill.dataset.base.errors import (
    GristmillError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.storage.open_file import open_regular
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
def locked(path: str, *, wait: bool = True) -> Iterator[bool]:
    """Keeps other processes and threads out. The lock ends with its process.

    Yields:
        Whether it is locked now; without `wait`, others may have the lock.
    """
    with open_regular(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
    """Places of files of the shards of a split, in a directory for each edition.

    A directory is named after the content of its edition. So what was fetched before
    records were appended is used after it, and by who opens an older edition.

    Args:
        root: The directory that has those of the editions.
        keys: The name of each, which differs between editions of different content.
        shards: [editions], how many shards each edition has.

    Attributes:
        directories: [editions], the directory of each.
    """

    def __init__(self, root: str, *, keys: Sequence[str], shards: Sequence[int]):
        self.directories = [os.path.join(root, key) for key in keys]
        ends = list(itertools.accumulate(shards, initial=0))
        self._firsts = ends[: len(self.directories)]

    def path(self, shard: int, suffix: str) -> str:
        """Returns the place of a file, given the number of its shard in the split."""
        edition = bisect.bisect_right(self._firsts, shard) - 1
        number = shard - self._firsts[edition]
        return f"{self.directories[edition]}/{number:08d}{suffix}"
