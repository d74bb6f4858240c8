"""Tokens of a run, against what its steps hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.loader.data.dataset import Content, GoneDataset


def records(count: int) -> loader.Dataset:
    """A dataset of which only the length matters."""
    return GoneDataset("nowhere", Content(None, count, None, ""))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_tokens_are_those_of_the_rows_of_the_steps(data: st.DataObject) -> None:
    draw, weight = data.draw, st.integers(1, 9)
    shuffle = draw(st.sampled_from(["global", loader.BlockShuffle(block_records=4)]))
    names = [str(number) for number in range(draw(st.integers(1, 3)))]
    # All rows of a dataset are alike, so that mean rows are the rows themselves.
    each = {name: draw(st.integers(1, 2048)) for name in names}

    def phase() -> dict:
        return {
            "datasets": {name: records(draw(st.integers(1, 30))) for name in names},
            "weights": {name: draw(weight) for name in names},
            "batch_size": draw(weight),
        }

    batches = loader.global_batches(**phase(), shuffle=shuffle)
    batches = batches.then(**phase(), step=draw(st.integers(1, 12)))
    steps, seen = draw(st.integers(0, 20)), np.zeros(2 * len(names), int)
    for step in range(steps):
        np.add.at(seen, batches.indices(step).datasets, 1)
    tokens = [n * each[name] for n, name in zip(seen, batches.names, strict=True)]
    found = loader.token_run(batches, steps=steps, tokens_per_row=each)
    assert (found.rows, [*found.tokens_of]) == (seen.sum(), tokens)
    assert found.tokens == sum(tokens)
    assert loader.token_run(batches, tokens=sum(tokens), tokens_per_row=each) == found
    if steps:
        more = loader.token_run(batches, tokens=sum(tokens) + 1, tokens_per_row=each)
        assert more.steps == steps + 1


def test_a_run_without_an_end_has_any_number_of_tokens() -> None:
    datasets = {str(number): records(10**9 + number) for number in range(10)}
    weights = {name: int(name) + 1 for name in datasets}
    batches = loader.global_batches(datasets, weights=weights, batch_size=1_024)
    run = loader.token_run(batches, tokens=10**15, tokens_per_row=2_048)
    before = loader.token_run(batches, steps=run.steps - 1, tokens_per_row=2_048)
    assert before.tokens < 10**15 <= run.tokens < 10**15 + 2_048 * 1_024
    assert run.epochs[9] / run.epochs[0] == pytest.approx(10)
