"""Steps read together are those of the schedule, with the same errors."""

import functools
import pathlib
import shutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DecodeError,
)
from gristmill.loader.feed.step_reads import StepReads
from tests.support.datasets import convert
from tests.support.records import text_records

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
    at = dataset.stored.offset_bytes(70) + 60
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


def test_an_interrupt_while_steps_are_read_ends_the_pass(good) -> None:
    dataset = loader.open(good)
    batches = loader.global_batches(dataset, batch_size=6)
    calls = []

    def interrupted(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise KeyboardInterrupt

    vars(dataset.stored)["read"] = interrupted
    reads = StepReads(batches, rows=slice(0, 6), decode=None)
    found = reads.read([0, 1, 2])
    assert isinstance(found.error, KeyboardInterrupt)
    assert (found.batches, len(calls)) == ([], 1)
