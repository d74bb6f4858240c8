"""The dataset for torchtitan, through the parts of Grain that come behind it there.

torchtitan itself is not installed. What it calls is `build(context=...,
dataset_iteration_policy=...)`, and what its packing and its `GrainDataLoader` do is
done here by the same parts of Grain.
"""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import grain
import numpy as np
import pytest

from examples.torchtitan_dataset import GristmillDataset
from gristmill import loader
from tests.support.datasets import convert
from tests.support.examples import bytes_list, entry, example

TEXTS = [
    [f"{name}{number} " * (number % 7 + 1) for number in range(300)] for name in "ab"
]
LENGTH = 64


@dataclasses.dataclass(frozen=True)
class Processor:
    """As torchtitan's `TextProcessor`: a configuration, and what it builds."""

    shortest: int = 0

    def build(self, *, context: Any) -> Any:
        def process(sample: dict[str, str], rng: np.random.Generator) -> Any:
            tokens = np.frombuffer(sample["text"].encode(), np.uint8)
            return {"input_ids": tokens} if len(tokens) > self.shortest else None

        assert context == "context"
        return process


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {
        name: convert(
            tmp_path_factory.mktemp(name),
            [[example(entry("text", bytes_list([t.encode()]))) for t in texts]],
        )
        for name, texts in zip("ab", TEXTS, strict=True)
    }


def policy(**changes: Any) -> SimpleNamespace:
    usual = {"seed": 42, "shuffle": True, "repeat": True}
    host = {"dp_rank": 0, "dp_world_size": 1, "streaming_shuffle_buffer_size": 9}
    return SimpleNamespace(**usual | host | changes)


def built(dataset: GristmillDataset, **changes: Any) -> grain.IterDataset:
    return dataset.build(context="context", dataset_iteration_policy=policy(**changes))


def texts_of(samples: Any) -> list[str]:
    return [sample["input_ids"].tobytes().decode() for sample in samples]


@pytest.mark.slow
def test_ranks_share_every_document_once(paths) -> None:
    dataset = GristmillDataset(paths=paths["a"], processor=Processor())
    ranks = [
        texts_of(built(dataset, repeat=False, dp_rank=rank, dp_world_size=3))
        for rank in range(3)
    ]
    assert sorted(text for rank in ranks for text in rank) == sorted(TEXTS[0])
    assert [len(rank) for rank in ranks] == [100] * 3
    stored = built(dataset, repeat=False, shuffle=False)
    assert texts_of(stored) == TEXTS[0]
    long = GristmillDataset(paths=paths["a"], processor=Processor(shortest=20))
    kept = [text for text in TEXTS[0] if len(text) > 20]
    assert texts_of(built(long, repeat=False, shuffle=False)) == kept


@pytest.mark.slow
def test_a_mixture_packed_and_prefetched_goes_on_from_its_state(paths) -> None:
    dataset = GristmillDataset(
        paths=paths, weights={"a": 3, "b": 1}, processor=Processor()
    )
    iterator = iter(built(dataset, dp_rank=1, dp_world_size=2))
    drawn = [next(iterator)["input_ids"][:1].tobytes() for _ in range(400)]
    assert drawn.count(b"a") == 300

    def loader_of() -> grain.DatasetIterator:
        packed = grain.experimental.FirstFitPackIterDataset(
            built(dataset, dp_rank=1, dp_world_size=2),
            length_struct={"input_ids": LENGTH},
            num_packing_bins=8,
            seed=42,
        )
        return iter(
            grain.experimental.ThreadPrefetchIterDataset(
                packed.batch(4, drop_remainder=True, batch_fn=list),
                prefetch_buffer_size=2,
            )
        )

    whole, batches, states = loader_of(), [], []
    for _ in range(12):
        batches.append(texts_of(next(whole)))
        states.append(json.loads(json.dumps(whole.get_state())))
    later = loader_of()
    later.set_state(states[4])
    assert [texts_of(next(later)) for _ in range(7)] == batches[5:]
    for each in (whole, later):
        each.close()


def test_another_seed_is_refused_by_the_state(paths) -> None:
    dataset = GristmillDataset(paths=paths["a"], processor=Processor())
    state = iter(built(dataset)).get_state()
    with pytest.raises(loader.StateMismatchError, match="seed"):
        iter(built(dataset, seed=43)).set_state(state)
