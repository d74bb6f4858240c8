"""Named batches hold every document once, on a mesh, and go on from a state."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from examples import named_batches
from gristmill import loader
from tests.support.datasets import convert
from tests.support.examples import bytes_list, entry, example
from tests.support.records import text_records

TEXTS = text_records(200, seed=4)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> loader.Dataset:
    records = [example(entry("text", bytes_list([text]))) for text in TEXTS]
    return loader.open(convert(tmp_path_factory.mktemp("named"), [records]))


def arrays_of(batch: dict[str, named_batches.Named]) -> dict[str, bytes]:
    return {name: np.asarray(each.array).tobytes() for name, each in batch.items()}


def test_documents_in_the_order_of_the_loader_and_from_a_state(dataset) -> None:
    batches = loader.global_batches(dataset, batch_size=20, seed=2, epochs=1)
    mesh = Mesh(jax.devices(), ("data",))
    sizes = {"mesh": mesh, "rows": 8, "length": 1024}
    with named_batches.NamedBatches(batches, **sizes) as named:
        found = list(named)
    documents = []
    for batch in found:
        tokens, segments = batch["tokens"], batch["tokens_segment_ids"]
        assert (tokens.size("batch"), tokens.size("position")) == (8, 1024)
        assert len(tokens.array.sharding.device_set) == len(jax.devices())
        for row, parts in zip(tokens.array, np.asarray(segments.array), strict=True):
            for number in range(1, parts.max() + 1):
                documents.append(np.asarray(row)[parts == number].tobytes())
    assert len(documents) > 150  # The last rows do not fill a batch.
    assert len(set(documents)) == len(documents)
    assert set(documents) <= set(TEXTS)
    first = [batches.read(0)[row] for row in range(4)]
    assert any(text in first[0] for text in documents[:40])

    with named_batches.NamedBatches(batches, **sizes) as named:
        before = [arrays_of(next(named)) for _ in range(2)]
        state = json.loads(json.dumps(named.get_state()))
    with named_batches.NamedBatches(batches, **sizes) as named:
        named.set_state(state)
        assert before + [arrays_of(batch) for batch in named] == list(
            map(arrays_of, found)
        )


def test_a_step_takes_named_batches(dataset) -> None:
    batches = loader.global_batches(dataset, batch_size=20, seed=2)
    mesh = Mesh(jax.devices(), ("data",))
    with named_batches.NamedBatches(batches, mesh=mesh, rows=8, length=64) as named:
        batch = next(named)
    counts = named_batches.step_of(jnp.zeros(256, jnp.int32), batch)
    held = np.asarray(batch["tokens_segment_ids"].array) > 0
    tokens = np.asarray(batch["tokens"].array)[held]
    assert np.asarray(counts).tolist() == np.bincount(tokens, minlength=256).tolist()
