"""The adapters for trainers: the batches, steps and states that each of them asks for.

Keras, Kauldron, Levanter, torchtitan and Tunix are not installed. Stand-ins have the
interface that the adapters use, as it was read in Keras 3.15.1, Kauldron 1.4.4 and
marin-levanter 0.2.227; `python -m tests.with_trainers` runs the real ones, and
tests/with_maxtext Tunix's trainer. Behind torchtitan's dataset are the parts of Grain
that its packing and its `GrainDataLoader` consist of.
"""

import asyncio
import dataclasses
import importlib
import json
import sys
import types
from types import SimpleNamespace
from typing import Any

import grain
import numpy as np
import pytest

from examples.torchtitan_dataset import GristmillDataset
from examples.tunix_batches import TunixBatches, model_input
from gristmill import loader
from tests.rows.packed_shards import conversations, supervised_dataset
from tests.support.datasets import convert
from tests.support.examples import bytes_list, entry, example

LENGTH = 32


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    texts = [conversations(60, seed=1)]
    return supervised_dataset(folder / "rows", texts, length=LENGTH)


def adapter(name, monkeypatch, **modules):
    """Imports an example with stand-ins for the modules that it imports."""
    for path, content in modules.items():
        module = types.ModuleType(path.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, path.replace("__", "."), module)
    monkeypatch.delitem(sys.modules, f"examples.{name}", raising=False)
    found = importlib.import_module(f"examples.{name}")
    monkeypatch.delitem(sys.modules, f"examples.{name}")
    return found


def equal(got, expected):
    return got.keys() == expected.keys() and all(
        np.array_equal(got[name], expected[name]) for name in expected
    )


def test_an_epoch_of_keras_is_some_steps(rows, monkeypatch):
    class PyDataset:
        pass

    utils = SimpleNamespace(PyDataset=PyDataset)
    callbacks = SimpleNamespace(LambdaCallback=SimpleNamespace, Callback=object)
    keras = {"utils": utils, "callbacks": callbacks}
    module = adapter("keras_batches", monkeypatch, keras=keras)
    opened = loader.open(rows)
    decode = loader.PackedRows.of(opened)
    batches = loader.global_batches(opened, batch_size=4, seed=2, epochs=3)
    data = module.KerasBatches(batches, steps_per_epoch=3, decode=decode, host=(1, 2))
    try:
        assert data.num_batches == 3
        callback = data.follow()
        for epoch, index in [(0, 0), (0, 0), (0, 1), (2, 0), (2, 1), (1, 2)]:
            callback.on_epoch_begin(epoch)
            expected = decode(batches.read(3 * epoch + index, slice(2, 4)))
            assert equal(data[index], expected)
        callback.on_epoch_begin(batches.steps // 3)
        with pytest.raises(IndexError, match=f"before step {batches.steps}"):
            data[batches.steps % 3]
    finally:
        data.close()


def test_kauldron_gets_an_iterator_of_grain(rows, monkeypatch):
    @dataclasses.dataclass(frozen=True, kw_only=True, eq=True)
    class Pipeline:
        batch_size: int | None = None
        seed: Any = None

        def _assert_root_cfg_resolved(self):
            assert self.seed is not None

    iters = SimpleNamespace(PyGrainIterator=SimpleNamespace)
    kd = SimpleNamespace(data=SimpleNamespace(Pipeline=Pipeline, iters=iters))
    module = adapter("kauldron_batches", monkeypatch, kauldron={"kd": kd})
    pipeline = module.KauldronBatches(
        path=rows, batch_size=4, seed=2, num_epochs=1, names={"targets": "labels"}
    )
    opened = loader.open(rows)
    batches = loader.global_batches(opened, batch_size=4, seed=2, epochs=1)
    decode = loader.PackedRows.of(opened, names={"targets": "labels"})
    spec = pipeline.element_spec["labels"]
    assert (spec.shape, spec.dtype) == ((4, 32), np.int32)
    assert len(pipeline) == batches.steps
    with pipeline.__iter__().iter as feed:
        assert equal(next(feed), decode(batches.read(0)))
        state = feed.get_state()
        after = next(feed)
    with pipeline.__iter__().iter as feed:
        feed.set_state(state)
        assert equal(next(feed), after)
    endless = module.KauldronBatches(path=rows, batch_size=4, seed=2)
    with pytest.raises(TypeError):
        len(endless)


def test_levanter_gets_any_rows(rows, monkeypatch):
    class AsyncDataset:
        def __class_getitem__(cls, item):
            return cls

    example = SimpleNamespace(
        causal=lambda tokens, **more: SimpleNamespace(tokens=tokens, **more)
    )
    module = adapter(
        "levanter_rows",
        monkeypatch,
        haliax={
            "Axis": lambda name, size: (name, size),
            "named": lambda array, axis: np.asarray(array),
        },
        levanter={},
        levanter__data={},
        levanter__data__dataset={"AsyncDataset": AsyncDataset},
        levanter__models={},
        levanter__models__lm_model={"LmExample": example},
    )
    opened = loader.open(rows)
    batches = loader.global_batches(opened, batch_size=4, seed=2, epochs=1)
    data = module.LevanterRows(batches)
    assert data.Pos == ("position", 32)
    assert data.is_finite()
    assert asyncio.run(data.async_len()) == 4 * batches.steps
    found = asyncio.run(data.get_batch([9, 2, 8]))
    records = [batches.read(step)[row] for step, row in [(2, 1), (0, 2), (2, 0)]]
    expected = loader.PackedRows.of(opened)(records)
    expected["trained"] = expected["targets_segmentation"] > 0
    for field, array in (
        ("tokens", "inputs"),
        ("loss_weight", "trained"),
        ("segment_ids", "inputs_segmentation"),
    ):
        got = [getattr(one, field).tolist() for one in found]
        assert got == expected[array].tolist()
    endless = loader.global_batches(opened, batch_size=4, seed=2)
    assert not module.LevanterRows(endless).is_finite()


# --- torchtitan.

TEXTS = [
    [f"{name}{number} " * (number % 7 + 1) for number in range(300)] for name in "ab"
]


@dataclasses.dataclass(frozen=True)
class Processor:
    """As torchtitan's `TextProcessor`: a configuration, and what it builds."""

    shortest: int = 0

    def build(self, *, context):
        def process(sample, rng):
            tokens = np.frombuffer(sample["text"].encode(), np.uint8)
            return {"input_ids": tokens} if len(tokens) > self.shortest else None

        assert context == "context"
        return process


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return {
        name: convert(
            tmp_path_factory.mktemp(name),
            [[example(entry("text", bytes_list([t.encode()]))) for t in texts]],
        )
        for name, texts in zip("ab", TEXTS, strict=True)
    }


def policy(**changes):
    usual = {"seed": 42, "shuffle": True, "repeat": True}
    host = {"dp_rank": 0, "dp_world_size": 1, "streaming_shuffle_buffer_size": 9}
    return SimpleNamespace(**usual | host | changes)


def built(dataset, **changes):
    return dataset.build(context="context", dataset_iteration_policy=policy(**changes))


def texts_of(samples):
    return [sample["input_ids"].tobytes().decode() for sample in samples]


@pytest.mark.slow
def test_ranks_share_every_document_once(paths):
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
def test_a_mixture_packed_and_prefetched_goes_on_from_its_state(paths):
    dataset = GristmillDataset(
        paths=paths, weights={"a": 3, "b": 1}, processor=Processor()
    )
    iterator = iter(built(dataset, dp_rank=1, dp_world_size=2))
    drawn = [next(iterator)["input_ids"][:1].tobytes() for _ in range(400)]
    assert drawn.count(b"a") == 300

    def loader_of():
        packed = grain.experimental.FirstFitPackIterDataset(
            built(dataset, dp_rank=1, dp_world_size=2),
            length_struct={"input_ids": 64},
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


def test_another_seed_is_refused_by_the_state(paths):
    dataset = GristmillDataset(paths=paths["a"], processor=Processor())
    state = iter(built(dataset)).get_state()
    with pytest.raises(loader.StateMismatchError, match="seed"):
        iter(built(dataset, seed=43)).set_state(state)


# --- Tunix.


def given(rows, step, count):
    with TunixBatches(rows, batch_size=4, seed=7) as batches:
        trainer = SimpleNamespace(iter_steps=step)
        return [batches.load_next_train_batch(trainer) for _ in range(count)]


def test_a_trainer_goes_on_with_the_batch_of_its_step(rows):
    whole = given(rows, 0, 8)
    for mine, theirs in zip(given(rows, 5, 3), whole[5:], strict=True):
        assert equal(mine, theirs)


@pytest.mark.slow
def test_masks_are_those_of_the_rows(rows):
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
    segments = expected["inputs_segmentation"]
    same = segments[:, :, None] == segments[:, None, :]
    seen = same & np.tri(LENGTH, dtype=bool)
    np.testing.assert_array_equal(np.asarray(fields["attention_mask"]), seen)


def test_the_data_end(rows):
    with TunixBatches(rows, batch_size=4, epochs=1) as batches:
        trainer = SimpleNamespace(iter_steps=0)
        count = 0
        while batches.load_next_train_batch(trainer) is not None:
            count += 1
        assert count == batches.batches.steps
        assert batches.load_next_eval_batch(trainer) is None
