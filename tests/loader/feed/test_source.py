"""Batches computed ahead are those of the schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.errors import OutOfRangeError
from gristmill.loader.feed.source import BatchesAhead
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import Schedule
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    epochs=st.sampled_from([1, 3, None]),
    batch_size=st.integers(1, 25),
    shuffle=st.sampled_from(
        [GlobalShuffle(), NoShuffle(), BlockShuffle(block_records=4, window_blocks=3)]
    ),
    drop_remainder=st.booleans(),
    rows=st.sampled_from([slice(None), slice(0, 1), slice(3, 7), slice(24, 25)]),
    asked=st.lists(st.integers(0, 40), max_size=40),
    at_once=st.sampled_from([1, 30, 8192]),
)
@settings(max_examples=50, deadline=None)
def test_they_are_the_schedule_s(
    lengths, epochs, batch_size, shuffle, drop_remainder, rows, asked, at_once
) -> None:
    orders = tuple(
        DatasetOrder(num_records=length, shuffle=shuffle, epochs=epochs, name=str(i))
        for i, length in enumerate(lengths)
    )
    schedule = Schedule(
        orders=orders,
        mixture=Mixture.of(lengths) if len(lengths) > 1 else None,
        batch_size=batch_size,
        drop_remainder=drop_remainder,
    )
    ahead = BatchesAhead(schedule, rows, rows_at_once=at_once)
    for step in [*asked, *range(12)]:
        try:
            expected = schedule.batch(step, rows)
        except OutOfRangeError:
            with pytest.raises(OutOfRangeError):
                ahead.batch(step)
            continue
        got = ahead.batch(step)
        for own, theirs in zip(got, expected, strict=True):
            assert own.dtype == np.int64
            assert own.tolist() == theirs.tolist()


def test_rows_by_their_numbers() -> None:
    schedule = Schedule(orders=(DatasetOrder(num_records=100),), batch_size=10)
    rows = np.array([7, 2, 9])
    ahead = BatchesAhead(schedule, rows)
    for step in (0, 3, 12, 11):
        found = ahead.batch(step).records
        assert found.tolist() == schedule.batch(step, rows).records.tolist()


@pytest.mark.parametrize("mixture", [None, Mixture.of([1])])
def test_the_last_steps_below_the_limit_of_positions(mixture) -> None:
    order = DatasetOrder(num_records=100)
    schedule = Schedule(orders=(order,), mixture=mixture, batch_size=8)
    last = schedule.stop // 8 - 1
    for step in (last - 1, last):
        found = BatchesAhead(schedule, slice(None)).batch(step)
        assert found.records.tolist() == schedule.batch(step).records.tolist()
    with pytest.raises(OutOfRangeError):
        BatchesAhead(schedule, slice(None)).batch(last + 1)


def test_the_shuffle_is_asked_once_for_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = DatasetOrder(num_records=10_000)
    asked = []
    records = DatasetOrder.records_unchecked

    def counted(self, positions):
        asked.append(len(positions))
        return records(self, positions)

    monkeypatch.setattr(DatasetOrder, "records_unchecked", counted)
    ahead = BatchesAhead(Schedule(orders=(order,), batch_size=1024), slice(0, 512))
    for step in range(32):
        ahead.batch(step)
    assert asked == [8192, 8192]
