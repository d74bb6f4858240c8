"""Numbers that are left out: against lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import NOTHING, Removed


@given(st.sets(st.integers(0, 30)))
@settings(max_examples=50, deadline=None)
def test_what_is_left_closes_up_and_opens_again(gone):
    removed = Removed(list(gone))
    left = np.array([number for number in range(40) if number not in gone])
    assert removed.numbers.tolist() == sorted(gone)
    assert removed.closed(left).tolist() == list(range(len(left)))
    assert removed.opened(np.arange(len(left))).tolist() == left.tolist()
    assert removed.has(np.arange(40)).tolist() == [n in gone for n in range(40)]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
@settings(max_examples=20, deadline=None)
def test_equal_numbers_are_equal(one, other):
    first, second = Removed(list(one)), Removed(sorted(other))
    assert (first == second) == (one == other)
    assert (first.digest == second.digest) == (one == other)
    assert first != sorted(one)
    joined = first.joined(np.array(sorted(other - one), np.int64))
    assert joined == Removed(sorted(one | other))
    assert hash(joined) == hash(Removed(sorted(one | other)))


def test_golden_digest():
    assert NOTHING.digest == "e3b0c44298fc1c149afbf4c8996fb924"
    assert Removed([7, 3]).digest == "761b59d486d929d4d242938b94eeae7e"
    assert repr(Removed(range(1000))) == "<1,000 removed>"


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([1, 2, 1], "removed twice"),
        ([[1, 2]], "must be a list"),
        ([-1], "out of range"),
        ([0.5], "must be an integer"),
    ],
)
def test_what_cannot_be_removed(numbers, message):
    with pytest.raises(InputError if "range" not in message else IndexError) as e:
        Removed(numbers)
    assert message in str(e.value)
