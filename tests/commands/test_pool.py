"""The pool of local processes: results, errors, dead workers."""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from gristmill.dataset.base.errors import InputError, WorkerDiedError
from gristmill.pipelines.local.pool import (
    call_apart,
    map_unordered,
)
from tests.support.started import started
from tests.support.waiting import until


def _square(number: int) -> int:
    return number * number


def _pid(number: int) -> int:
    time.sleep(0.05)
    return os.getpid()


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


def _kill_self(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _leave_a_thread() -> int:
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


@pytest.mark.slow
def test_a_call_in_a_process_of_its_own(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
):
    assert call_apart(functools.partial(_square, 7)) == 49
    with pytest.raises(InputError, match="no good"):
        call_apart(functools.partial(_touch_or_fail, str(tmp_path / "fails")))
    with pytest.raises(WorkerDiedError):
        call_apart(functools.partial(_kill_self, 1))
    pid = call_apart(_leave_a_thread)
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_every_item_once(workers: int, threads: int, count: int):
    results = map_unordered(_square, range(count), workers=workers, threads=threads)
    assert sorted(results) == [n * n for n in range(count)]


@pytest.mark.slow
def test_work_is_done_by_as_many_processes_as_asked_for():
    assert set(map_unordered(_pid, range(3), workers=1)) == {os.getpid()}
    pids = set(map_unordered(_pid, range(12), workers=2))
    assert len(pids) == 2
    assert os.getpid() not in pids


def _spin(seconds: float) -> int:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


@pytest.mark.parametrize("count", [0, 1, 9])
def test_little_work_is_done_before_processes_start(count: int):
    pids = list(map_unordered(_pid, range(count), workers=2, alone_seconds=60))
    assert pids == [os.getpid()] * count


@pytest.mark.slow
def test_what_is_left_then_is_done_by_them():
    pids = list(map_unordered(_spin, [0.1] * 5, workers=2, alone_seconds=0.15))
    assert pids[:2] == [os.getpid()] * 2
    assert len(pids) == 5
    assert os.getpid() not in pids[2:]


def test_no_process_starts_where_nothing_is_left():
    with started() as own:
        pids = list(map_unordered(_spin, [0.05, 0.1], workers=2, alone_seconds=0.1))
    assert pids == [os.getpid()] * 2
    assert own.processes == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_calls_overlap_in_each_process(workers: int):
    pids = list(map_unordered(_meet, range(2 * workers), workers=workers, threads=2))
    assert sorted(map(pids.count, set(pids))) == [2] * workers


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads"), [(2, 1), (1, 2), (2, 2)])
def test_error_keeps_its_type_and_calls_that_began_are_finished(
    tmp_path: pathlib.Path, workers: int, threads: int
):
    paths = [str(tmp_path / "good"), str(tmp_path / "fails")]
    paths += [str(tmp_path / "later")] * 20
    with pytest.raises(InputError, match=r"no good\n  where: .*fails") as raised:
        list(map_unordered(_touch_or_fail, paths, workers=workers, threads=threads))
    assert (tmp_path / "good").exists()
    if workers > 1:
        assert "_touch_or_fail" in str(raised.value.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_result_that_can_be_neither_sent_nor_shown(threads: int):
    with pytest.raises(TypeError, match="_Unspeakable does not pickle: not to be sent"):
        list(map_unordered(_unspeakable, range(9), workers=2, threads=threads))


def test_no_threads_are_left():
    with started() as own:
        assert sorted(map_unordered(_square, range(9), workers=1, threads=3))[-1] == 64
    assert own.threads
    own.wait_until_ended()


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
