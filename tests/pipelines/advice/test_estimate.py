"""Totals of samples: right on average, with errors that hold."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.pipelines.advice.estimate import Estimate, total_of


def test_what_was_read_as_a_whole_has_no_error() -> None:
    found = total_of([10, 30], [100, 100], [1, 1], input_bytes=200, read_share=1)
    assert found == Estimate(40.0, 0.0)


def test_a_single_part_says_nothing_of_its_error() -> None:
    found = total_of([10], [100], [5], input_bytes=1000, read_share=0.1)
    assert found == (100, None)
    assert found.plus(Estimate(1.0)).error_text == " (error unknown)"
    assert total_of([], [], [], input_bytes=5, read_share=0).value == 0


def test_errors_of_independent_parts_add_by_their_squares() -> None:
    found = Estimate(10.0, 3.0).plus(Estimate(20.0, 4.0))
    assert found == Estimate(30.0, 5.0)
    assert found.error_text == " ±16.7%"


def test_a_part_counts_for_what_it_stands_for() -> None:
    # The head of a large file, and that of a small one, with other ratios.
    found = total_of([50, 10], [100, 100], [9, 1], input_bytes=1000, read_share=0.2)
    assert found.value == pytest.approx(460)


@pytest.mark.parametrize("parts", [3, 8, 64])
def test_intervals_hold_the_truth_as_often_as_they_say(parts: int) -> None:
    rng = np.random.default_rng(parts)
    stored = rng.lognormal(10, 0.5, 3000)
    amounts = stored * (0.4 + 0.1 * rng.normal(size=3000)) + rng.normal(size=3000)
    truth, input_bytes = amounts.sum(), int(stored.sum())
    held, values = 0, []
    for _ in range(400):
        chosen = rng.choice(3000, parts, replace=False)
        found = total_of(
            amounts[chosen].tolist(),
            stored[chosen].astype(int).tolist(),
            [1.0] * parts,
            input_bytes=input_bytes,
            read_share=parts / 3000,
        )
        held += abs(found.value - truth) <= found.error
        values.append(found.value)
    assert 0.9 <= held / 400 <= 0.99
    assert np.mean(values) == pytest.approx(truth, rel=0.02)
