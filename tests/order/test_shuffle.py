"""Shuffles: bijections that can be undone."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
)
from gristmill.loader.order.permutation import Permutation
from gristmill.loader.order.shuffle import (
    BlockShuffle,
    GlobalShuffle,
    NoShuffle,
    shuffle_from_state,
)
from tests.order.orders import places_of, records_of

BLOCKS = st.builds(
    BlockShuffle, block_records=st.integers(1, 12), window_blocks=st.integers(1, 9)
)
SHUFFLES = st.one_of(st.just(NoShuffle()), st.just(GlobalShuffle()), BLOCKS)


def block_order_by_lists(shuffle, num_records, seed, epoch, stream):
    """The block shuffle as its documentation tells it, with lists of records."""
    size = min(shuffle.block_records, num_records)
    stored = [
        list(range(start, min(start + size, num_records)))
        for start in range(0, num_records, size)
    ]
    blocks = Permutation(len(stored), seed=seed, name=f"block/blocks/{stream}")
    slots = [stored[b] for b in places_of(blocks, range(len(stored)), epoch=epoch)]
    order = []
    windows = -(-len(slots) // shuffle.window_blocks)
    for window, chosen in enumerate(np.array_split(np.arange(len(slots)), windows)):
        records = [record for slot in chosen for record in slots[slot]]
        name = f"block/window/{stream}"
        order_of = Permutation(len(records), seed=seed, name=name)
        mixed = places_of(order_of, range(len(records)), epoch=epoch, lane=window)
        order += [records[i] for i in mixed]
    return order


@given(
    shuffle=BLOCKS,
    num_records=st.integers(1, 150),
    seed=st.integers(-5, 5),
    epoch=st.integers(0, 5),
)
@settings(max_examples=100)
def test_block_equals_permuted_lists(shuffle, num_records, seed, epoch):
    order = records_of(
        shuffle,
        np.arange(num_records),
        num_records=num_records,
        seed=seed,
        epochs=epoch,
        name="s",
    )
    expected = block_order_by_lists(shuffle, num_records, seed, epoch, "s")
    assert order.tolist() == expected


@given(
    shuffle=SHUFFLES,
    num_records=st.integers(1, 400),
    seed=st.integers(),
    epochs=st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
)
@settings(max_examples=100)
def test_an_epoch_is_a_bijection_and_positions_undo_it(
    shuffle, num_records, seed, epochs
):
    # All epochs in one call: the epoch is a property of each position.
    place = np.tile(np.arange(num_records), len(epochs))
    epoch = np.repeat(epochs, num_records)
    how = {"num_records": num_records, "seed": seed, "epochs": epoch}
    records = records_of(shuffle, place, **how)
    assert records.dtype == np.int64
    for row in records.reshape(len(epochs), num_records):
        assert np.array_equal(np.sort(row), np.arange(num_records))
    assert np.array_equal(records_of(shuffle, records, **how, inverse=True), place)


@pytest.mark.parametrize("shuffle", [GlobalShuffle(), BlockShuffle(block_records=4)])
def test_seed_epoch_and_name_each_change_the_order(shuffle):
    def order(**change):
        how = {"num_records": 100, "seed": 1, "epochs": 1, "name": "a"} | change
        return tuple(records_of(shuffle, np.arange(100), **how).tolist())

    changed = [
        order(),
        order(seed=2, epochs=0),
        order(seed=2),
        order(epochs=0),
        order(name="b"),
    ]
    assert len(set(changed)) == len(changed)


def test_state_of_another_version_is_refused():
    for shuffle in (GlobalShuffle(), BlockShuffle()):
        state = shuffle.to_state() | {"permutation_version": 2}
        with pytest.raises(FormatVersionError, match="cannot be continued"):
            shuffle_from_state(state)
    with pytest.raises(FormatVersionError):
        shuffle_from_state(BlockShuffle().to_state() | {"version": 2})


@pytest.mark.parametrize("field", ["block_records", "window_blocks"])
def test_impossible_blocks_are_refused(field):
    for value in (0, -1, 1.5):
        with pytest.raises(InputError, match=field):
            dataclasses.replace(BlockShuffle(), **{field: value})
