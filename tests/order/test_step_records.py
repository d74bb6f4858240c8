import pytest

from gristmill.dataset.base.errors import OutOfRangeError
from gristmill.loader.base.indices import POSITION_LIMIT
from gristmill.loader.order.schedule import DatasetOrder, Sighting
from tests.support.schedules import schedule_of


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


def test_steps_that_are_none_are_refused():
    schedule = schedule_of(
        orders=(DatasetOrder(num_records=10, epochs=1),), batch_size=4
    )
    for step in (-1, 2):
        with pytest.raises(OutOfRangeError, match="0 <= step < 2"):
            schedule.indices(step)
