"""Mixtures: weights, phases, places of records and batches."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    InputError,
)
from gristmill.loader.base.indices import POSITION_LIMIT
from gristmill.loader.order.mixture import (
    Mixture,
    exact_weights,
)
from tests.order.schedules import bounds_of

SMALL = st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any)
# Heavy ones leave int64 on the way.
ANY = st.lists(st.integers(0, 10**18), min_size=1, max_size=6).filter(any)
# Weights that make the bound of Huffman's tree as bad as it gets.
FIBONACCI = [Fraction(1, 1000), 1, 1, 1, 2, 3, 5, 8, 13, 21]


def prefix_counts(mixture, stop):
    """How many of each dataset come before positions 0 to stop, [stop + 1, datasets].

    Counted one by one from the datasets that `locate` deals.
    """
    datasets, _ = mixture.locate(np.arange(stop))
    picked = datasets[:, None] == np.arange(mixture.num_datasets)
    return np.vstack([np.zeros(picked.shape[1], int), np.cumsum(picked, axis=0)])


@given(weights=SMALL)
def test_locate_counts_select_and_one_by_one_counting_agree(weights):
    mixture, stop = Mixture.of(weights), 150
    datasets, places = mixture.locate(np.arange(stop))
    counts = prefix_counts(mixture, stop)
    for position in range(stop):
        dataset = datasets[position]
        assert weights[dataset] > 0
        assert places[position] == counts[position, dataset]
        assert mixture.counts(position) == tuple(counts[position])
    for dataset in range(len(weights)):
        mine = np.flatnonzero(datasets == dataset)
        assert mixture.select(dataset, np.arange(len(mine))).tolist() == mine.tolist()


@pytest.mark.slow
@given(weights=st.one_of(SMALL, ANY))
@example(weights=FIBONACCI)
@example(weights=[1] * 64)
def test_every_prefix_and_every_window_keep_the_weights(weights):
    mixture, stop = Mixture.of(weights), 300
    counts = prefix_counts(mixture, stop).tolist()
    for dataset, (weight, bound) in enumerate(
        zip(mixture.weights, bounds_of(mixture), strict=True)
    ):
        assert bound < Fraction(168, 100)
        if len(weights) <= 3:
            assert bound < 1
        if len(weights) == 2:
            assert bound <= Fraction(1, 2)
        off = [count[dataset] - p * weight for p, count in enumerate(counts)]
        assert max(map(abs, off)) <= bound
        # off[q] - off[p] is the error of the window [p, q): the worst of them all.
        assert max(off) - min(off) <= 2 * bound
        if len(weights) == 2:
            assert max(off) - min(off) < 1  # every window is rounded up or down


@given(weights=st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any))
def test_windows_of_whole_periods_are_exact_wherever_they_start(weights):
    period = sum(weights)
    counts = prefix_counts(Mixture.of(weights), 4 * period)
    for start in range(2 * period):
        for periods in (1, 2):
            window = counts[start + periods * period] - counts[start]
            assert window.tolist() == [periods * weight for weight in weights]


@given(weights=ANY, data=st.data())
@settings(max_examples=100)
def test_positions_of_any_size_round_trip(weights, data):
    near_the_end = st.integers(POSITION_LIMIT - 9, POSITION_LIMIT - 1)
    position = st.one_of(st.integers(0, POSITION_LIMIT - 1), near_the_end)
    positions = data.draw(st.lists(position, min_size=1, max_size=9))
    mixture = Mixture.of(weights)
    datasets, places = mixture.locate(np.array(positions, np.int64))
    found = zip(positions, datasets.tolist(), places.tolist(), strict=True)
    for position, dataset, place in found:
        assert mixture.select(dataset, place) == position
        assert mixture.counts(position)[dataset] == place
        assert mixture.counts(position + 1)[dataset] == place + 1
        assert sum(mixture.counts(position)) == position


def test_weights_mean_what_they_say():
    tenth = Fraction(1, 10)
    assert exact_weights([0.1, 0.2, 0.7]) == (tenth, 2 * tenth, 7 * tenth)
    assert exact_weights(["1/3", "2/3"]) == (Fraction(1, 3), Fraction(2, 3))
    assert exact_weights([np.float64(0.1), 0.9]) == (tenth, 9 * tenth)
    assert exact_weights([np.int64(3), Fraction(1)]) == (
        Fraction(3, 4),
        Fraction(1, 4),
    )
    for bad in ([], [0, 0], [1, -1], [2, -1]):
        with pytest.raises(InputError, match="cannot make a mixture"):
            Mixture.of(bad)
    for bad in ("a", "1/0", float("nan"), float("inf"), None):
        with pytest.raises(InputError, match="not a number"):
            Mixture.of([1, bad])
