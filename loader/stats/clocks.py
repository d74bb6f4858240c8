"""Clocks of a thread: elapsed time, work, and waiting for a processor.

Waiting for a processor is not waiting for storage: on a busy host a thread that could
run does not.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gristmill.dataset.base.system_limits import usable_cores

_CPU_LIMIT = "/sys/fs/cgroup/cpu.max"


class ThreadTimes(NamedTuple):
    """Times of a thread, in seconds, each with its own zero.

    Attributes:
        passed: Elapsed time.
        cpu: Processor time of the thread.
        queued: Time in which the thread was ready to run, but no processor was free or
            its container was throttled. 0 if the system does not tell.
    """

    passed: float
    cpu: float
    queued: float

    def since(self, before: ThreadTimes) -> ThreadTimes:
        """Returns the times since `before`."""
        return ThreadTimes(
            self[0] - before[0], self[1] - before[1], self[2] - before[2]
        )


class _Counts:
    """The system's counts of one thread, kept open, as opening takes longest."""

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def queued_seconds(self) -> float:
        """Returns how long the thread has waited for a processor; 0 if not known."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A parameter, as module names are gone when the interpreter ends.
        if self._file >= 0:
            close(self._file)


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.counts = _Counts()

    def start_again(self) -> None:
        self.counts = _Counts()


_thread = _ThisThread()
# A forked process would read the counts of its parent.
os.register_at_fork(after_in_child=_thread.start_again)


def thread_times() -> ThreadTimes:
    """Returns the times of this thread."""
    queued = _thread.counts.queued_seconds()
    return ThreadTimes(time.perf_counter(), time.thread_time(), queued)


def usable_processors() -> int:
    """Returns how many processors this process may use at a time.

    The ones that it may run on, but at most a container's limit, rounded up.
    """
    processors = usable_cores()
    try:
        with open(_CPU_LIMIT, encoding="ascii") as file:
            quota, period = file.read().split()
        return max(1, min(processors, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # No limit is "max".
        return processors
