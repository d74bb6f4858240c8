"""Mixtures: weights, phases, places of records and batches."""

import collections
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    OutOfRangeError,
)
from gristmill.loader.base.indices import POSITION_LIMIT
from gristmill.loader.order.mixture import (
    Mixture,
    exact_weights,
)
from gristmill.loader.order.schedule import DatasetOrder, Sighting
from gristmill.loader.order.shuffle import GlobalShuffle, NoShuffle
from tests.support.orders import records_of
from tests.support.schedules import bounds_of, schedule_of

SMALL = st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(any)
# Heavy ones leave int64 on the way.
ANY = st.lists(st.integers(0, 10**18), min_size=1, max_size=6).filter(any)
# And these the products, but not the quotients.
WIDE = st.lists(st.integers(0, 1 << 47), min_size=2, max_size=6).filter(any)
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


@given(weights=ANY)
@settings(max_examples=30, deadline=None)
def test_state_round_trips_through_json(weights):
    mixture = Mixture.of(weights)
    state = json.loads(json.dumps(mixture.to_state()))
    assert Mixture.from_state(state) == mixture
    with pytest.raises(FormatVersionError, match="another version"):
        Mixture.from_state(state | {"version": 2})


@st.composite
def mixed_schedules(draw, *, limited=True):
    count = draw(st.integers(1, 4))
    orders = tuple(
        DatasetOrder(
            num_records=draw(st.integers(1, 12)),
            seed=draw(st.integers(0, 2)),
            shuffle=draw(st.sampled_from([NoShuffle(), GlobalShuffle()])),
            epochs=draw(st.one_of(st.none(), st.integers(1, 3))) if limited else None,
            name=str(number),
        )
        for number in range(count)
    )
    weights = st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any)
    return schedule_of(
        orders=orders,
        mixture=Mixture.of(draw(weights)),
        batch_size=draw(st.integers(1, 9)),
        drop_remainder=draw(st.booleans()),
    )


def mixed_by_iterators(schedule, limit):
    """(dataset, epoch, record) one after the other, up to `limit`, and if it ended."""

    def records(order):
        epochs = itertools.count() if order.epochs is None else range(order.epochs)
        for epoch in epochs:
            shuffled = records_of(
                order.shuffle,
                np.arange(order.num_records),
                num_records=order.num_records,
                seed=order.seed,
                epochs=epoch,
                name=order.name,
            )
            for record in shuffled.tolist():
                yield epoch, record

    (phase,) = schedule.phases
    sources = [records(order) for order in phase.orders]
    datasets, _ = phase.dealing.locate(np.arange(limit))
    rows = []
    for dataset in datasets.tolist():
        following = next(sources[dataset], None)
        if following is None:
            return rows, True
        rows.append((dataset, *following))
    return rows, False


@pytest.mark.slow
@given(schedule=mixed_schedules())
def test_mixed_batches_are_the_datasets_dealt_by_the_mixture(schedule):
    rows, ended = mixed_by_iterators(schedule, 200)
    size = schedule.batch_size(0)
    steps = len(rows) // size
    if ended:
        assert schedule.stop == len(rows)
        steps += bool(len(rows) % size) and not schedule.drop_remainder
        assert schedule.steps == steps
        with pytest.raises(OutOfRangeError):
            schedule.indices(steps)
    for step in range(steps):
        batch = schedule.indices(step)
        expected = rows[step * size : (step + 1) * size]
        assert batch.datasets.tolist() == [dataset for dataset, _, _ in expected]
        assert batch.records.tolist() == [record for _, _, record in expected]


@pytest.mark.slow
@given(schedule=mixed_schedules(limited=False), data=st.data())
def test_find_tells_all_places_of_a_dataset_s_record(schedule, data):
    (phase,) = schedule.phases
    dataset = data.draw(st.integers(0, len(phase.orders) - 1))
    count = phase.orders[dataset].num_records
    record = data.draw(st.integers(0, count - 1))
    rows, _ = mixed_by_iterators(schedule, 200)
    size, epochs = schedule.batch_size(0), 3
    found = schedule.find(record, dataset=dataset, stop_epoch=epochs)
    expected = [
        Sighting(epoch, *divmod(position, size))
        for position, (which, epoch, seen) in enumerate(rows)
        if (which, seen) == (dataset, record) and epoch < epochs
    ]
    assert [s for s in found if s.step * size + s.row < 200] == expected


def test_every_dataset_has_epochs_of_its_own():
    schedule = schedule_of(
        orders=(
            DatasetOrder(num_records=10, name="small", epochs=6),
            DatasetOrder(num_records=30, name="large", epochs=2),
        ),
        mixture=Mixture.of([1, 1]),
        batch_size=12,
    )
    assert schedule.steps == 10
    seen = collections.Counter()
    for step in range(10):
        batch = schedule.indices(step)
        assert np.bincount(batch.datasets).tolist() == [6, 6]
        seen.update(zip(batch.datasets.tolist(), batch.records.tolist(), strict=True))
    assert set(seen.values()) == {6, 2}
    assert seen[0, 3] == 6
    assert seen[1, 29] == 2


def test_datasets_of_one_seed_need_names():
    order = DatasetOrder(num_records=10)
    with pytest.raises(InputError, match="share their order"):
        schedule_of(orders=(order,) * 2, mixture=Mixture.of([1, 1]), batch_size=4)
    with pytest.raises(InputError, match="dataset for each weight"):
        schedule_of(orders=(order,), mixture=Mixture.of([1, 1]), batch_size=4)


@given(
    weights=st.one_of(WIDE, ANY, SMALL),
    positions=st.lists(st.integers(0, POSITION_LIMIT - 1), min_size=1, max_size=20),
)
@settings(max_examples=100)
def test_any_positions_are_located_as_plain_integers_count(weights, positions):
    mixture = Mixture.of(weights)
    located = (
        column.tolist() for column in mixture.locate(np.array(positions, np.int64))
    )
    for position, dataset, place in zip(positions, *located, strict=True):
        before, after = mixture.counts(position), mixture.counts(position + 1)
        assert place == before[dataset]
        assert after[dataset] == place + 1
        assert sum(before) == position
