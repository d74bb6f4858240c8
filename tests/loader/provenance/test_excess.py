"""Deviations of losses from a baseline, against what the definition says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gristmill.dataset.errors import InputError
from gristmill.loader.provenance.excess import Excess, Losses, excess


def losses_of(values: list[float], first: int = 0) -> Losses:
    none = np.full(len(values), -1)
    steps = np.arange(first, first + len(values))
    return Losses(steps, none, none, none, np.array(values))


def of_window(values: list[float], begin: int, end: int) -> Excess:
    return excess(losses_of(values), range(begin, end))


def test_deviations_are_those_of_the_losses_outside() -> None:
    usual = [2.0, 2.1, 1.9, 2.3, 1.7, 2.0, 2.1, 1.9]
    found = of_window([*usual[:4], 5.0, 2.0, *usual[4:]], 4, 6)
    assert found.outside
    assert found.baseline == 2.0
    assert found.deviation == pytest.approx(1.4826 * 0.1)
    assert found.deviations == pytest.approx([3.0 / found.deviation, 0])
    assert found.high == 1
    assert found.losses.steps.tolist() == [4, 5]


def test_a_spike_outside_does_not_hide_one_inside() -> None:
    usual = [2.0, 2.1, 1.9, 2.3, 1.7, 2.0, 2.1, 1.9]
    found = of_window([*usual, 1e9, math.inf, math.nan, 5.0], 11, 12)
    assert found.deviations[0] > 10


def test_losses_that_are_no_numbers_are_as_high_as_any() -> None:
    usual = [2.0, 2.1] * 8
    found = of_window([*usual, math.nan, math.inf, 1e30, -1e30], 16, 20)
    assert found.deviations.tolist() == [100.0, 100.0, 100.0, -100.0]


def test_few_others_are_taken_with_those_of_the_window() -> None:
    found = of_window([1.0, 1.2, 9.0, 1.1], 2, 3)
    assert not found.outside
    assert found.baseline == pytest.approx(1.15)
    assert found.high == 1


@pytest.mark.parametrize("values", [[2.0] * 20 + [3.0], [2.0] * 19 + [2.5, 9.0]])
def test_losses_that_are_mostly_the_same(values: list[float]) -> None:
    found = of_window(values, 20, 21)
    assert 0 < found.deviations[0] < math.inf


@pytest.mark.parametrize(
    ("values", "window", "message"),
    [
        ([2.0] * 9, range(20, 30), "no losses of these steps"),
        ([], range(3), "no losses of these steps"),
        ([math.nan] * 9, range(3), "no loss is a number"),
    ],
)
def test_losses_that_say_nothing(values, window, message) -> None:
    with pytest.raises(InputError, match=message):
        excess(losses_of(values), window)
