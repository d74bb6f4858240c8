import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.loader.order.batch_sizes import (
    BatchSizes,
    Resize,
    host_rows,
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


@pytest.mark.parametrize(
    ("rows", "hosts", "sizes", "counts"),
    [
        (1024, 48, [1008, 1056], [32, 64]),
        (7, 2, [6, 8], [1, 7]),
        (2, 3, [3], [2]),
        (1, 4, [4], [1]),
    ],
)
def test_hosts_that_do_not_divide_the_batch_are_told_what_does(
    rows, hosts, sizes, counts
):
    with pytest.raises(InputError, match="does not divide among the hosts") as refused:
        host_rows(rows, process_index=0, process_count=hosts)
    offered = refused.value.cure.replace(",", "").partition(" or run ")
    assert [int(word) for word in offered[0].split() if word.isdigit()] == sizes
    assert [int(word) for word in offered[2].split() if word.isdigit()] == counts
    # All that it offers works.
    for size, count in [(size, hosts) for size in sizes] + [(rows, n) for n in counts]:
        taken = host_rows(size, process_index=count - 1, process_count=count)
        assert taken.stop == size
