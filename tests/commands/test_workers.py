"""Worker processes end, whatever the function has left in them; Ctrl-C is quiet."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gristmill.dataset.base.errors import WorkerDiedError
from gristmill.dataset.base.system import daemon_call
from gristmill.pipelines.local.pool import map_unordered

KILLED = r"[12] of 2 worker processes were killed.* --map function.*No result is lost"


def _forever() -> None:
    threading.Event().wait()


def _leave_thread(number: int) -> int:
    threading.Thread(target=_forever).start()
    return number


def _leave_atexit_function(number: int) -> int:
    atexit.register(_forever)
    return number


def _ignore_the_signal(number: int) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _leave_thread(number)


def _append_at_exit(path: str) -> str:
    def append() -> None:
        with open(path, "a") as file:
            file.write("x")

    atexit.register(append)
    return path


def _leave_fork(path: str) -> str:
    """Leaves a process that holds all descriptors of the worker open."""
    child = os.fork()
    if not child:
        _forever()
    with open(path, "a") as file:
        file.write(f"{child}\n")
    return path


def _leave_fork_and_die(path: str) -> str:
    _leave_fork(path)
    os.kill(os.getpid(), signal.SIGKILL)
    return path


def _exit_early(code: int) -> int:
    os._exit(code)


def _end_by_signal(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture
def pids(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file for the numbers of processes, which are killed in the end."""
    path = tmp_path / "pids"
    path.touch()
    yield path
    for pid in path.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function",
    [
        _leave_thread,
        _leave_atexit_function,
        pytest.param(_ignore_the_signal, marks=pytest.mark.slow),
    ],
)
def test_workers_that_do_not_end_are_killed_and_it_is_said(
    caplog: pytest.LogCaptureFixture, function
) -> None:
    def results() -> list[int]:
        found = map_unordered(function, range(8), workers=2, patience_seconds=0.1)
        return sorted(found)

    with caplog.at_level(logging.WARNING):
        assert daemon_call(results, thread_name="map").result(60) == list(range(8))
    assert re.search(KILLED, caplog.text)


@pytest.mark.slow
def test_what_workers_do_at_exit_is_done(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "exits"
    done = map_unordered(
        _append_at_exit, [str(path)] * 4, workers=2, patience_seconds=60
    )
    assert len(list(done)) == 4
    assert path.read_text() == "xxxx"
    assert not caplog.text


@pytest.mark.slow
def test_a_forked_process_keeps_no_worker(
    pids: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = map_unordered(_leave_fork, [str(pids)] * 2, workers=2, patience_seconds=60)
    assert daemon_call(lambda: list(found), thread_name="map").result(50)
    assert not caplog.text


@pytest.mark.slow
def test_the_death_of_a_worker_is_seen_through_a_forked_process(
    pids: pathlib.Path,
) -> None:
    found = map_unordered(_leave_fork_and_die, [str(pids)] * 2, workers=2)
    call = daemon_call(lambda: list(found), thread_name="map")
    with pytest.raises(WorkerDiedError, match="was killed"):
        call.result(60)


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 3])
def test_a_worker_that_exits_early_is_named_with_its_code(code: int) -> None:
    with pytest.raises(
        WorkerDiedError, match=rf"process \d+ exited with code {code}\n.*os\._exit"
    ):
        list(map_unordered(_exit_early, [code], workers=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGKILL, r"process \d+ was killed, most often .* memory"),
        (signal.SIGSEGV, r"process \d+ was ended by a signal: Segmentation fault"),
    ],
)
def test_a_worker_that_a_signal_ends_is_named_with_it(number: int, text: str) -> None:
    with pytest.raises(WorkerDiedError, match=text):
        list(map_unordered(_end_by_signal, [number], workers=2))


_IMPORTING = """
import os, sys
from gristmill.pipelines.local.pool import map_unordered
import slow

if __name__ == "__main__":
    os.environ["MARKERS"] = sys.argv[1]
    try:
        list(map_unordered(slow.work, range(9), workers=2))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
"""

_SLOW = """
import os, pathlib, time

if "MARKERS" in os.environ:
    pathlib.Path(os.environ["MARKERS"], str(os.getpid())).touch()
    time.sleep(600)

def work(number):
    return number
"""


def test_ctrl_c_while_workers_import_is_quiet(tmp_path: pathlib.Path) -> None:
    (tmp_path / "main.py").write_text(_IMPORTING)
    (tmp_path / "slow.py").write_text(_SLOW)
    markers = tmp_path / "markers"
    markers.mkdir()
    with (tmp_path / "stderr").open("w+") as stderr:
        parent = subprocess.Popen(
            [sys.executable, str(tmp_path / "main.py"), str(markers)],
            stderr=stderr,
            start_new_session=True,
        )
        try:
            while len(workers := os.listdir(markers)) < 2:
                assert parent.poll() is None
                time.sleep(0.05)
            os.killpg(parent.pid, signal.SIGINT)  # As a terminal does.
            parent.wait(60)
            # Those that are gone can say nothing any more.
            assert not [pid for pid in workers if os.path.exists(f"/proc/{pid}")]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
        stderr.seek(0)
        assert stderr.read() == "interrupted\n"
