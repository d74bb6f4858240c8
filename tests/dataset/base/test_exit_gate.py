"""The end of the interpreter, with threads in the middle of calls."""

import subprocess
import sys
import time

import pytest

BEGIN = """
import atexit, threading, time
from gristmill.dataset.base.exit_gate import exit_gate
def say(text):
    print(text, flush=True)
def in_thread(work):
    threading.Thread(target=work, daemon=True).start()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + code],
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_end_waits_for_threads_inside_and_lets_nobody_in() -> None:
    done = run(
        """
inside = threading.Event()
def first():
    with exit_gate:
        inside.set()
        wait_until_closed()
        time.sleep(0.1)
        say("first")
def second():
    wait_until_closed()
    with exit_gate:
        say("second")
def wait_until_closed():
    while not exit_gate._closed:
        time.sleep(0.001)
in_thread(first)
in_thread(second)
inside.wait()
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "first\n", "")


def test_what_never_comes_out_does_not_hold_up_the_end_for_long() -> None:
    code = """
from gristmill.dataset.base.exit_gate import ExitGate
exit_gate = ExitGate(patience_seconds=0.2)
inside = threading.Event()
def work():
    with exit_gate:
        inside.set()
        time.sleep(100)
in_thread(work)
inside.wait()
"""
    begin = time.monotonic()
    done = run(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begin < 60


def test_the_main_thread_is_told() -> None:
    done = run(
        """
exit_gate._close()
with exit_gate:
    say("in")
"""
    )
    assert done.returncode == 1
    assert (
        "StorageError: cannot read any more: the interpreter is ending" in done.stderr
    )


@pytest.mark.parametrize("error", ["", "raise ValueError('an error')"])
def test_an_error_leaves_the_gate(error: str) -> None:
    done = run(
        f"""
begin = time.monotonic()
def end():
    say("quick" if time.monotonic() - begin < 3 else "slow")
try:
    with exit_gate:
        pass
        {error}
except ValueError as e:
    say(e)
begin = time.monotonic()
exit_gate._close()
end()
"""
    )
    assert done.stdout == ("an error\n" if error else "") + "quick\n", done.stderr


def test_a_thread_that_asked_is_never_unwound_by_the_library() -> None:
    """Many threads begin reads while the interpreter ends."""
    code = """
import tensorstore
store = tensorstore.KvStore.open({"driver": "memory"}).result()
store["a"] = b"1"
def work():
    while True:
        with exit_gate:
            store.read("a").add_done_callback(lambda future: None)
for _ in range(8):
    in_thread(work)
time.sleep(0.05)
"""
    for _ in range(3):
        done = run(code)
        assert (done.returncode, done.stderr) == (0, "")
