import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError, OutOfRangeError
from gristmill.loader.base.indices import POSITION_LIMIT
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder, Sighting
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
from tests.support.orders import records_of
from tests.support.schedules import schedule_of

SHUFFLES = st.sampled_from(
    [NoShuffle(), GlobalShuffle(), BlockShuffle(block_records=3, window_blocks=4)]
)


@st.composite
def schedules(draw, *, endless=False):
    order = DatasetOrder(
        num_records=draw(st.integers(1, 40)),
        seed=draw(st.integers(-3, 3)),
        shuffle=draw(SHUFFLES),
        epochs=None if endless else draw(st.integers(1, 4)),
    )
    return schedule_of(
        orders=(order,),
        batch_size=draw(st.integers(1, 50)),
        drop_remainder=draw(st.booleans()),
    )


def seen_in_order(schedule, epochs):
    """The records of some epochs, epoch by epoch."""
    order = schedule.phases[0].orders[0]
    return [
        record
        for epoch in range(epochs)
        for record in records_of(
            order.shuffle,
            np.arange(order.num_records),
            num_records=order.num_records,
            seed=order.seed,
            epochs=epoch,
        ).tolist()
    ]


@given(schedule=schedules())
@settings(max_examples=100)
def test_steps_are_the_epochs_cut_into_batches(schedule):
    records = seen_in_order(schedule, schedule.phases[0].orders[0].epochs)
    size = schedule.batch_size(0)
    cut = [records[i : i + size] for i in range(0, len(records), size)]
    if schedule.drop_remainder and len(cut[-1]) < size:
        cut.pop()
    assert schedule.steps == len(cut)
    assert [schedule.indices(step).tolist() for step in range(len(cut))] == cut


@pytest.mark.slow
@given(schedule=schedules(endless=True))
def test_a_schedule_without_end_goes_on(schedule):
    assert schedule.steps is None
    size = schedule.batch_size(0)
    epochs = -(-5 * size // schedule.phases[0].orders[0].num_records)
    records = seen_in_order(schedule, epochs)
    for step in range(5):
        got = schedule.indices(step).tolist()
        assert got == records[step * size : (step + 1) * size]


@given(schedule=schedules(), process_count=st.integers(1, 4))
def test_hosts_together_have_every_row_once(schedule, process_count):
    if schedule.batch_size(0) % process_count:
        with pytest.raises(InputError, match="does not divide among the hosts"):
            schedule.host_rows(host=(0, process_count))
        return
    rows = [
        schedule.host_rows(host=(index, process_count))
        for index in range(process_count)
    ]
    assert {part.stop - part.start for part in rows} == {
        schedule.batch_size(0) // process_count
    }
    for step in range(schedule.steps):
        batch = schedule.indices(step)
        joined = np.concatenate([batch[part] for part in rows])
        assert np.array_equal(joined, batch)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("process_count", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [NoShuffle(), GlobalShuffle(), BlockShuffle()])
def test_every_record_once_an_epoch_over_all_hosts(process_count, shuffle):
    order = DatasetOrder(num_records=1_003, seed=9, shuffle=shuffle, epochs=3)
    schedule = schedule_of(orders=(order,), batch_size=24, drop_remainder=False)
    count = collections.Counter()
    for index in range(process_count):
        rows = schedule.host_rows(host=(index, process_count))
        for step in range(schedule.steps):
            count.update(schedule.indices(step)[rows].tolist())
    assert count == dict.fromkeys(range(1_003), 3)


@given(schedule=schedules(), data=st.data())
def test_find_tells_all_places_of_a_record(schedule, data):
    record = data.draw(st.integers(0, schedule.phases[0].orders[0].num_records - 1))
    size, count = schedule.batch_size(0), schedule.phases[0].orders[0].num_records
    expected = [
        Sighting((step * size + row) // count, step, row)
        for step in range(schedule.steps)
        for row, seen in enumerate(schedule.indices(step).tolist())
        if seen == record
    ]
    assert schedule.find(record) == expected
    later = [sighting for sighting in expected if 1 <= sighting.epoch < 3]
    assert schedule.find(record, first_epoch=1, stop_epoch=3) == later


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


def test_only_the_end_of_all_epochs_is_dropped():
    def steps(drop_remainder, epochs):
        order = DatasetOrder(num_records=10, epochs=epochs)
        return schedule_of(
            orders=(order,), batch_size=4, drop_remainder=drop_remainder
        ).steps

    assert [steps(True, epochs) for epochs in (1, 2, 3)] == [2, 5, 7]
    assert [steps(False, epochs) for epochs in (1, 2, 3)] == [3, 5, 8]


def test_steps_that_are_none_are_refused():
    schedule = schedule_of(
        orders=(DatasetOrder(num_records=10, epochs=1),), batch_size=4
    )
    for step in (-1, 2):
        with pytest.raises(OutOfRangeError, match="0 <= step < 2"):
            schedule.indices(step)


def test_one_dataset_is_a_mixture_of_one():
    order = DatasetOrder(num_records=10, epochs=3, name="a")
    alone = schedule_of(orders=(order,), batch_size=4)
    mixed = schedule_of(orders=(order,), mixture=Mixture.of([7]), batch_size=4)
    assert (alone.steps, alone.stop) == (mixed.steps, mixed.stop)
    for step in range(alone.steps):
        datasets, records = mixed.indices(step)
        assert datasets.tolist() == [0] * 4
        assert records.tolist() == alone.indices(step).tolist()
    assert alone.find(3) == mixed.find(3)
