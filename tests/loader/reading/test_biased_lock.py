"""One thread at a time, and each for a while."""

import concurrent.futures
import threading

import pytest

from gristmill.loader.reading import biased_lock as module
from gristmill.loader.reading.biased_lock import (
    LOOK_SECONDS,
    SLICE_SECONDS,
    BiasedLock,
)


class Clock:
    """Time that passes when somebody sleeps, and what the owner does meanwhile."""

    def __init__(self, lock: BiasedLock, *, works_until: float):
        self.lock, self.works_until = lock, works_until
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if self.now - 1000.0 < self.works_until:
            self.lock._left = self.now


def clock_of(monkeypatch: pytest.MonkeyPatch, *, works_until: float = 0) -> Clock:
    """A lock that another thread owns, which works for so many seconds more."""
    lock = BiasedLock()
    clock = Clock(lock, works_until=works_until)
    monkeypatch.setattr(module, "time", clock)
    owner = threading.Thread(target=lock.held)
    owner.start()
    owner.join()
    return clock


def test_an_owner_that_comes_back_keeps_the_lock_for_a_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch, works_until=60)
    clock.lock.wait()
    assert SLICE_SECONDS <= clock.now - 1000.0 < SLICE_SECONDS + LOOK_SECONDS


def test_an_owner_that_does_something_else_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch)
    clock.now += 0.0002
    clock.lock.wait()
    assert not clock.slept


def test_an_owner_that_leaves_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch, works_until=1.5 * LOOK_SECONDS)
    clock.lock.wait()
    assert 1.5 * LOOK_SECONDS < clock.now - 1000.0 < SLICE_SECONDS


def test_an_owner_at_work_is_not_away_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch)
    clock.now += 1
    with clock.lock.lock:
        clock.lock.wait()
    assert SLICE_SECONDS <= clock.now - 1001.0 < SLICE_SECONDS + LOOK_SECONDS


def test_a_lone_thread_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, works_until=60)
    clock.lock.held()
    for _ in range(3):
        clock.lock.wait()
        with clock.lock.lock:
            clock.lock.held()
    assert not clock.slept


def test_all_threads_finish() -> None:
    lock, inside = BiasedLock(), []

    def work(number: int) -> int:
        for _ in range(500):
            lock.wait()
            with lock.lock:
                inside.append(number)
                assert len(inside) == 1
                inside.pop()
                lock.held()
        return number

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]
