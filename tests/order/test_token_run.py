"""Tokens of a run, against what its steps hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder, Phase, Schedule
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle
from gristmill.loader.order.token_run import (
    HeldTokens,
    run_of_steps,
    run_of_tokens,
)
from tests.support.schedules import schedule_of


def held(rows: int, tokens: int) -> HeldTokens:
    """Rows that have as many tokens each."""
    return HeldTokens(rows, rows * tokens, rows * (tokens - 1))


def counted(schedule: Schedule, each, steps: int) -> tuple[list[int], int]:
    """The tokens of each dataset in the first steps, row by row, and all rows."""
    tokens, rows = [0] * len(each), 0
    for step in range(steps):
        for number in schedule.batch(step).datasets.tolist():
            tokens[number] += each[number]
            rows += 1
    return tokens, rows


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_tokens_are_those_of_the_rows_of_the_steps(data: st.DataObject) -> None:
    draw = data.draw
    small, each = st.integers(1, 30), st.integers(1, 2048)
    shuffle = draw(st.sampled_from([GlobalShuffle(), BlockShuffle(block_records=4)]))
    # All rows of a dataset are alike, so that mean rows are the rows themselves.
    count = draw(st.integers(1, 3))
    lengths = [draw(small) for _ in range(2 * count)]
    tokens_of = [draw(each) for _ in lengths]

    def phase(step: int, first: int) -> Phase:
        return Phase(
            step=step,
            orders=tuple(
                DatasetOrder(num_records=length, shuffle=shuffle, name=str(number))
                for number, length in enumerate(lengths[first : first + count])
            ),
            numbers=tuple(range(first, first + count)),
            mixture=Mixture.of([draw(st.integers(1, 9)) for _ in range(count)]),
            batch_size=draw(st.integers(1, 9)),
        )

    schedule = Schedule(phases=(phase(0, 0),)).then(
        phase(draw(st.integers(1, 12)), count)
    )
    known = [held(*one) for one in zip(lengths, tokens_of, strict=True)]
    steps = draw(st.integers(0, 20))
    tokens, rows = counted(schedule, tokens_of, steps)
    found = run_of_steps(schedule, known, steps=steps)
    assert (found.rows, found.tokens_of, found.tokens) == (
        rows,
        tuple(tokens),
        sum(tokens),
    )
    assert run_of_tokens(schedule, known, tokens=sum(tokens)) == found
    if steps:
        one_more = run_of_tokens(schedule, known, tokens=sum(tokens) + 1)
        assert one_more.steps == steps + 1


def test_a_run_without_an_end_has_any_number_of_tokens() -> None:
    orders = tuple(
        DatasetOrder(num_records=10**9 + number, name=str(number))
        for number in range(10)
    )
    schedule = schedule_of(
        orders=orders, mixture=Mixture.of(range(1, 11)), batch_size=1_024
    )
    known = [
        HeldTokens(10**9 + number, 2_048 * 10**9, 2 * 10**12) for number in range(10)
    ]
    run = run_of_tokens(schedule, known, tokens=10**15)
    before = run_of_steps(schedule, known, steps=run.steps - 1)
    assert before.tokens < 10**15 <= run.tokens < 10**15 + 2_048 * 1_024
    assert run.epochs[9] / run.epochs[0] == pytest.approx(10)
