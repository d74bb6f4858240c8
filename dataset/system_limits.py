"""What the system refuses to a process, as errors that say which limit to raise."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

from gristmill.dataset.errors import GristmillError, SystemLimitError

_DESCRIPTORS = "/proc/self/fd"


def check_files(count: int, *, what: str) -> None:
    """Raises SystemLimitError if the process may not open so many more files.

    The usual soft limit of 1,024 is meant for programs that use select(): it is raised
    as far as needed and allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir(_DESCRIPTORS))
    except OSError as e:
        used = soft if e.errno == errno.EMFILE else 0
    needed = used + count
    if soft != resource.RLIM_INFINITY and needed > soft:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # Then it stays as it is.
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if needed > soft:
            raise SystemLimitError(
                "the system allows too few open files",
                expected=f"{count} more, for {what}",
                got=f"{used} are open, of {soft}",
                cure=SystemLimitError.CURES[errno.EMFILE],
            )


@contextlib.contextmanager
def limits_named() -> Iterator[None]:
    """Turns errors of limits of the system into `SystemLimitError`s."""
    try:
        yield
    except GristmillError:
        raise
    except Exception as e:
        error = SystemLimitError.of(e)
        if error is None:
            raise
        raise error from e
