"""The cost of a command: wall time, CPU time and memory of its process tree."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_ORPHAN_GRACE_SECONDS = 5.0
_SAMPLE_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of a command took.

    Attributes:
        exit_code: Of the command; negative where a signal ended it.
        wall_seconds: From its start to its end.
        cpu_seconds: User and system time of it and of all its descendants.
        peak_bytes: Largest sum over the tree, at one moment, of each process's share of
            physical memory (PSS: a page that n processes map counts as 1/n).
        stdout: What it printed.
        stderr: What it printed to standard error.
    """

    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int
    stdout: str
    stderr: str


def measure_command(
    command: Sequence[str],
    *,
    timeout_seconds: float = 3600,
    variables: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Cost:
    """Runs a command to its end and measures it and its descendants.

    CPU time is the kernel's account of the processes that ended. Descendants that
    outlive their parent are adopted, given a few seconds, killed, and counted. Memory
    is sampled: a short peak can be missed.

    Args:
        command: Program and arguments.
        timeout_seconds: When the tree is killed.
        variables: Added to the environment of this process.
        directory: Where it runs; this process's own by default.
    """
    before = {child.pid for child in psutil.Process().children()}
    with (
        _adopting_orphans(),
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        cpu, begin = _children_cpu_seconds(), time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(variables or {})},
            cwd=directory,
        )
        with _sampled_memory(before) as peak_bytes:
            grace = _ORPHAN_GRACE_SECONDS
            try:
                process.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                grace = 0.0
                _kill(_descendants(before))
                process.wait()
            wall = time.perf_counter() - begin
        _reap_orphans(before, grace)
        for file in (out, err):
            file.seek(0)
        return Cost(
            exit_code=process.returncode,
            wall_seconds=wall,
            cpu_seconds=_children_cpu_seconds() - cpu,
            peak_bytes=peak_bytes[0],
            stdout=out.read(),
            stderr=err.read(),
        )


@contextlib.contextmanager
def _sampled_memory(before: set[int]) -> Iterator[list[int]]:
    """Gives a list with the largest memory so far of this process's new descendants."""
    peak, stopped = [0], threading.Event()

    def sample() -> None:
        pause = 0.0
        while not stopped.wait(pause):
            begin, tree = time.perf_counter(), 0
            for process in _descendants(before):
                # A process may end between being listed and being read.
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    memory = process.memory_full_info()
                    tree += getattr(memory, "pss", memory.rss)
            peak[0] = max(peak[0], tree)
            # The kernel walks all pages meanwhile: with gigabytes, look less often.
            pause = max(_SAMPLE_SECONDS, 50 * (time.perf_counter() - begin))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        stopped.set()
        sampler.join()


def _descendants(before: set[int]) -> list[psutil.Process]:
    """Returns the processes below this one but for those there before the run."""
    with contextlib.suppress(psutil.NoSuchProcess):
        found = []
        for child in psutil.Process().children():
            if child.pid not in before:
                found.append(child)
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += child.children(recursive=True)
        return found
    return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _reap_orphans(before: set[int], grace_seconds: float) -> None:
    """Waits for adopted processes, then kills them: only the ended are counted."""
    deadline = time.monotonic() + grace_seconds
    while orphans := _descendants(before):
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
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
