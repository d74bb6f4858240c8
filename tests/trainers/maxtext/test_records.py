"""Single records for MaxText's own preprocessing."""

import json
import pickle

import numpy as np
import pytest

from gristmill import loader
from gristmill.loader.maxtext.installation import install
from gristmill.loader.maxtext.iterators import RecordDatasets
from gristmill.loader.maxtext.settings import Options, Side, batches_of, open_sources
from tests.trainers.maxtext.maxtext import (
    LENGTH,
    RECORDS,
    config_of,
    numbers_of,
)


def datasets_of(config, *, rows=8, **options) -> RecordDatasets:
    side, chosen = Side(config, "train"), Options(**options)
    return RecordDatasets(side, open_sources(side, chosen), chosen, rows)


def of_host(datasets: RecordDatasets, host: int, hosts: int):
    return datasets(dataloading_host_index=host, dataloading_host_count=hosts)


@pytest.fixture
def made(maxtext, mesh):
    """Returns what MaxText makes of settings, by gristmill."""
    interface = maxtext["maxtext.input_pipeline.input_pipeline_interface"]

    def make(**settings):
        return interface.create_data_iterator(config_of(**settings), mesh)

    return make


def test_each_record_is_seen_once_an_epoch(made, records):
    install()
    for packing in (False, True):
        train, _ = made(grain_train_files=records, packing=packing, num_epoch=2)
        batches = [batch["inputs"] for batch in train.local_iterator]
        assert batches[0].shape == (8, LENGTH)
        seen = [number for batch in batches for number in numbers_of(batch)]
        assert sorted(seen) == sorted(2 * [*range(RECORDS)])
        assert seen[:RECORDS] != sorted(seen[:RECORDS])


@pytest.mark.parametrize(
    "settings", [{}, {"packing": False}, {"mixture": True}, {"elastic": True}]
)
def test_it_resumes_exactly(made, records, others, settings):
    install()
    files, chosen = records, {}
    if settings.get("mixture"):
        files = f"{records},0.7;{others},0.3"
    if settings.get("elastic"):
        chosen = {"packing": False, "grain_use_elastic_iterator": True}
    if settings.get("packing") is False:
        chosen = {"packing": False}
    whole, _ = made(grain_train_files=files, num_epoch=3, **chosen)
    next(whole)
    state = json.loads(json.dumps(whole.local_iterator.get_state()))
    expected = [next(whole)["inputs"] for _ in range(2)]
    again, _ = made(grain_train_files=files, num_epoch=3, **chosen)
    again.local_iterator.set_state(state)
    for batch in expected:
        np.testing.assert_array_equal(next(again)["inputs"], batch)


def test_hosts_have_their_rows_of_gristmills_batches(records):
    datasets = datasets_of(config_of(grain_train_files=records), rows=4)
    batches = loader.global_batches(
        loader.open(records, "train"), batch_size=8, epochs=1, drop_remainder=False
    )
    steps = [batches.read(step) for step in range(batches.steps)]
    for host in range(2):
        parts = [slice(host * len(s) // 2, (host + 1) * len(s) // 2) for s in steps]
        own = [r for step, part in zip(steps, parts, strict=True) for r in step[part]]
        # As MaxText sends it to another process.
        there = pickle.loads(pickle.dumps(datasets))
        assert list(of_host(there, host, 2)) == own
    block = datasets_of(config_of(grain_train_files=records), shuffle="block")
    own = batches_of(block.sources, block.side, block.options, rows=8)
    assert "block shuffle" in repr(own)
