"""The clocks of a thread, and how many processors a process may use."""

import threading
import time

import pytest

from gristmill.loader.stats import clocks
from gristmill.loader.stats.clocks import ThreadTimes, thread_times, usable_processors


def test_sleeping_is_neither_work_nor_waiting_for_a_processor():
    before = thread_times()
    time.sleep(0.05)
    slept = thread_times().since(before)
    assert slept.passed >= 0.05
    assert slept.cpu < slept.passed
    before = thread_times()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    worked = thread_times().since(before)
    assert worked.passed >= worked.cpu >= 0.02
    assert ThreadTimes(3, 2, 1).since(ThreadTimes(1, 1, 1)) == ThreadTimes(2, 1, 0)


def test_each_thread_has_its_own_counts():
    found = []

    def count() -> None:
        found.append(clocks._thread.counts)
        assert thread_times().cpu < 5

    for _ in range(2):
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
    assert found[0] is not found[1]
    assert clocks._thread.counts not in found


def test_a_system_that_counts_nothing(monkeypatch):
    def refuse(*_):
        raise FileNotFoundError

    monkeypatch.setattr(clocks.os, "open", refuse)
    counts = clocks._Counts()
    assert counts.queued_seconds() == 0
    monkeypatch.undo()
    counts = clocks._Counts()
    monkeypatch.setattr(clocks.os, "pread", lambda *_: b"what")
    assert counts.queued_seconds() == 0


@pytest.mark.parametrize(
    ("limit", "processors"),
    [
        ("max 100000\n", 8),
        ("250000 100000\n", 3),
        ("10000 100000\n", 1),
        ("1600000 100000\n", 8),
        (None, 8),
    ],
)
def test_the_limit_of_a_container_counts(monkeypatch, tmp_path, limit, processors):
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(clocks, "_CPU_LIMIT", str(tmp_path / "cpu.max"))
    monkeypatch.setattr(clocks.os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_processors() == processors
