"""The batches for Tunix, as its trainer asks for them.

Tunix is not installed here; tests/with_maxtext runs its trainer on the example.
"""

from __future__ import annotations

import pathlib
from types import SimpleNamespace

import numpy as np
import pytest

from examples.tunix_batches import TunixBatches, model_input
from gristmill import loader
from tests.rows.packed_shards import conversations, supervised_dataset

LENGTH = 32


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: pathlib.Path = tmp_path_factory.mktemp("tunix")
    return supervised_dataset(folder / "rows", [conversations(60, seed=1)], length=32)


def given(rows: str, step: int, count: int) -> list[dict[str, np.ndarray]]:
    with TunixBatches(rows, batch_size=4, seed=7) as batches:
        trainer = SimpleNamespace(iter_steps=step)
        return [batches.load_next_train_batch(trainer) for _ in range(count)]


def test_a_trainer_goes_on_with_the_batch_of_its_step(rows: str) -> None:
    whole = given(rows, 0, 8)
    for mine, theirs in zip(given(rows, 5, 3), whole[5:], strict=True):
        assert mine.keys() == theirs.keys()
        for name, array in theirs.items():
            np.testing.assert_array_equal(mine[name], array)


@pytest.mark.slow
def test_masks_are_those_of_the_rows(rows: str) -> None:
    opened = loader.open(rows)
    batches = loader.global_batches(opened, batch_size=4, seed=7, epochs=None)
    expected = loader.PackedRows.of(opened)(batches.read(0))
    (batch,) = given(rows, 0, 1)
    fields = model_input(batch)
    assert {*fields} == {"input_tokens", "input_mask", "positions", "attention_mask"}
    # Tunix counts token t, by the logits of t - 1.
    mask = np.asarray(fields["input_mask"])
    trained = expected["targets_segmentation"] > 0
    np.testing.assert_array_equal(mask[:, 1:] > 0, trained[:, :-1])
    assert not mask[:, 0].any()
    seen = np.asarray(fields["attention_mask"])
    segments = expected["inputs_segmentation"]
    for row in range(4):
        for at in range(LENGTH):
            own = [
                before
                for before in range(at + 1)
                if segments[row, before] == segments[row, at]
            ]
            assert np.flatnonzero(seen[row, at]).tolist() == own


def test_the_data_end(rows: str) -> None:
    with TunixBatches(rows, batch_size=4, epochs=1) as batches:
        trainer = SimpleNamespace(iter_steps=0)
        count = 0
        while batches.load_next_train_batch(trainer) is not None:
            count += 1
        assert count == batches.batches.steps
        assert batches.load_next_eval_batch(trainer) is None
