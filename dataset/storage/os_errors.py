"""Errors of the operating system as `StorageError`: what failed, and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from gristmill.dataset.errors import GristmillError, StorageError


@contextlib.contextmanager
def explained(action: str, path: str) -> Iterator[None]:
    """Turns an OSError into a `StorageError`.

    Args:
        action: What is tried, as in "cannot ...".
        path: The file or directory.
    """
    try:
        yield
    except GristmillError:
        raise
    except OSError as e:
        cures = {
            errno.ENOSPC: "free some space, then run the same command again: "
            "finished shards are kept",
            errno.EDQUOT: "raise the quota, then run the same command again",
            errno.EACCES: "check the permissions of the file and its directories",
            errno.EPERM: "check the permissions of the file and its directories",
            errno.EROFS: "choose a place that is not mounted read-only",
            errno.ENOENT: "check the path",
            errno.ENOTDIR: "check the path: a part of it is a file",
        }
        raise StorageError(
            f"cannot {action}",
            where=path,
            got=os.strerror(e.errno) if e.errno else str(e),
            cure=cures.get(e.errno or 0),
        ) from e
