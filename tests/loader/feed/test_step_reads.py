"""Steps read together are those of the schedule, with the same errors."""

import dataclasses
import functools
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DecodeError,
    OutOfRangeError,
)
from gristmill.loader.feed.step_reads import BatchesAhead, StepReads
from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.schedules import schedule_of

_RECORDS = 99


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> str:
    files = [text_records(40, seed=1), text_records(59, seed=2)]
    return convert(tmp_path_factory.mktemp("data"), files)


@pytest.fixture(scope="module")
def damaged(good, tmp_path_factory) -> str:
    """The same, but for some bytes of a record."""
    copy = str(tmp_path_factory.mktemp("damaged") / "data")
    shutil.copytree(good, copy)
    dataset = loader.open(copy)
    shards, _ = dataset.find([70])
    path = pathlib.Path(dataset.shard(int(shards[0])).path)
    data = bytearray(path.read_bytes())
    at = dataset.offset_bytes(70) + 60
    data[at : at + 8] = bytes(byte ^ 0xFF for byte in data[at : at + 8])
    path.write_bytes(data)
    return copy


def fail_at(bad: bytes, records: list[bytes]) -> list[int]:
    if bad in records:
        raise DecodeError("no good", row=records.index(bad))
    return [len(record) for record in records]


@pytest.mark.slow
@given(
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    start=st.integers(0, 3),
    every=st.integers(1, 3),
    mixed=st.booleans(),
    shuffle=st.sampled_from(["global", "none"]),
    bad=st.none() | st.integers(0, _RECORDS - 1),
    is_damaged=st.booleans(),
    hosts=st.sampled_from([1, 3]),
)
def test_however_steps_are_put_together_batches_and_the_error_are_the_same(
    good, damaged, cuts, start, every, mixed, shuffle, bad, is_damaged, hosts
) -> None:
    dataset = loader.open(damaged if is_damaged else good)
    parts = {"a": dataset, "b": loader.open(good)} if mixed else dataset
    batches = loader.global_batches(
        parts,
        batch_size=6,
        seed=3,
        epochs=1,
        shuffle=shuffle,
        drop_remainder=False,
        **({"weights": {"a": 2, "b": 1}} if mixed else {}),
    )
    decode = None
    if bad is not None:
        decode = functools.partial(fail_at, loader.open(good)[bad])
    options = {"rows": slice(0, 6 // hosts), "decode": decode}
    expected, error = [], None
    alone = StepReads(batches, **options)
    for step in range(start, batches.steps, every):
        read = alone.read([step])
        expected += read.batches
        error = read.error
        if error is not None:
            break
    reads = StepReads(batches, **options, in_turn=range(start, batches.steps, every))
    got, found, left = [], None, list(range(start, batches.steps, every))
    for number in range(len(left)):
        count = cuts[number % len(cuts)]
        if not left or found is not None:
            break
        read = reads.read(left[:count])
        assert len(read.batches) == len(left[:count]) or read.error is not None
        got += read.batches
        found, left = read.error, left[count:]
    names = ("step", "batch", "records", "record_bytes")
    for one, other in zip(got, expected, strict=True):
        for name in names:
            assert getattr(one, name) == getattr(other, name)
        assert one.read_seconds > 0
    assert type(found) is type(error)
    if error is not None:
        assert isinstance(error, CorruptShardError | DecodeError)
        assert str(found) == str(error)
        assert found.__notes__ == error.__notes__
        step = start + len(expected) * every
        assert found.__notes__[0] == f"in the batch of step {step:,}"


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
    schedule = schedule_of(
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
    schedule = schedule_of(orders=(DatasetOrder(num_records=100),), batch_size=10)
    rows = np.array([7, 2, 9])
    ahead = BatchesAhead(schedule, rows)
    for step in (0, 3, 12, 11):
        found = ahead.batch(step).records
        assert found.tolist() == schedule.batch(step, rows).records.tolist()


def test_an_interrupt_while_steps_are_read_ends_the_pass(good) -> None:
    dataset = loader.open(good)
    batches = loader.global_batches(dataset, batch_size=6)
    calls = []

    class Interrupted:
        read_options = None

        def __getattr__(self, name: str) -> Any:
            return getattr(dataset, name)

        def read_unchecked(self, *_: Any, **__: Any) -> Any:
            calls.append(1)
            raise KeyboardInterrupt

    interrupted = dataclasses.replace(batches, datasets=(Interrupted(),))
    reads = StepReads(interrupted, rows=slice(0, 6), decode=None)
    found = reads.read([0, 1, 2])
    assert isinstance(found.error, KeyboardInterrupt)
    assert (found.batches, len(calls)) == ([], 1)
