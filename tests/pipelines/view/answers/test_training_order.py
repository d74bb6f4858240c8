"""Measures of orders, compared with counting."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.answers import training_order
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened


@pytest.mark.parametrize("shuffle", ["global", "none"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_the_displacement_is_that_of_the_epoch(opened, shuffle: str, epoch: int):
    dataset = opened.datasets[""]
    batches = loader.global_batches(dataset, batch_size=8, seed=5, shuffle=shuffle)
    found = ask(Opened({"": dataset}, batches), f"api/quality?epoch={epoch}")
    rows = [r for step in range(14 * (epoch + 1)) for r in batches.indices(step)]
    records = rows[100 * epoch : 100 * (epoch + 1)]
    assert (found["exact"], found["records"]) == (True, 100)
    moved = np.mean([abs(record - place) for place, record in enumerate(records)]) / 100
    assert found["quality"]["displacement"] == pytest.approx(moved)
    assert (moved == 0) == (shuffle == "none")
    assert found["uniform"]["displacement"] == pytest.approx(1 / 3)


def test_a_sample_measures_what_all_would(opened, monkeypatch) -> None:
    dataset = opened.datasets[""]
    for shuffle in ("global", "none"):
        batches = loader.global_batches(dataset, batch_size=8, seed=5, shuffle=shuffle)
        whole = ask(Opened({"": dataset}, batches), "api/quality")
        with monkeypatch.context() as patch:
            patch.setattr(training_order, "_EXACT_RECORDS", 64)
            found = ask(Opened({"": dataset}, batches), "api/quality")
        assert not found["exact"]
        assert found["sampled_batches"] == 8
        for name, value in whole["quality"].items():
            # Some of the 100 records.
            assert found["quality"][name] == pytest.approx(value, abs=0.3)


def test_an_epoch_that_is_not_there(opened) -> None:
    batches = loader.global_batches(opened.datasets[""], batch_size=8, epochs=2)
    limited = Opened(opened.datasets, batches)
    assert ask(limited, "api/quality?epoch=1")["quality"]
    with pytest.raises(InputError, match="no such epoch"):
        ask(limited, "api/quality?epoch=2")
