"""Turns: one thread at a time, and each for a while."""

import concurrent.futures
import threading

import pytest

from gristmill.loader.reading import turn as module
from gristmill.loader.reading.turn import Turn

SLICE, GLANCE = module._SLICE_SECONDS, module._GLANCE_SECONDS


class Clock:
    """Time that passes when somebody sleeps, and what the owner does meanwhile."""

    def __init__(self, turn: Turn, *, works_until: float):
        self.turn, self.works_until = turn, works_until
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        if self.now - 1000.0 < self.works_until:
            self.turn._left = self.now


def clock_of(monkeypatch: pytest.MonkeyPatch, *, works_until: float = 0) -> Clock:
    """A turn that another thread owns, which works for so many seconds more."""
    turn = Turn()
    clock = Clock(turn, works_until=works_until)
    monkeypatch.setattr(module, "time", clock)
    owner = threading.Thread(target=turn.keep)
    owner.start()
    owner.join()
    return clock


def test_an_owner_that_comes_back_keeps_its_turn_for_a_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch, works_until=60)
    clock.turn.wait()
    assert SLICE <= clock.now - 1000.0 < SLICE + GLANCE


def test_an_owner_that_does_something_else_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch)
    clock.now += 0.0002
    clock.turn.wait()
    assert not clock.slept


def test_an_owner_that_leaves_is_waited_for_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch, works_until=1.5 * GLANCE)
    clock.turn.wait()
    assert 1.5 * GLANCE < clock.now - 1000.0 < SLICE


def test_an_owner_at_work_is_not_away_however_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = clock_of(monkeypatch)
    clock.now += 1
    with clock.turn.lock:
        clock.turn.wait()
    assert SLICE <= clock.now - 1001.0 < SLICE + GLANCE


def test_who_is_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clock_of(monkeypatch, works_until=60)
    clock.turn.keep()
    for _ in range(3):
        clock.turn.wait()
        with clock.turn.lock:
            clock.turn.keep()
    assert not clock.slept


def test_everybody_comes_to_an_end() -> None:
    turn, inside = Turn(), []

    def work(number: int) -> int:
        for _ in range(500):
            turn.wait()
            with turn.lock:
                inside.append(number)
                assert len(inside) == 1
                inside.pop()
                turn.keep()
        return number

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]
