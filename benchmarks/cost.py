"""The cost of processes: wall time, CPU time and memory, as Linux counts them.

Environments of peers, which lack gristmill, import this.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile
import time

_PR_SET_CHILD_SUBREAPER = 36  # <sys/prctl.h>
_ORPHAN_GRACE_SECONDS = 5.0
_SAMPLE_SECONDS = 0.05
_ERROR_LINES = 12


def run_measured(command, *, timeout_seconds=3600, variables=None, directory=None):
    """Runs a command to its end and measures it and its descendants.

    CPU time is the kernel's account of the processes that ended. Descendants that
    outlive their parent are adopted, given a few seconds, killed, and counted. Memory
    is the largest sum over the tree, at one moment, of each process's share of physical
    memory (PSS: a page that n processes map counts as 1/n): a short peak can be missed.

    Args:
        command: Program and arguments.
        timeout_seconds: When the tree is killed.
        variables: Added to the environment of this process.
        directory: Where it runs; this process's own by default.

    Returns:
        `cpu_seconds`, `wall_seconds` and `peak_bytes`, but for what the command says
        itself, in the last line that it prints as JSON.

    Raises:
        RuntimeError: Its exit code is not 0.
    """
    before = {*below(os.getpid())}
    _adopt_orphans()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        cpu, begin = _ended_cpu_seconds(), time.perf_counter()
        process = subprocess.Popen(
            [*map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **(variables or {})},
            cwd=directory,
        )
        peak, pause, until = 0, 0.0, begin + timeout_seconds
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
                break
            if time.perf_counter() > until:
                kill_below(before)
            sampled = time.perf_counter()
            peak = max(peak, sum(map(_memory_bytes, below(os.getpid(), before))))
            # The kernel walks all pages meanwhile: with gigabytes, look less often.
            pause = max(_SAMPLE_SECONDS, 50 * (time.perf_counter() - sampled))
        end = time.perf_counter()
        _reap_orphans(before, min(end + _ORPHAN_GRACE_SECONDS, until))
        out.seek(0)
        err.seek(0)
        printed, errors = out.read(), err.read()
    if process.returncode:
        lines = (printed + errors).strip().splitlines()[-_ERROR_LINES:]
        raise RuntimeError("\n".join([f"exit code {process.returncode}", *lines]))
    said = [line for line in printed.splitlines() if line.startswith("{")]
    return {
        "cpu_seconds": _ended_cpu_seconds() - cpu,
        "wall_seconds": end - begin,
        "peak_bytes": peak,
        **(json.loads(said[-1]) if said else {}),
    }


def timed(work):
    """Returns the result of `work`, with the CPU and wall seconds of this tree."""
    cpu, begin = tree_cpu_seconds(), time.perf_counter()
    done = work()
    wall = time.perf_counter() - begin
    cpu = tree_cpu_seconds() - cpu
    return {"work": done, "cpu_seconds": cpu, "wall_seconds": wall}


def steadily(step, *, warm, seconds):
    """Measures a program that goes on and on; its memory does not count.

    Args:
        step: Does some work, and returns how much.
        warm: Work to do before it counts: what was read ahead, at least.
        seconds: How long it counts.
    """

    def go_on():
        done, until = 0.0, time.perf_counter() + seconds
        while not done or time.perf_counter() < until:
            done += step()
        return done

    while warm > 0:
        warm -= step()
    return {**timed(go_on), "peak_bytes": None}


def below(process, but=()):
    """Yields the processes below one."""
    for children in pathlib.Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # Threads and processes end meanwhile.
            for child in map(int, children.read_text().split()):
                if child not in but:
                    yield child
                    yield from below(child)


def tree_cpu_seconds():
    """Returns the CPU time so far of this process and of all below it."""
    ticks = 0
    for process in below(os.getpid()):
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/{process}/stat").read_text()
            # User and system time of its own, and of children that have ended.
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    still = ticks / os.sysconf("SC_CLK_TCK")
    return time.process_time() + _ended_cpu_seconds() + still


def kill_below(but=()):
    """Kills all processes below this one."""
    for process in [*below(os.getpid(), but)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _memory_bytes(process):
    with contextlib.suppress(OSError):
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
        return 1024 * sum(map(int, re.findall(r"^Pss: +(\d+)", text, re.MULTILINE)))
    return 0


def _reap_orphans(before, until):
    """Waits for adopted processes, then kills them: only the ended are counted."""
    while orphans := [*below(os.getpid(), before)]:
        if time.perf_counter() > until:
            kill_below(before)
        for orphan in orphans:
            # Grandchildren are not ours to wait for until their parent has ended.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
        time.sleep(0.02)


def _adopt_orphans():
    """Makes this process, rather than init, the parent of descendants left behind."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _ended_cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
