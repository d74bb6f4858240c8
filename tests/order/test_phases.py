"""Runs of any phases, against a simulation that deals record by record."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError, OutOfRangeError
from gristmill.loader.base.indices import POSITION_LIMIT
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder, Phase, Schedule, Sighting
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
from tests.order.orders import records_of
from tests.order.schedules import schedule_of

SHUFFLES = [
    NoShuffle(),
    GlobalShuffle(),
    BlockShuffle(block_records=3, window_blocks=2),
]
STEPS = 40


@st.composite
def runs(draw: Any) -> tuple[Schedule, list[Phase]]:
    """Returns a schedule of some phases, and the phases as they were given."""
    mixed = draw(st.booleans())
    names = ["a", "b", "c"][: draw(st.integers(1, 3))] if mixed else [""]
    settings = {
        "seed": draw(st.integers(-2, 2**70)),
        "shuffle": draw(st.sampled_from(SHUFFLES)),
        "epochs": draw(st.one_of(st.none(), st.integers(20, 30))),
    }
    steps = [0, *sorted(draw(st.sets(st.integers(1, 25), max_size=3)))]
    given: list[Phase] = []
    for number, step in enumerate(steps):
        weights = [draw(st.integers(1, 5)) for _ in names]
        given.append(
            Phase(
                step=step,
                orders=tuple(
                    DatasetOrder(
                        num_records=draw(st.integers(1, 25)), name=name, **settings
                    )
                    for name in names
                ),
                numbers=tuple(number * len(names) + n for n in range(len(names))),
                mixture=Mixture.of(weights) if mixed else None,
                batch_size=draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])),
            )
        )
    schedule = Schedule(phases=tuple(given[:1]), drop_remainder=draw(st.booleans()))
    kept = given[:1]
    for phase in given[1:]:
        try:
            schedule = schedule.then(phase)
        except InputError:  # The batches end before.
            break
        kept.append(phase)
    return schedule, kept


class Epochs:
    """The records of a dataset, dealt one by one, through its editions."""

    def __init__(self) -> None:
        self.begun = self.whole = 0
        self.left: list[int] = []

    def begin(self) -> None:
        self.left = []

    def deal(self, order: DatasetOrder) -> tuple[int, int] | None:
        """Returns the epoch and the record that come next, None after the last."""
        if not self.left:
            if order.epochs is not None and self.whole == order.epochs:
                return None
            places = np.arange(order.num_records)
            self.left = records_of(
                order.shuffle,
                places,
                num_records=order.num_records,
                seed=order.seed,
                epochs=self.begun,
                name=order.name,
            ).tolist()[::-1]
            self.begun += 1
        record = self.left.pop()
        self.whole += not self.left
        return self.begun - 1, record


def simulated(phases: list[Phase]) -> list[list[tuple[int, int, int]]]:
    """Returns dataset, epoch and record of each row of the first steps."""
    epochs = collections.defaultdict(Epochs)
    batches: list[list[tuple[int, int, int]]] = []
    for phase, following in itertools.zip_longest(phases, phases[1:]):
        for one in epochs.values():
            one.begin()
        dealt, _ = phase.dealing.locate(np.arange(STEPS * phase.batch_size))
        turns = iter(dealt.tolist())
        for _ in range(phase.step, following.step if following else STEPS):
            batches.append([])
            for _ in range(phase.batch_size):
                which = next(turns)
                order = phase.orders[which]
                found = epochs[order.name].deal(order)
                if found is None:
                    return batches
                batches[-1].append((phase.numbers[which], *found))
    return batches


def check(schedule: Schedule, phases: list[Phase], hosts: int) -> None:
    """Compares all of a schedule with the simulation."""
    batches = simulated(phases)
    if schedule.steps is not None:
        full = schedule.batch_size(len(batches) - 1)
        if not batches[-1] or (schedule.drop_remainder and len(batches[-1]) < full):
            batches.pop()
        assert min(schedule.steps, STEPS) == len(batches)
    rows = collections.defaultdict(list)
    passed: collections.Counter[int] = collections.Counter()
    for step, batch in enumerate(batches):
        counts: collections.Counter[int] = collections.Counter()
        for number, _, places in schedule.passed(schedule.start(step)):
            counts[number] += places
        assert +counts == passed
        for row, (number, epoch, record) in enumerate(batch):
            rows[number, record].append(Sighting(epoch, step, row))
            passed[number] += 1
            position = schedule.start(step) + row
            assert schedule.find_step(position) == (step, row)
            assert schedule.epoch_at(position) == epoch
        found = schedule.batch(step)
        wanted = [(number, record) for number, _, record in batch]
        assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == wanted
        if len(batch) == schedule.batch_size(step) and len(batch) % hosts == 0:
            of_hosts = [
                schedule.host_rows(host=(h, hosts), step=step) for h in range(hosts)
            ]
            parts = [schedule.batch(step, rows).records for rows in of_hosts]
            assert np.concatenate(parts).tolist() == found.records.tolist()
    last_epochs = 60
    for phase in phases:
        for number, order in zip(phase.numbers, phase.orders, strict=True):
            for record in range(order.num_records):
                found = schedule.find(record, dataset=number, stop_epoch=last_epochs)
                within = [seen for seen in found if seen.step < len(batches)]
                assert within == [
                    one for one in rows[number, record] if one.epoch < last_epochs
                ]


@given(run=runs(), hosts=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_any_phases_are_what_a_simulation_gives(run, hosts) -> None:
    check(*run, hosts)


@pytest.mark.soak
@given(run=runs(), hosts=st.integers(1, 8))
@settings(
    max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
def test_many_phases_are_what_a_simulation_gives(run, hosts) -> None:
    check(*run, hosts)


def phase(step: int, records: int, **options: Any) -> Phase:
    order = DatasetOrder(num_records=records, epochs=options.pop("epochs", None))
    return Phase(step=step, orders=(order,), batch_size=4, **options)


def test_the_rest_of_an_epoch_is_not_seen_and_does_not_count() -> None:
    schedule = Schedule(phases=(phase(0, 10, epochs=2),)).then(phase(1, 8, epochs=2))
    assert schedule.steps == 5  # One, and two epochs of eight records.
    assert {seen.epoch for seen in schedule.find(3)} <= {0, 1, 2}
    with pytest.raises(InputError, match="end before the step"):
        schedule.then(phase(5, 8, epochs=2))


@pytest.mark.parametrize(("step", "end"), [(0, 0), (1, 3), (2, 3), (3, 5), (5, 5)])
def test_an_epoch_ends_with_the_first_step_that_begins_after_it(step, end) -> None:
    schedule = Schedule(phases=(phase(0, 10),))
    assert schedule.end_of_epoch("", step=step) == end


def test_an_epoch_that_does_not_end_ends_with_all_steps() -> None:
    orders = tuple(DatasetOrder(num_records=9, name=name, epochs=2) for name in "ab")
    schedule = schedule_of(orders=orders, mixture=Mixture.of([1, 0]), batch_size=4)
    assert schedule.end_of_epoch("b", step=1) == 1  # None has begun.
    assert schedule.end_of_epoch("a", step=3) == schedule.step_limit


def test_any_step_of_an_endless_schedule_can_be_had():
    order = DatasetOrder(num_records=10**12, seed=1)
    schedule = schedule_of(orders=(order,), batch_size=1024)
    last = POSITION_LIMIT // 1024 - 1
    for step in (0, 10**9, 1 << 52):
        batch = schedule.indices(step)
        epoch = step * 1024 // 10**12
        found = schedule.find(int(batch[0]), first_epoch=epoch, stop_epoch=epoch + 1)
        assert found == [Sighting(epoch, step, 0)]
    assert schedule.indices(last).shape == (1024,)
    with pytest.raises(OutOfRangeError, match="there is no such step"):
        schedule.indices(last + 1)
