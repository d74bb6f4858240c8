"""A command's process ends with the command, whatever is left in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.waiting import until

_START = """
import atexit, multiprocessing, os, sys, threading
from gristmill.pipelines.commands.command import ending_in_time

def forever():
    threading.Event().wait()

def end():
    sys.exit(int(sys.argv[1]))

with ending_in_time(patience_seconds=float(sys.argv[2])):
    print("result")
"""
THREAD = "threading.Thread(target=forever, name='theirs').start()"


def command(*lines: str, code: int = 0, patience: float = 0.1) -> list[str]:
    """Returns a process with lines as the body of a command."""
    script = _START + "".join(f"    {line}\n" for line in lines)
    return [sys.executable, "-u", "-c", script, str(code), str(patience)]


def ended(*lines: str, **how: float) -> tuple[int, str, str]:
    """Runs lines as the body of a command; returns its exit code and outputs."""
    given = command(*lines, **how)
    done = subprocess.run(given, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    ("left", "name"),
    [
        (THREAD, "the thread theirs"),
        ("atexit.register(forever)", "an atexit function"),
        (
            "import concurrent.futures as c; c.ThreadPoolExecutor(1).submit(forever)",
            "the thread ThreadPoolExecutor-",
        ),
    ],
)
def test_what_is_left_keeps_no_process(left: str, name: str, code: int) -> None:
    got, out, err = ended(left, "end()", code=code)
    assert (got, out) == (code, "result\n")
    assert err.startswith("note: the command is done; its process was ended, as ")
    assert name in err


def test_a_child_process_keeps_no_process() -> None:
    child = "child = multiprocessing.get_context('fork').Process(target=forever)"
    close = "os.close(2)"  # Which the child holds, too.
    given = command(child, "child.start()", "print(child.pid)", close, "end()")
    process = subprocess.Popen(given, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    pid = int(process.stdout.readline())
    try:
        assert process.wait(60) == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_errors_end_the_process_too() -> None:
    code, _, err = ended(THREAD, "raise ValueError('odd')")
    assert code == 1
    assert "ValueError: odd" in err
    assert "the thread theirs" in err


@pytest.mark.parametrize("status", [0, 3])
def test_an_early_exit_is_an_error(status: int) -> None:
    code, out, err = ended(f"os._exit({status})")
    assert (code, out) == (1, "result\n")
    assert err.startswith(f"error: os._exit({status}) was called before")
    # In a process of its own it is nobody else's concern.
    fork = "os.fork() or os._exit(3)"
    wait = "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    assert ended(fork, wait, "end()", patience=60) == (0, "result\n3\n", "")


def test_ctrl_c_ends_the_wait() -> None:
    given = command(THREAD, "end()", patience=600)
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True)

    def waits() -> bool:
        # Before the wait it would be an error; there is nothing to see of its begin.
        with open(f"/proc/{process.pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[17]) == 3

    until(waits)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
