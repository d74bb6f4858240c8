import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.loader.order.batch_sizes import (
    BatchSizes,
    Resize,
    nearest_divisors,
)


@given(
    first=st.integers(1, 20),
    resizes=st.dictionaries(st.integers(1, 30), st.integers(1, 20), max_size=6),
)
def test_every_position_is_in_one_step_and_one_row(first, resizes):
    sizes = BatchSizes(first, [Resize(*one) for one in sorted(resizes.items())])
    size, position = first, 0
    for step in range(40):
        size = resizes.get(step, size)
        assert (sizes.size(step), sizes.start(step)) == (size, position)
        for row in range(size):
            assert sizes.find(position + row) == (step, row)
        position += size
        later = [resizes[s] for s in sorted(resizes) if s > step]
        assert sizes.from_step(step) == [size, *later]


def test_sizes_that_do_not_follow_one_another_are_refused():
    for steps in ([0], [-1], [5, 5], [5, 4], [1 << 62]):
        with pytest.raises(InputError, match="do not follow one another"):
            BatchSizes(4, [Resize(step, 8) for step in steps])


@given(number=st.integers(1, 3_000), near=st.integers(2, 4_000))
def test_nearest_divisors(number, near):
    if number % near == 0:
        return
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = max(n for n in divisors if n < near)
    above = [n for n in divisors if n > near]
    assert nearest_divisors(number, near) == [below, *above[:1]]
