"""Locks of directories and unfinished files, and scratch directories with one.

The directory or file itself is locked (`flock`), and the system unlocks it when the
process dies. Readers need no lock.

Whether processes on other machines are kept out depends on the file system. NFS and
most others do not forward locks of directories. If directories cannot be locked at all,
nobody is kept out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.base import explained, is_unfinished
from gristmill.dataset.storage.paths import is_remote

WAIT_SECONDS = 120.0  # Others hold the lock for milliseconds, unless they are paused.
_LONGEST_PAUSE_SECONDS = 0.05
_NO_LOCKS = {
    *(errno.ENOSYS, errno.EINVAL, errno.ENOLCK, errno.EBADF),
    *(errno.EOPNOTSUPP, errno.ENOTSUP),  # One number on Linux, two on macOS.
}


@contextlib.contextmanager
def locked(directory: str, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Keeps out other threads and processes that lock the same directory.

    Args:
        directory: It must exist.
        wait_seconds: How long to wait for the lock.

    Raises:
        StorageError: Another process held the lock all that time.
    """
    with _opened(directory) as descriptor:
        _lock(descriptor, directory, fcntl.LOCK_EX, wait_seconds)
        yield


@contextlib.contextmanager
def in_use(directory: str) -> Iterator[None]:
    """Creates a directory if needed, and keeps it from being deleted.

    Any number of threads and processes can use it. None of them may wait for `locked`.
    """
    with contextlib.ExitStack() as stack:
        while True:
            with contextlib.suppress(FileNotFoundError):
                _make(directory)
                descriptor = stack.enter_context(_opened(directory))
                _lock(descriptor, directory, fcntl.LOCK_SH, WAIT_SECONDS)
                # It may have been deleted before it was locked.
                if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
                    break
            stack.close()
        yield


@contextlib.contextmanager
def unless_in_use(directory: str) -> Iterator[bool]:
    """Yields whether a directory is unused on this machine, and keeps it so.

    Raises FileNotFoundError if the directory does not exist.
    """
    with _opened(directory) as descriptor:
        yield _lock(descriptor, directory, fcntl.LOCK_EX, None)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[bool]:
    """Creates an empty file and keeps `delete_unused` from deleting it.

    Yields whether it exists: another process may have deleted it before the lock.
    """
    with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
        _lock(descriptor, path, fcntl.LOCK_SH, WAIT_SECONDS)
        yield os.fstat(descriptor).st_nlink > 0


def delete_unused(path: str) -> None:
    """Deletes a file unless a process uses it through `new_file`.

    Raises FileNotFoundError if the file does not exist.
    """
    # NFS gives exclusive locks only to those who may write.
    with _opened(path, os.O_RDWR | os.O_NONBLOCK) as descriptor:
        if _lock(descriptor, path, fcntl.LOCK_EX, None):
            os.unlink(path)


def _make(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        # It may be a directory that has been deleted since.
        if os.path.lexists(directory) and not os.path.isdir(directory):
            raise


@contextlib.contextmanager
def _opened(path: str, flags: int = os.O_RDONLY | os.O_DIRECTORY) -> Iterator[int]:
    """Opens a directory or a file, and unlocks it at the end."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        # Closing is not enough: a process forked meanwhile has the descriptor, too.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(
    descriptor: int, path: str, operation: int, wait_seconds: float | None
) -> bool:
    """Waits for a lock, or returns False if there is no time to wait."""
    started = time.monotonic()
    pause_seconds = 0.001
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError as e:
            if wait_seconds is None:
                return False
            if time.monotonic() - started >= wait_seconds:
                raise StorageError(
                    "another process keeps the directory locked",
                    where=path,
                    expected=f"the lock within {wait_seconds:,.0f} seconds",
                    got="a process that is stopped, or waits for its disk",
                    cure="let it continue or end it (`lslocks` names it), then run the "
                    "same command again: finished shards are kept",
                ) from e
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        except OSError as e:
            if e.errno not in _NO_LOCKS:
                raise
            return True
        else:
            return True


_PREFIX = "gristmill-scratch-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[str]:
    """Creates a temporary directory, and deletes it at the end.

    The first call in a process also deletes those that killed processes left. No file
    in it may be written through a `Storage`, which would wait for the directory's lock.
    """
    root = tempfile.gettempdir()
    _delete_abandoned(os.getpid(), root)
    directory = tempfile.mkdtemp(prefix=_PREFIX, dir=root)
    try:
        with in_use(directory):
            yield directory
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(directory)


@functools.lru_cache(maxsize=1)
def _delete_abandoned(process: int, root: str) -> None:
    with os.scandir(root) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in names:
        # Directories of other users, or deleted by another process just now.
        with contextlib.suppress(OSError):
            _delete_unless_in_use(path)


def _delete_unless_in_use(directory: str) -> None:
    """Deletes a directory; raises OSError if it is or may be in use."""
    if os.lstat(directory).st_uid != os.geteuid():
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory, flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def delete_unfinished(directory: str) -> None:
    """Deletes the files that killed `write`s left directly in a directory.

    A `write` of a live process still succeeds.
    """
    if is_remote(directory):
        return
    with (
        explained("delete unfinished files", directory),
        contextlib.suppress(FileNotFoundError),
    ):
        for name in os.listdir(directory):
            if is_unfinished(name):
                with contextlib.suppress(FileNotFoundError):
                    delete_unused(os.path.join(directory, name))


def is_in_use(directory: str) -> bool:
    """Returns whether a process of this machine has `temporary` files there."""
    if is_remote(directory):
        return False
    with explained("look into the directory", directory):
        try:
            with unless_in_use(directory) as free:
                return not free
        except (FileNotFoundError, NotADirectoryError):
            return False


def delete_tree(directory: str) -> None:
    """Deletes a directory with all its files, unless it `is_in_use`."""
    if is_remote(directory):
        return
    with (
        explained("delete the directory", directory),
        contextlib.suppress(FileNotFoundError),
        unless_in_use(directory) as free,
    ):
        if free and not os.path.islink(directory):
            shutil.rmtree(directory)
