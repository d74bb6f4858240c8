"""Indices worked out ahead are those of the schedule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.errors import OutOfRangeError
from gristmill.loader.feed import indices_ahead
from gristmill.loader.feed.indices_ahead import IndicesAhead
from gristmill.loader.order.epochs import RecordStream
from gristmill.loader.order.schedule import Schedule
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle


@given(
    num_records=st.integers(1, 60),
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
def test_they_are_the_schedule_s(
    num_records, epochs, batch_size, shuffle, drop_remainder, rows, asked, at_once
) -> None:
    stream = RecordStream(num_records=num_records, shuffle=shuffle, epochs=epochs)
    schedule = Schedule(
        stream=stream, batch_size=batch_size, drop_remainder=drop_remainder
    )
    before = indices_ahead._ROWS_AT_ONCE
    indices_ahead._ROWS_AT_ONCE = at_once
    try:
        ahead = IndicesAhead(schedule, rows)
    finally:
        indices_ahead._ROWS_AT_ONCE = before
    for step in [*asked, *range(12)]:
        try:
            expected = schedule.indices(step, rows)
        except OutOfRangeError:
            with pytest.raises(OutOfRangeError):
                ahead.indices(step)
            continue
        got = ahead.indices(step)
        assert got.dtype == np.int64
        assert got.tolist() == expected.tolist()


def test_rows_by_their_numbers() -> None:
    schedule = Schedule(stream=RecordStream(num_records=100), batch_size=10)
    rows = np.array([7, 2, 9])
    ahead = IndicesAhead(schedule, rows)
    for step in (0, 3, 12, 11):
        assert ahead.indices(step).tolist() == schedule.indices(step, rows).tolist()


def test_the_shuffle_is_asked_once_for_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = RecordStream(num_records=10_000)
    asked = []
    records = RecordStream.records

    def counted(self, positions):
        asked.append(len(positions))
        return records(self, positions)

    monkeypatch.setattr(RecordStream, "records", counted)
    ahead = IndicesAhead(Schedule(stream=stream, batch_size=1024), slice(0, 512))
    for step in range(32):
        ahead.indices(step)
    assert asked == [8192, 8192]
