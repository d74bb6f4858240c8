"""Phases of an order, against a simulation record by record.

Covers: loader/order/epochs.py.
"""

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.errors import InputError
from gristmill.loader.indices import POSITION_LIMIT
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import Extension, Schedule
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle

SHUFFLES = [
    NoShuffle(),
    GlobalShuffle(),
    BlockShuffle(block_records=3, window_blocks=2),
]
STEPS = 24


class Lane:
    """Records in the order in which an epoch has them."""

    def __init__(self, order, first, count, epoch):
        name = order.name + (f"\0{first}" if first else "")
        records = order.shuffle.records(
            np.arange(count),
            num_records=count,
            seed=order.seed,
            epochs=epoch,
            name=name,
        )
        self.rest = [first + record for record in records.tolist()]


class Simulated:
    """One dataset that is extended, record by record."""

    def __init__(self, order):
        self.order, self.known, self.epoch = order, order.num_records, 0
        self.lanes, self.dealt = [Lane(order, 0, self.known, 0)], None

    def extend(self, count):
        left = sum(len(lane.rest) for lane in self.lanes)
        if left in (0, self.known):  # Between two epochs.
            self.epoch += left == 0
            self.lanes, self.dealt = [Lane(self.order, 0, count, self.epoch)], None
        else:
            self.lanes.append(
                Lane(self.order, self.known, count - self.known, self.epoch)
            )
            left = [len(lane.rest) for lane in self.lanes]
            numbers, _ = Mixture.of(left).locate(np.arange(sum(left)))
            self.dealt = numbers.tolist()
            if isinstance(self.order.shuffle, NoShuffle):
                self.dealt.sort()
        self.known = count

    def next(self):
        """The next record, and its epoch."""
        if not any(lane.rest for lane in self.lanes):
            self.epoch += 1
            self.lanes = [Lane(self.order, 0, self.known, self.epoch)]
            self.dealt = None
        lane = self.dealt.pop(0) if self.dealt else 0
        return self.lanes[lane].rest.pop(0), self.epoch


def simulate(schedule, changes):
    """The (dataset, record, epoch) of each row of some steps."""
    sizes, weights, extended = changes
    datasets = [Simulated(order) for order in schedule.orders]
    size, shares = schedule.batch_size, [1] * len(datasets)
    if schedule.mixture is not None:
        shares = schedule.mixture.phases[0].weights
    dealt = iter(())
    batches = []
    for step in range(STEPS):
        size = sizes.get(step, size)
        for number, dataset in enumerate(datasets):
            if (number, step) in extended:
                dataset.extend(extended[number, step])
        if step == 0 or step in weights:
            shares = weights.get(step, shares)
            numbers, _ = Mixture.of(shares).locate(np.arange(STEPS * 60))
            dealt = iter(numbers.tolist())
        rows = [next(dealt) for _ in range(size)]
        batches.append([(number, *datasets[number].next()) for number in rows])
    return batches


@st.composite
def changed_schedules(draw):
    count = draw(st.integers(1, 3))
    orders = tuple(
        DatasetOrder(
            num_records=draw(st.integers(1, 40)),
            seed=draw(st.integers(0, 3)),
            shuffle=draw(st.sampled_from(SHUFFLES)),
            name=name,
        )
        for name in "abc"[:count]
    )
    shares = st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any)
    steps = st.integers(1, STEPS - 1)
    mixed = count > 1 or draw(st.booleans())
    schedule = Schedule(
        orders=orders,
        mixture=Mixture.of(draw(shares)) if mixed else None,
        batch_size=draw(st.integers(1, 30)),
    )
    sizes = draw(st.dictionaries(steps, st.integers(1, 60), max_size=3))
    weights = draw(st.dictionaries(steps, shares, max_size=3)) if mixed else {}
    extended, grown = {}, [order.num_records for order in orders]
    for step in sorted(draw(st.sets(st.integers(0, STEPS - 1), max_size=5))):
        number = draw(st.integers(0, count - 1))
        grown[number] += draw(st.integers(1, 40))
        extended[number, step] = grown[number]
    made = [("size", at, size) for at, size in sorted(sizes.items())]
    kinds = [made, [("weights", at, share) for at, share in sorted(weights.items())]]
    for number in range(count):
        mine = [(at, n) for (which, at), n in extended.items() if which == number]
        kinds.append([(number, at, n) for at, n in mine])
    # Those of one kind in the order of their steps, of different kinds in any.
    turns = draw(st.permutations([kind for kind in kinds for _ in kind]))
    for kind in turns:
        what, step, value = kind.pop(0)
        if what == "size":
            schedule = schedule.resized(value, step=step)
        elif what == "weights":
            schedule = schedule.reweighted(value, step=step)
        else:
            schedule = schedule.extended(value, step=step, dataset=what)
    return schedule, (sizes, weights, extended)


@pytest.mark.slow
@given(drawn=changed_schedules())
@settings(max_examples=100, deadline=None)
def test_any_phases_in_any_order_are_what_a_simulation_gives(drawn):
    check(*drawn)


@given(drawn=changed_schedules())
@settings(max_examples=6, deadline=None)
def test_some_phases_are_what_a_simulation_gives(drawn):
    check(*drawn)


def check(schedule, changes):
    expected = simulate(schedule, changes)
    sightings = collections.defaultdict(list)
    for step, batch in enumerate(expected):
        datasets, records = schedule.batch(step)
        assert datasets.tolist() == [row[0] for row in batch]
        assert records.tolist() == [row[1] for row in batch]
        for row, seen in enumerate(batch):
            sightings[seen].append((seen[2], step, row))
    assert max(map(len, sightings.values())) == 1  # Once an epoch.
    last = max(epoch for _, _, epoch in sightings)
    for number, record in sorted({seen[:2] for seen in sightings})[::5]:
        found = schedule.find(record, dataset=number, stop_epoch=last + 1)
        mine = [
            places[0]
            for seen, places in sightings.items()
            if seen[:2] == (number, record)
        ]
        assert [place for place in found if place.step < STEPS] == sorted(mine)
    # Any step at once, and any rows of it.
    again = schedule.batch(STEPS - 1, np.array([0]))
    assert (again.datasets[0], again.records[0]) == expected[-1][0][:2]


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=lambda shuffle: shuffle.kind)
def test_what_is_left_and_what_is_new_end_together(shuffle):
    order = DatasetOrder(
        num_records=1_000, seed=7, shuffle=shuffle, epochs=2, extensions=((400, 1_200),)
    )
    plain = dataclasses.replace(order, extensions=())
    longer = dataclasses.replace(plain, num_records=1_200)
    epoch = order.records(np.arange(1_200))
    assert sorted(epoch) == list(range(1_200))
    assert np.array_equal(epoch[:400], plain.records(np.arange(400)))
    assert np.array_equal(epoch[epoch < 1_000], plain.records(np.arange(1_000)))
    assert order.stop == 2_400
    assert np.array_equal(
        order.records(np.arange(1_200, 2_400)),
        longer.records(np.arange(1_200, 2_400)),
    )
    if shuffle.kind == "none":
        assert epoch.tolist() == list(range(1_200))
        return
    # In every part of the rest, a quarter is new, give or take one half.
    new = np.cumsum(epoch[400:] >= 1_000)
    assert np.abs(new - np.arange(1, 801) / 4).max() <= 0.5


def test_lanes_of_new_records_have_orders_of_their_own():
    extensions = ((1, 200), (2, 300), (3, 400))
    order = DatasetOrder(num_records=100, seed=7, extensions=extensions)
    epoch = order.records(np.arange(400))
    lanes = [epoch[epoch // 100 == lane] % 100 for lane in range(4)]
    assert len({tuple(lane.tolist()) for lane in lanes}) == 4
    later = order.records(np.arange(400, 800))
    assert not np.array_equal(later, epoch)


def test_golden_order_of_an_extended_epoch():
    def epoch(shuffle):
        extensions = ((3, 13), (9, 16))
        order = DatasetOrder(
            num_records=8, seed=42, shuffle=shuffle, extensions=extensions
        )
        return order.records(np.arange(16)).tolist()

    assert epoch(GlobalShuffle()) == [
        5,
        3,
        0,
        6,
        12,
        4,
        9,
        1,
        8,
        7,
        15,
        10,
        13,
        2,
        14,
        11,
    ]
    assert epoch(BlockShuffle(block_records=3, window_blocks=2)) == [
        6,
        2,
        0,
        1,
        11,
        7,
        12,
        5,
        8,
        3,
        15,
        9,
        13,
        4,
        14,
        10,
    ]


def test_an_endless_dataset_of_any_size_is_extended():
    order = DatasetOrder(
        num_records=10**12, seed=1, extensions=((10**15 + 7, 10**12 + 5),)
    )
    schedule = Schedule(orders=(order,), batch_size=1024)
    for step in (10**12 // 1024 * 1000 + 5, 1 << 52):
        (record, *_) = schedule.indices(step).tolist()
        epoch = order.epoch_at(step * 1024)
        found = schedule.find(record, first_epoch=epoch, stop_epoch=epoch + 1)
        assert found == [(epoch, step, 0)]
    assert schedule.steps is None
    last = schedule.step_limit - 1
    assert len(schedule.indices(last)) == 1024
    assert schedule.find(0, first_epoch=10**6, stop_epoch=10**6 + 2)
    # The last epochs of int64 are cut off, not wrapped.
    late = DatasetOrder(num_records=10, extensions=((POSITION_LIMIT - 3, 1 << 62),))
    assert late.records(np.array([POSITION_LIMIT - 1])) >= 0


@pytest.mark.parametrize(
    "extensions", [((5, 10),), ((5, 9),), ((5, 20), (4, 30)), ((5, 20), (6, 20))]
)
def test_extensions_that_do_not_follow_are_refused(extensions):
    with pytest.raises(InputError, match="does not follow the one before"):
        DatasetOrder(num_records=10, extensions=extensions)


def test_schedules_refuse_what_does_not_go_together():
    order = DatasetOrder(num_records=10, epochs=2)
    schedule = Schedule(orders=(order,), batch_size=4)
    with pytest.raises(InputError, match="does not follow the one before"):
        schedule.extended(10, step=1)
    with pytest.raises(InputError, match="dataset is out of range"):
        schedule.extended(20, step=1, dataset=1)
    with pytest.raises(InputError, match="the batches end before the step"):
        schedule.extended(20, step=5)
    late = schedule.extended(20, step=4)
    with pytest.raises(InputError, match="the batches end before the step"):
        late.resized(10, step=1)
    doubled = [Extension(1, 0, 20), Extension(1, 0, 30)]
    with pytest.raises(InputError, match="do not follow one another"):
        Schedule(orders=(order,), batch_size=4, extensions=tuple(doubled))
