"""The cost of a command: wall time, CPU time and memory of its process tree."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

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
    outlive their parent are adopted, given a few seconds, killed, and counted; but for
    Linux they are not seen. Memory is sampled: a short peak can be missed.

    Args:
        command: Program and arguments.
        timeout_seconds: When the tree is killed.
        variables: Added to the environment of this process.
        directory: Where it runs; this process's own by default.
    """
    before = {child.pid for child in psutil.Process().children()}
    _adopt_orphans(True)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        cpu, begin = _children_cpu_seconds(), time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(variables or {})},
            cwd=directory,
        )
        peak, pause, until = 0, 0.0, begin + timeout_seconds
        while _still_runs(process, pause):
            if time.perf_counter() > until:
                _kill(before)
            sampled = time.perf_counter()
            peak = max(peak, _memory_bytes(before))
            # The kernel walks all pages meanwhile: with gigabytes, look less often.
            pause = max(_SAMPLE_SECONDS, 50 * (time.perf_counter() - sampled))
            pause = max(0, min(pause, until - time.perf_counter()))
        end = time.perf_counter()
        _reap_orphans(before, min(end + _ORPHAN_GRACE_SECONDS, until))
        _adopt_orphans(False)
        for file in (out, err):
            file.seek(0)
        return Cost(
            exit_code=process.returncode,
            wall_seconds=end - begin,
            cpu_seconds=_children_cpu_seconds() - cpu,
            peak_bytes=peak,
            stdout=out.read(),
            stderr=err.read(),
        )


def _still_runs(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is None


def _descendants(before: set[int]) -> list[psutil.Process]:
    """Returns the processes below this one but for those there before the run."""
    found = []
    for child in psutil.Process().children():
        if child.pid not in before:
            found.append(child)
            with contextlib.suppress(psutil.NoSuchProcess):
                found += child.children(recursive=True)
    return found


def _memory_bytes(before: set[int]) -> int:
    """Returns the memory of this process's new descendants."""
    tree = 0
    for process in _descendants(before):
        # A process may end between being listed and being read.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            memory = process.memory_full_info()
            tree += getattr(memory, "pss", memory.rss)
    return tree


def _kill(before: set[int]) -> None:
    for process in _descendants(before):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _reap_orphans(before: set[int], until: float) -> None:
    """Waits for adopted processes, then kills them: only the ended are counted."""
    while orphans := _descendants(before):
        if time.perf_counter() > until:
            _kill(before)
        for orphan in orphans:
            # Grandchildren are not ours to wait for until their parent has ended.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan.pid, os.WNOHANG)
        time.sleep(0.02)


def _adopt_orphans(adopts: bool) -> None:
    """Makes this process, rather than init, the parent of descendants left behind."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
