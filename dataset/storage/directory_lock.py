"""Exclusion between writers of one local directory, which ends with its process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from gristmill.dataset.errors import StorageError

WAIT_SECONDS = 120.0  # Others hold the lock for milliseconds, unless they are stopped.
_LONGEST_PAUSE_SECONDS = 0.05
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK, errno.EBADF}


@contextlib.contextmanager
def locked(directory: str, *, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Keeps other threads and processes out that lock the same directory.

    The directory itself is locked (`flock`): no lock file is left behind, and the
    system unlocks it when the process dies. Readers need no lock.

    Whether it keeps processes on other machines out depends on the file system. NFS
    and most others do not pass locks of directories on. Where directories cannot be
    locked at all, nobody is kept out.

    Args:
        directory: It must exist.
        wait_seconds: How long to wait for the lock.

    Raises:
        StorageError: Another process held the lock all that time.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, directory, wait_seconds)
        try:
            yield
        finally:
            # To close it is not enough: a process that was forked meanwhile has the
            # descriptor, too.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: str, wait_seconds: float) -> None:
    deadline = time.monotonic() + wait_seconds
    pause_seconds = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            if time.monotonic() >= deadline:
                raise StorageError(
                    "another process keeps the directory locked",
                    where=directory,
                    expected=f"the lock within {wait_seconds:,.0f} seconds",
                    got="a process that is stopped, or waits for its disk",
                    cure="let it go on or end it (`lslocks` names it), then run the "
                    "same command again: finished shards are kept",
                ) from e
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
        except OSError as e:
            if e.errno not in _NO_LOCKS:
                raise
            return
        else:
            return
