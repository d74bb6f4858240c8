"""Cores, open files and threads that the system gives, and errors of its limits."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from gristmill.dataset.base.errors import GristmillError, SystemLimitError

_DESCRIPTORS = "/dev/fd"  # Linux and macOS have it.


def usable_cores() -> int:
    """Returns the number of cores that this process may use.

    All cores of the machine where the system does not limit processes to some.
    """
    if sys.platform == "linux" and hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def allowed_files(needed: int) -> int:
    """Returns how many files the process may open, or `needed` if it has no limit.

    The usual soft limit of 1,024 is meant for programs that use select(): it is raised
    as far as needed and allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return needed
    if needed > soft:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # The limit stays as it is then.
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def check_files(count: int, *, what: str) -> None:
    """Raises SystemLimitError if the process may not open `count` more files."""
    try:
        used = len(os.listdir(_DESCRIPTORS))
    except OSError as e:
        used = allowed_files(0) if e.errno == errno.EMFILE else 0
    if used + count > (allowed := allowed_files(used + count)):
        raise SystemLimitError(
            "the system allows too few open files",
            expected=f"{count} more, for {what}",
            got=f"{used} are open, of {allowed}",
            cure=SystemLimitError.CURES[errno.EMFILE],
        )


@contextlib.contextmanager
def limits_named() -> Iterator[None]:
    """Turns errors from system limits into `SystemLimitError`s."""
    try:
        yield
    except GristmillError:
        raise
    except Exception as e:
        error = SystemLimitError.of(e) or _while_importing(e)
        if error is None:
            raise
        raise error from e


def _while_importing(error: Exception) -> SystemLimitError | None:
    """Returns the error for a library that did not load where memory is limited.

    Libraries then fail in many ways, some without a mention of memory.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or isinstance(error, ModuleNotFoundError):
        return None
    running = {frame.name for frame in traceback.extract_tb(error.__traceback__)}
    if not isinstance(error, ImportError) and "<module>" not in running:
        return None
    return SystemLimitError(
        "a library cannot be loaded where memory is limited",
        got=f"{type(error).__name__}: {error}, with at most {limit >> 10:,} KiB",
        cure="allow the process more memory, with `ulimit -v`",
    )


T = TypeVar("T")


def daemon_call(call: Callable[[], T], *, thread_name: str) -> Future[T]:
    """Calls a function in a daemon thread of its own; returns its result or error."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as e:
            future.set_exception(e)

    threading.Thread(target=run, name=thread_name, daemon=True).start()
    return future
