"""Phases of an order, against a simulation record by record."""

import collections
import dataclasses
import functools
import random

import numpy as np
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import Removed
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
from gristmill.loader.order.step_records import Schedule
from tests.support.orders import records_of

SHUFFLES = [
    NoShuffle(),
    GlobalShuffle(),
    BlockShuffle(block_records=3, window_blocks=2),
]
STEPS = 12


@functools.cache
def shuffled(shuffle, count, seed, epoch, name):
    """The numbers of so many records in the order in which an epoch has them."""
    numbers = records_of(
        shuffle, np.arange(count), num_records=count, seed=seed, epochs=epoch, name=name
    )
    return numbers.tolist()


class Simulated:
    """One dataset that changes, record by record.

    A record is known by the number that it would have if none had been removed.
    """

    def __init__(self, order):
        self.order, self.epoch = order, 0
        self.there = list(range(order.num_records))
        self.ever = order.num_records
        self.begin()

    def begin(self):
        """Begins an epoch."""
        self.lanes, self.dealt, self.begun = [self.shuffled(self.there)], [], False

    def shuffled(self, records, name=""):
        order, name = self.order, self.order.name + name
        shuffle, seed = order.shuffle, order.seed
        numbers = shuffled(shuffle, len(records), seed, self.epoch, name)
        return [records[number] for number in numbers]

    def extend(self, count, removed):
        gone = {self.there[number] for number in removed}
        new = list(range(self.ever, self.ever + count - len(self.there) + len(gone)))
        self.there = [record for record in self.there if record not in gone] + new
        if not any(self.lanes):
            self.epoch += 1
            self.begin()
        elif not self.begun:
            self.begin()
        elif new or gone:
            self.lanes = [[r for r in lane if r not in gone] for lane in self.lanes]
            if new:
                self.lanes.append(self.shuffled(new, f"\0{self.ever}"))
            left = [len(lane) for lane in self.lanes]
            if any(left):
                numbers, _ = Mixture.of(left).locate(np.arange(sum(left)))
                self.dealt = numbers.tolist()
            if isinstance(self.order.shuffle, NoShuffle):
                self.dealt.sort()
        self.ever += len(new)

    def next(self):
        """The next record, and its epoch."""
        if not any(self.lanes):
            self.epoch += 1
            self.begin()
        self.begun = True
        lane = self.dealt.pop(0) if self.dealt else 0
        return self.lanes[lane].pop(0), self.epoch

    def number(self, record):
        """The number that a record has in the end."""
        return self.there.index(record) if record in self.there else -1 - record


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
                dataset.extend(*extended[number, step])
        if step == 0 or step in weights:
            shares = weights.get(step, shares)
            numbers, _ = Mixture.of(shares).locate(np.arange(STEPS * 40))
            dealt = iter(numbers.tolist())
        rows = [next(dealt) for _ in range(size)]
        batches.append([(number, *datasets[number].next()) for number in rows])
    found = [
        [
            (number, datasets[number].number(record), epoch)
            for number, record, epoch in batch
        ]
        for batch in batches
    ]
    return found, [len(dataset.there) for dataset in datasets]


def changed_schedule(choose):
    """A schedule that changes at steps, and what changes; `choose` is a Random."""
    count = choose.randint(1, 3)
    orders = tuple(
        DatasetOrder(
            num_records=choose.choice([choose.randint(1, 5), choose.randint(6, 60)]),
            seed=choose.randint(0, 1),
            shuffle=choose.choice(SHUFFLES),
            name=name,
        )
        for name in "abc"[:count]
    )

    def shares():
        drawn = [choose.randint(0, 5) for _ in range(count)]
        return drawn if any(drawn) else [1] * count

    def some(most, value):
        steps = choose.sample(range(1, STEPS), choose.randint(0, most))
        return {step: value() for step in steps}

    mixed = count > 1 or choose.random() < 0.5
    schedule = Schedule(
        orders=orders,
        mixture=Mixture.of(shares()) if mixed else None,
        batch_size=choose.randint(1, 12),
    )
    sizes = some(3, lambda: choose.randint(1, 40))
    weights = some(3, shares) if mixed else {}
    extended, there = {}, [order.num_records for order in orders]
    for step in sorted(choose.sample(range(STEPS), choose.randint(0, 6))):
        number = choose.randrange(count)
        added = choose.choice([0, 0, 1, choose.randint(1, 40)])
        most = there[number] - (0 if added else 1)
        lost = choose.choice(
            [0, 0, 1, choose.randint(0, most), choose.randint(0, most)]
        )
        lost = most if choose.random() < 0.05 else min(lost, most)
        removed = choose.sample(range(there[number]), lost)
        there[number] += added - lost
        extended[number, step] = there[number], removed
    made = [("size", at, size) for at, size in sizes.items()]
    kinds = [made, [("weights", at, share) for at, share in weights.items()]]
    for number in range(count):
        mine = [(at, new) for (which, at), new in extended.items() if which == number]
        kinds.append([(number, at, new) for at, new in mine])
    # Those of one kind in the order of their steps, of different kinds in any.
    turns = [sorted(kind, key=lambda one: one[1]) for kind in kinds]
    order = [kind for kind in turns for _ in kind]
    choose.shuffle(order)
    for kind in order:
        what, step, value = kind.pop(0)
        if what == "size":
            schedule = schedule.resized(value, step=step)
        elif what == "weights":
            schedule = schedule.reweighted(value, step=step)
        else:
            records, removed = value
            schedule = schedule.extended(
                records, step=step, dataset=what, removed=removed
            )
    return schedule, (sizes, weights, extended)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases",
    [
        range(100),
        *(
            pytest.param(range(first, first + 1_000), marks=pytest.mark.soak)
            for first in range(100, 10_100, 1_000)
        ),
    ],
)
def test_any_phases_in_any_order_are_what_a_simulation_gives(cases):
    kinds = collections.Counter()
    for case in cases:
        schedule, changes = changed_schedule(random.Random(case))
        try:
            kinds.update(check(schedule, changes))
        except BaseException as e:
            e.add_note(f"case {case}")
            raise
    # What is removed, and what only: before and behind its turn, with and without more.
    assert min(kinds[name] for name in ("removed", "seen before", "both")) > 10


def check(schedule, changes):
    expected, there = simulate(schedule, changes)
    sightings = collections.defaultdict(list)
    for step, batch in enumerate(expected):
        datasets, records = schedule.batch(step)
        assert datasets.tolist() == [row[0] for row in batch]
        assert records.tolist() == [row[1] for row in batch]
        for row, seen in enumerate(batch):
            sightings[seen].append((seen[2], step, row))
    assert max(map(len, sightings.values())) == 1  # Once an epoch.
    check_whole_epochs(schedule, expected, there)
    last = max(epoch for _, _, epoch in sightings)
    for number, record in sorted({seen[:2] for seen in sightings})[::17]:
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
    extended = changes[2].values()
    yield from ("removed" for _, removed in extended if removed)
    yield from ("seen before" for _, record, _ in sightings if record < 0)
    for (number, step), (records, removed) in changes[2].items():
        before = [
            n for (d, s), (n, _) in changes[2].items() if d == number and s < step
        ]
        kept = (before or [schedule.orders[number].num_records])[-1] - len(removed)
        if removed and records > kept:
            yield "both"


def check_whole_epochs(schedule, batches, there):
    """From the last change on, an epoch has each record that is there once."""
    for number, records in enumerate(there):
        steps = [one.step for one in schedule.extensions if one.dataset == number]
        position = schedule.sizes.start(max(steps, default=0))
        place = schedule.counts(position)[number]
        running = schedule.grown[number].epoch_at(place)
        epochs = collections.defaultdict(list)
        for dataset, record, epoch in (row for batch in batches for row in batch):
            if dataset == number and epoch >= running and record >= 0:
                epochs[epoch].append(record)
        for epoch in sorted(epochs)[:-1]:  # The last may not be over.
            assert sorted(epochs[epoch]) == list(range(records))


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


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=lambda shuffle: shuffle.kind)
def test_the_rest_is_dealt_as_before_without_what_is_removed(shuffle):
    plain = DatasetOrder(num_records=1_000, seed=7, shuffle=shuffle, epochs=2)
    epoch = plain.records(np.arange(1_000)).tolist()
    removed = epoch[100:110] + epoch[500:900:7]  # Before and behind position 400.
    numbers = np.delete(np.arange(1_000), removed).tolist()
    order = dataclasses.replace(
        plain, extensions=((400, len(numbers), Removed(removed)),)
    )
    rest = [record for record in epoch[400:] if record not in removed]
    found = order.records(np.arange(400 + len(rest)))
    assert [numbers[n] if n >= 0 else -1 - n for n in found] == epoch[:400] + rest
    assert [-1 - n for n in found if n < 0] == epoch[100:110]
    assert order.stop == 400 + len(rest) + len(numbers)
    fewer = dataclasses.replace(plain, num_records=len(numbers))
    later = order.records(np.arange(400 + len(rest), order.stop))
    assert sorted(later) == list(range(len(numbers)))
    second = fewer.records(np.arange(len(numbers), 2 * len(numbers)))
    assert np.array_equal(later, second)  # The order of epoch 1.
    # A removed record is found where it was seen, and nowhere else.
    epochs = np.arange(2)
    for record in removed:
        place = epoch.index(record)
        seen = [place if place < 400 else -1, -1]
        assert order.positions(-1 - record, epochs=epochs).tolist() == seen


@pytest.mark.parametrize(
    "extensions", [((5, 9),), ((5, 20), (4, 30)), ((5, 20), (6, 19))]
)
def test_extensions_that_do_not_follow_are_refused(extensions):
    with pytest.raises(InputError, match="does not follow the one before"):
        DatasetOrder(num_records=10, extensions=extensions)
