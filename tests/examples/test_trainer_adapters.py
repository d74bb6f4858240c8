"""The adapters for Keras, Kauldron and Levanter, with stand-ins for these.

The stand-ins have the interface that the adapters use, as it was read in Keras 3.15.1,
Kauldron 1.4.4 and marin-levanter 0.2.227. `python -m tests.with_trainers` runs the real
ones.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import pathlib
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from tests.rows.packed_shards import conversations, supervised_dataset


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: pathlib.Path = tmp_path_factory.mktemp("adapters")
    return supervised_dataset(folder / "rows", [conversations(60, seed=1)], length=32)


def adapter(name: str, monkeypatch: pytest.MonkeyPatch, **modules: Any) -> Any:
    """Imports an example with stand-ins for the modules that it imports."""
    for path, content in modules.items():
        module = types.ModuleType(path.replace("__", "."))
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, path.replace("__", "."), module)
    monkeypatch.delitem(sys.modules, f"examples.{name}", raising=False)
    found = importlib.import_module(f"examples.{name}")
    monkeypatch.delitem(sys.modules, f"examples.{name}")
    return found


def equal(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    return got.keys() == expected.keys() and all(
        np.array_equal(got[name], expected[name]) for name in expected
    )


def test_an_epoch_of_keras_is_some_steps(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PyDataset:
        pass

    module = adapter(
        "keras_batches",
        monkeypatch,
        keras={
            "utils": SimpleNamespace(PyDataset=PyDataset),
            "callbacks": SimpleNamespace(
                LambdaCallback=SimpleNamespace, Callback=object
            ),
        },
    )
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


def test_kauldron_gets_an_iterator_of_grain(
    rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True, eq=True)
    class Pipeline:
        batch_size: int | None = None
        seed: Any = None

        def _assert_root_cfg_resolved(self) -> None:
            assert self.seed is not None

    data = SimpleNamespace(
        Pipeline=Pipeline, iters=SimpleNamespace(PyGrainIterator=SimpleNamespace)
    )
    module = adapter(
        "kauldron_batches", monkeypatch, kauldron={"kd": SimpleNamespace(data=data)}
    )
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


def test_levanter_gets_any_rows(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class AsyncDataset:
        def __class_getitem__(cls, item: Any) -> type:
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
    decode = loader.PackedRows.of(opened)
    for got, (step, row) in zip(found, [(2, 1), (0, 2), (2, 0)], strict=True):
        expected = {
            name: array[row] for name, array in decode(batches.read(step)).items()
        }
        assert got.tokens.tolist() == expected["inputs"].tolist()
        trained = expected["targets_segmentation"] > 0
        assert got.loss_weight.tolist() == trained.tolist()
        assert got.segment_ids.tolist() == expected["inputs_segmentation"].tolist()
    endless = loader.global_batches(opened, batch_size=4, seed=2)
    assert not module.LevanterRows(endless).is_finite()
