"""How orders spread, compared with counting.

Covers: pipelines/view/answers/spread.py.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.errors import InputError
from gristmill.pipelines.view.answers import spread as spread_module
from gristmill.pipelines.view.answers.ask import ask
from gristmill.pipelines.view.answers.opened import Opened
from gristmill.pipelines.view.answers.spread import uniform_shards
from tests.pipelines.view.conftest import FILES


@pytest.mark.parametrize("shuffle", ["global", "none"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_points_are_rows_of_the_epoch(opened, shuffle: str, epoch: int) -> None:
    dataset = opened.datasets[""]
    batches = loader.global_batches(dataset, batch_size=8, seed=5, shuffle=shuffle)
    found = ask(Opened({"": dataset}, batches), f"api/spread?epoch={epoch}")
    wanted = []
    for step in range(14 * (epoch + 1)):
        for row, record in enumerate(batches.indices(step).tolist()):
            if 100 * epoch <= 8 * step + row < 100 * (epoch + 1):
                wanted.append([step, record])
    assert found["points"] == wanted
    assert found["exact"]
    ends = np.cumsum(FILES)
    records = [record for _, record in wanted]
    drawn = [
        len({*np.searchsorted(ends, records[at : at + 8], "right").tolist()})
        for at in range(0, 96, 8)
    ]
    shards = found["shards_a_batch"]
    assert (shards["min"], shards["max"]) == (min(drawn), max(drawn))
    assert shards["median"] == np.median(drawn)
    moved = np.mean([abs(record - place) for place, record in enumerate(records)]) / 100
    assert found["quality"]["displacement"] == pytest.approx(moved)
    assert (moved == 0) == (shuffle == "none")


def test_a_sample_measures_what_all_would(opened, monkeypatch) -> None:
    dataset = opened.datasets[""]
    for shuffle in ("global", "none"):
        batches = loader.global_batches(dataset, batch_size=8, seed=5, shuffle=shuffle)
        whole = ask(Opened({"": dataset}, batches), "api/spread")
        with monkeypatch.context() as patch:
            patch.setattr(spread_module, "_EXACT_RECORDS", 64)
            found = ask(Opened({"": dataset}, batches), "api/spread")
        assert not found["exact"]
        assert found["sampled_batches"] == 8
        assert found["points"] == whole["points"]
        for name, value in whole["quality"].items():
            # Some of the 100 records.
            assert found["quality"][name] == pytest.approx(value, abs=0.3)


def test_a_uniform_batch_draws_from_as_many_shards() -> None:
    sizes = np.array([1, 0, 3, 2])
    shards = np.repeat(np.arange(4), sizes)
    for rows in range(1, 7):
        drawn = [len({*some}) for some in itertools.combinations(shards.tolist(), rows)]
        assert uniform_shards(sizes, rows) == pytest.approx(np.mean(drawn))


def test_an_epoch_that_is_not_there(opened) -> None:
    batches = loader.global_batches(opened.datasets[""], batch_size=8, epochs=2)
    limited = Opened(opened.datasets, batches)
    assert ask(limited, "api/spread?epoch=1")["points"]
    with pytest.raises(InputError, match="no such epoch"):
        ask(limited, "api/spread?epoch=2")
    # 4 of 100 records are in no whole batch.
    batches = loader.global_batches(opened.datasets[""], batch_size=8, epochs=1)
    points = ask(Opened(opened.datasets, batches), "api/spread")["points"]
    assert [step for step, _ in points] == [row // 8 for row in range(96)]
