"""Directories under `TMPDIR` that the next process deletes if this one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator

from gristmill.dataset.storage.directory_lock import in_use

_PREFIX = "gristmill-shard-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[str]:
    """Creates a directory for one large file, and deletes it at the end.

    The first call in a process also deletes those that killed processes left.
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
    """Deletes a directory; raises OSError if it is, or may be, in use."""
    if os.lstat(directory).st_uid != os.geteuid():
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(directory, flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)
    finally:
        os.close(descriptor)
