"""Post-training goes on from the step of its checkpoint, of which it has no state."""

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import StateMismatchError
from gristmill.loader.maxtext import install
from tests.support import maxtext_trainers as trainers
from tests.support.maxtext import config_of
from tests.support.watched import calls_of

WAYS = {
    "packed": {},
    "packed and padded": {"generate_padding_batch_train": True},
    "records": {},
    "records in rows": {"packing": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_goes_on_trains_on_what_follows(maxtext, mesh, rows, records, way):
    install()
    files = records if "records" in way else rows
    config = config_of(grain_train_files=files, num_epoch=None, steps=6, **WAYS[way])
    whole = trainers.post_train(maxtext, config, mesh)
    assert len(whole) == 12
    for step in (0, 2, 5):
        found = trainers.post_train(maxtext, config, mesh, restored=step)
        assert len(found) == 12 - 2 * step
        for got, expected in zip(found, whole[2 * step :], strict=True):
            np.testing.assert_array_equal(got["inputs"], expected["inputs"])


def test_packed_rows_before_it_are_not_read(maxtext, mesh, rows, monkeypatch):
    install()
    config = config_of(grain_train_files=rows, num_epoch=None, steps=10_001)
    read = calls_of(monkeypatch, loader.Feed, "__next__")
    assert len(trainers.post_train(maxtext, config, mesh, restored=10_000)) == 2
    assert len(read) <= 3


@pytest.mark.parametrize("kind", ["packed", "records"])
def test_data_that_end_before_the_step_are_refused(maxtext, mesh, rows, records, kind):
    install()
    files = rows if kind == "packed" else records
    config = config_of(grain_train_files=files, num_epoch=1, packing=kind == "packed")
    config.steps = 1_000
    with pytest.raises(StateMismatchError, match="end before the step") as refused:
        trainers.post_train(maxtext, config, mesh, restored=100)
    assert "200 batches" in refused.value.expected
    # At the very end there is nothing left.
    batches = -(-len(loader.open(files, split="train")) // 8)
    config.steps = batches
    if not batches % 2:
        found = trainers.post_train(maxtext, config, mesh, restored=batches // 2)
        assert found == []
