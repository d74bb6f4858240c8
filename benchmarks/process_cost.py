"""The cost of a command: wall time, CPU time and memory of its process tree."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_PR_GET_CHILD_SUBREAPER = 37
_ORPHAN_GRACE_SECONDS = 5.0
_ERROR_LINES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessCost:
    """What one run of a command took.

    Attributes:
      exit_code: of the command; negative where a signal ended it.
      wall_seconds: from its start to its end.
      cpu_seconds: user and system time of it and of all its descendants.
      peak_tree_bytes: largest sum over the tree, at one moment, of each process's
        share of physical memory (PSS: a page that n processes map counts as 1/n).
      peak_process_bytes: largest resident memory (RSS) of any one process.
      timed_out: whether it was killed for running too long.
      output: the end of what it wrote to stdout and stderr.
    """

    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    peak_tree_bytes: int
    peak_process_bytes: int
    timed_out: bool
    output: str


def measure_command(
    command: Sequence[str],
    *,
    timeout_seconds: float = 3600,
    sample_seconds: float = 0.05,
    environment: Mapping[str, str] | None = None,
) -> ProcessCost:
    """Runs a command to its end and measures it and its descendants.

    CPU time is the kernel's account of the processes that ended, so it misses
    nothing between samples; descendants that outlive their parent are adopted,
    given a few seconds, killed, and counted. Memory is sampled: a short peak can be
    missed.

    Args:
      command: program and arguments.
      timeout_seconds: when to kill the tree.
      sample_seconds: least time between two looks at the memory.
      environment: variables on top of this process's.

    Returns:
      The cost, whatever the exit code.
    """
    with _adopting_orphans(), tempfile.TemporaryFile() as output:
        before_ids = {child.pid for child in psutil.Process().children()}
        before = _children_cpu_seconds()
        begin = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
        )
        sampler = _MemorySampler(process.pid, before_ids, sample_seconds)
        sampler.start()
        timed_out = False
        try:
            exit_code = process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill(_descendants(before_ids))
            exit_code = process.wait()
        finally:
            wall_seconds = time.perf_counter() - begin
            sampler.stop()
            _reap_orphans(before_ids, 0 if timed_out else _ORPHAN_GRACE_SECONDS)
        return ProcessCost(
            exit_code=exit_code,
            wall_seconds=wall_seconds,
            cpu_seconds=_children_cpu_seconds() - before,
            peak_tree_bytes=sampler.peak_tree_bytes,
            peak_process_bytes=sampler.peak_process_bytes,
            timed_out=timed_out,
            output=_tail(output.fileno()),
        )


class _MemorySampler(threading.Thread):
    """Samples the memory of a process tree until it is stopped."""

    def __init__(self, root_id: int, before_ids: set[int], sample_seconds: float):
        super().__init__(daemon=True, name=f"memory of {root_id}")
        self._before_ids = before_ids
        self._sample_seconds = sample_seconds
        self._stopped = threading.Event()
        self.peak_tree_bytes = 0
        self.peak_process_bytes = 0

    def run(self) -> None:
        pause_seconds = 0.0
        while not self._stopped.wait(pause_seconds):
            begin = time.perf_counter()
            tree_bytes = 0
            for process in _descendants(self._before_ids):
                # A process may end between being listed and being read.
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    memory = process.memory_full_info()
                    tree_bytes += getattr(memory, "pss", memory.rss)
                    self.peak_process_bytes = max(self.peak_process_bytes, memory.rss)
            self.peak_tree_bytes = max(self.peak_tree_bytes, tree_bytes)
            # The kernel walks all pages and halts the process's page faults as it
            # does: with gigabytes, look less often, lest measuring slow it down.
            took_seconds = time.perf_counter() - begin
            pause_seconds = max(self._sample_seconds, 50 * took_seconds)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def _descendants(before_ids: set[int]) -> list[psutil.Process]:
    """Returns the processes below this one but for those there before the run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = []
        for child in psutil.Process().children():
            if child.pid not in before_ids:
                found.append(child)
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += child.children(recursive=True)
        return found
    return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def _reap_orphans(before_ids: set[int], grace_seconds: float) -> None:
    """Waits for adopted processes, then kills them: only the ended are counted."""
    deadline = time.monotonic() + grace_seconds
    while orphans := _descendants(before_ids):
        if time.monotonic() > deadline:
            _kill(orphans)
        for orphan in orphans:
            # Grandchildren are not ours to wait for until their parent has ended.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)
        time.sleep(0.02)


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process, rather than init, the parent of descendants left behind."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        yield  # Not Linux: what a worker that outlives its parent used is not seen.
        return
    earlier = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(earlier), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, earlier.value, 0, 0, 0)


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tail(descriptor: int) -> str:
    """Returns the last lines of a file."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - 16_384)
    text = os.pread(descriptor, 16_384, start).decode("utf-8", "replace")
    return "\n".join(text.strip().splitlines()[-_ERROR_LINES:])
