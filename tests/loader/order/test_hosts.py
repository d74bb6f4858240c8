from hypothesis import given
from hypothesis import strategies as st

from gristmill.loader.order.hosts import nearest_divisors


@given(number=st.integers(1, 3_000), near=st.integers(2, 4_000))
def test_nearest_divisors(number, near):
    if number % near == 0:
        return
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = max(n for n in divisors if n < near)
    above = [n for n in divisors if n > near]
    assert nearest_divisors(number, near) == [below, *above[:1]]
