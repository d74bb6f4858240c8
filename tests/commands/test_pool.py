"""The pool of local processes: results, errors, deaths, and its end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.dataset.base.errors import InputError, WorkerDiedError
from gristmill.dataset.base.system import daemon_call
from gristmill.pipelines.local.pool import call_apart, map_unordered
from tests.support.started import started
from tests.support.waiting import until


def _square(number: int) -> int:
    return number * number


def _touch_or_fail(path: str) -> str:
    if path.endswith("fails"):
        raise InputError("no good", where=path)
    time.sleep(0.5)
    pathlib.Path(path).touch()
    return path


class _Unspeakable:
    def __reduce__(self) -> object:
        raise TypeError("not to be sent")

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


def _unspeakable(number: int) -> object:
    return _Unspeakable() if number == 3 else number


_two = threading.Barrier(2)  # Of each process.


def _meet(_: int) -> int:
    """Returns once another call runs in the same process."""
    _two.wait(60)
    return os.getpid()


def _spin(seconds: float) -> int:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


def _end_by_signal(number: int) -> None:
    os.kill(os.getpid(), number)


def _leave_thread(_: object = None) -> int:
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


def _leave_atexit_function(_: object) -> None:
    atexit.register(threading.Event().wait)


def _ignore_the_signal(_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _leave_thread()


def _append_at_exit(path: str) -> None:
    def append() -> None:
        with open(path, "a") as file:
            file.write("x")

    atexit.register(append)


def _leave_fork(path: str) -> str:
    """Leaves a process that holds all descriptors of the worker open."""
    child = os.fork()
    if not child:
        threading.Event().wait()
    with open(path, "a") as file:
        file.write(f"{child}\n")
    return path


def _leave_fork_and_die(path: str) -> None:
    _leave_fork(path)
    _end_by_signal(signal.SIGKILL)


def results(function: Any, items: Any, **how: Any) -> list[Any]:
    """Returns the results of a pool; a hang is an error."""

    def found() -> list[Any]:
        return list(map_unordered(function, items, **{"workers": 2, **how}))

    return daemon_call(found, thread_name="map").result(60)


@pytest.mark.slow
def test_a_call_in_a_process_of_its_own(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    assert call_apart(functools.partial(_square, 7)) == 49
    with pytest.raises(InputError, match="no good"):
        call_apart(functools.partial(_touch_or_fail, str(tmp_path / "fails")))
    with pytest.raises(WorkerDiedError):
        call_apart(functools.partial(_end_by_signal, signal.SIGKILL))
    pid = call_apart(_leave_thread)
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_item_once(workers: int, threads: int, count: int):
    with started() as own:
        found = map_unordered(_square, range(count), workers=workers, threads=threads)
        assert sorted(found) == [n * n for n in range(count)]
        own.wait_until_ended()


def test_little_work_is_done_before_processes_start():
    with started() as own:
        pids = results(_spin, [0.05, 0.1], alone_seconds=0.1)
        assert pids == [os.getpid()] * 2
        assert results(_square, [], alone_seconds=60) == []
    assert own.processes == []


@pytest.mark.slow
def test_what_is_left_then_is_done_by_as_many_processes_as_asked_for():
    assert {*results(_spin, [0, 0], workers=1)} == {os.getpid()}
    pids = results(_spin, [0.1] * 12, alone_seconds=0.15)
    assert pids[:2] == [os.getpid()] * 2
    assert len(pids) == 12
    assert len({*pids[2:]} - {os.getpid()}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_calls_overlap_in_each_process(workers: int):
    pids = results(_meet, range(2 * workers), workers=workers, threads=2)
    assert sorted(map(pids.count, set(pids))) == [2] * workers


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads"), [(2, 1), (1, 2), (2, 2)])
def test_error_keeps_its_type_and_calls_that_began_are_finished(
    tmp_path: pathlib.Path, workers: int, threads: int
):
    paths = [str(tmp_path / "good"), str(tmp_path / "fails")]
    paths += [str(tmp_path / "later")] * 20
    with pytest.raises(InputError, match=r"no good\n  where: .*fails") as raised:
        results(_touch_or_fail, paths, workers=workers, threads=threads)
    assert (tmp_path / "good").exists()
    if workers > 1:
        assert "_touch_or_fail" in str(raised.value.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_result_that_can_be_neither_sent_nor_shown(threads: int):
    with pytest.raises(TypeError, match="_Unspeakable does not pickle: not to be sent"):
        results(_unspeakable, range(9), threads=threads)


@pytest.fixture
def pids(tmp_path: pathlib.Path) -> Iterator[str]:
    """A file for the numbers of processes, which are killed in the end."""
    path = tmp_path / "pids"
    path.touch()
    yield str(path)
    for pid in path.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", [_leave_thread, _leave_atexit_function, _ignore_the_signal]
)
def test_workers_that_do_not_end_are_killed_and_it_is_said(
    caplog: pytest.LogCaptureFixture, function
) -> None:
    with caplog.at_level(logging.WARNING):
        assert len(results(function, range(8), patience_seconds=0.1)) == 8
    assert " of 2 worker processes were killed" in caplog.text
    assert "--map function" in caplog.text
    assert "No result is lost" in caplog.text


@pytest.mark.slow
def test_what_workers_leave_is_done_and_keeps_none_of_them(
    tmp_path: pathlib.Path, pids: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "exits"
    results(_append_at_exit, [str(path)] * 4, patience_seconds=59)
    assert path.read_text() == "xxxx"
    assert results(_leave_fork, [pids] * 2, patience_seconds=70) == [pids] * 2
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "item", "text"),
    [
        (os._exit, 0, r"process \d+ exited with code 0\n.*os\._exit"),
        (os._exit, 3, r"process \d+ exited with code 3\n.*os\._exit"),
        (
            _end_by_signal,
            signal.SIGKILL,
            r"process \d+ was killed, most often .* memory",
        ),
        (
            _end_by_signal,
            signal.SIGSEGV,
            r"process \d+ was ended by a signal: Segmentation fault",
        ),
        (_leave_fork_and_die, None, "was killed"),
    ],
)
def test_a_worker_that_ends_early_is_named(
    pids: str, function: Any, item: object, text: str
) -> None:
    with pytest.raises(WorkerDiedError, match=text):
        results(function, [pids if item is None else item] * 2)


_ENDLESS = """
import os, sys, time
from gristmill.pipelines.local.pool import map_unordered

def work(number):
    # In one piece, as another worker writes too.
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(600)

if __name__ == "__main__":
    list(map_unordered(work, range(2), workers=2))
"""


def _alive(pid: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_their_parent(tmp_path, sig):
    script = tmp_path / "endless.py"
    script.write_text(_ENDLESS)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        if sig == signal.SIGINT:
            os.killpg(parent.pid, sig)  # As Ctrl-C does.
        else:
            os.kill(parent.pid, sig)
        parent.wait(timeout=60)
        until(lambda: not any(map(_alive, pids)))
    finally:
        parent.kill()
        parent.communicate()


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
            until(lambda: len(os.listdir(markers)) == 2)
            workers = os.listdir(markers)
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
