"""Which cases of a test always run: few, and each value of each parameter in one."""

import itertools

import hypothesis
from hypothesis import strategies as st

from tests.shares import always


@hypothesis.given(
    st.lists(st.integers(2, 5), min_size=2, max_size=3), st.integers(1, 9)
)
def test_every_value_of_several_lists_is_in_one(sizes, every):
    cases = [
        {str(name): index for name, index in enumerate(indices)}
        for indices in itertools.product(*map(range, sizes))
    ]
    kept = always(cases, every)
    for name, size in enumerate(sizes):
        assert {cases[number][str(name)] for number in kept} == set(range(size))
    assert len(cases) / every <= len(kept) <= len(cases) / every + sum(sizes)
