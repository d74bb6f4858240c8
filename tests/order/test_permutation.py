import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import chdtrc

from gristmill.loader.base.indices import POSITION_LIMIT as MAX_SIZE
from gristmill.loader.order.permutation import (
    Permutation,
)
from tests.conformance import plain_order
from tests.order.orders import places_of

# 2^k + 1 with even k is where shuffles that round the domain to even bits fail.
SIZES = st.one_of(
    st.integers(1, 300),
    st.integers(1, MAX_SIZE),
    st.builds(
        lambda k, d: min(max((1 << k) + d, 1), MAX_SIZE),
        st.integers(0, 63),
        st.integers(-1, 1),
    ),
)


def p_value(counts: np.ndarray) -> float:
    """Of the chi-square test that all cells are equally likely."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return float(chdtrc(counts.size - 1, statistic))


def orders(size: int, count: int, *, seed: int = 7) -> np.ndarray:
    """The orders of `count` epochs, int64 [count, size]."""
    epochs = np.broadcast_to(np.arange(count)[:, None], (count, size))
    indices = np.broadcast_to(np.arange(size), (count, size))
    return places_of(Permutation(size, seed=seed), indices, epoch=epochs)


@given(
    size=SIZES,
    seed=st.integers(),
    epoch=st.integers(0, MAX_SIZE - 1),
    lane=st.integers(0, MAX_SIZE - 1),
    data=st.data(),
)
@settings(max_examples=100)
def test_the_inverse_undoes(size, seed, epoch, lane, data):
    near_the_ends = st.integers(0, min(9, size - 1)).map(lambda i: size - 1 - i)
    index = st.one_of(st.integers(0, size - 1), near_the_ends)
    indices = np.array(data.draw(st.lists(index, min_size=1, max_size=20)))
    order = Permutation(size, seed=seed)
    mapped = places_of(order, indices, epoch=epoch, lane=lane)
    assert mapped.dtype == np.int64
    assert mapped.min() >= 0
    assert int(mapped.max()) < size
    back = places_of(order, mapped, epoch=epoch, lane=lane, inverse=True)
    assert np.array_equal(back, indices)
    forth = places_of(
        order,
        places_of(order, indices, epoch=epoch, lane=lane, inverse=True),
        epoch=epoch,
        lane=lane,
    )
    assert np.array_equal(forth, indices)


@given(
    size=SIZES,
    seed=st.integers(),
    name=st.text(max_size=5),
    epoch=st.integers(0, MAX_SIZE - 1),
    lane=st.integers(0, MAX_SIZE - 1),
    data=st.data(),
)
def test_numpy_computes_what_plain_integers_do(size, seed, name, epoch, lane, data):
    index = data.draw(st.integers(0, size - 1))
    got = places_of(
        Permutation(size, seed=seed, name=name), index, epoch=epoch, lane=lane
    )
    expected = plain_order.Permutation(size, seed, name, epoch, lane)
    assert int(got) == expected.at(index)


@pytest.mark.parametrize(
    ("size", "count"), [(2, 40_000), (3, 40_000), (4, 60_000), (5, 60_000), (6, 80_000)]
)
def test_all_orders_of_a_few_indices_are_equally_likely(size, count):
    drawn = orders(size, count)
    number = np.zeros(count, dtype=np.int64)
    for i in range(size):  # Lehmer's code
        number = number * (size - i) + (drawn[:, i + 1 :] < drawn[:, i : i + 1]).sum(1)
    counts = np.bincount(number, minlength=math.factorial(size))
    assert p_value(counts) > 1e-4


@pytest.mark.parametrize("size", [65_537, 10**6, 10**12, MAX_SIZE])
def test_positions_and_neighbours_are_uniform_in_one_order(size):
    count = min(size, 200_000)
    mapped = places_of(Permutation(size, seed=11), np.arange(count)).astype(np.float64)
    cells = 64
    if count < size:  # else every cell is full by bijection
        assert p_value(np.bincount((mapped / size * cells).astype(int))) > 1e-5
    else:
        half = mapped[: size // 2]
        counts = np.bincount((half / size * cells).astype(int), minlength=cells)
        assert p_value(counts) > 1e-5
    for distance in (1, 2, 256):
        steps = (mapped[distance:] - mapped[:-distance]) % size
        assert p_value(np.bincount((steps / size * cells).astype(int))) > 1e-5
        correlation = np.corrcoef(mapped[distance:], mapped[:-distance])[0, 1]
        assert abs(correlation) < 5 / math.sqrt(count)
