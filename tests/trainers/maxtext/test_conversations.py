"""Rows of conversations for MaxText, and conversations that it tokenises itself."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import Mesh

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.maxtext.iterators import make_iterator
from gristmill.loader.maxtext.settings import Options
from tests.rows.packed_shards import conversations, supervised_dataset
from tests.trainers.maxtext.maxtext import LENGTH, config_of


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("chat")
    made = [conversations(40, seed=seed, most=4) for seed in range(2)]
    return supervised_dataset(folder / "rows", made, length=LENGTH)


def made(mesh: Mesh, config, options=None, own=None):
    return make_iterator("train", options or Options(), own, config, mesh, None)


@pytest.mark.parametrize("use_sft", [True, False])
def test_targets_that_are_not_trained_are_left_out(maxtext, mesh, chat, use_sft):
    config = config_of(grain_train_files=chat, use_sft=use_sft)
    batch = {k: np.asarray(v) for k, v in next(made(mesh, config)).items()}
    opened = loader.open(chat)
    batches = loader.global_batches(opened, batch_size=8, seed=0)
    expected = loader.PackedRows.of(opened)(batches.read(0))
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array, name)
    trained = np.count_nonzero(batch["targets_segmentation"])
    assert 0 < trained < np.count_nonzero(batch["inputs_segmentation"]) / 2


def test_rows_of_plain_text_are_refused_with_use_sft(maxtext, mesh, rows, tmp_path):
    plain = config_of(grain_train_files=rows, use_sft=True)
    with pytest.raises(InputError, match="use_sft of MaxText") as refused:
        made(mesh, plain)
    assert "pack --chat" in refused.value.cure
    made_of = [conversations(20, seed=3, most=4)]
    wide = {"length": LENGTH, "vocabulary_size": 1 << 32}  # As the others have it.
    chat = supervised_dataset(tmp_path / "chat", made_of, **wide)
    both = config_of(grain_train_files=f"{rows},1;{chat},1", use_sft=True)
    batch = next(made(mesh, both))
    assert np.count_nonzero(np.asarray(batch["targets_segmentation"]))


@pytest.mark.parametrize(
    ("arguments", "off"),
    [
        ([], True),
        (["add_bos=true"], False),
        (["add_eos=false"], False),
        (["gristmill_sft_ends=settings"], False),
        (["gristmill_sft_ends=template", "add_bos=true"], True),
    ],
)
def test_ends_around_parts_are_off_unless_they_are_given(
    maxtext, mesh, records, caplog, arguments, off
):
    options, _ = Options.taken_from(["base.yml", *arguments])
    seen = {}

    def own(config, *args):
        seen["ends"] = config.add_bos, config.add_eos
        seen["files"] = config.grain_train_files
        return []

    for use_sft in (True, False):
        caplog.clear()
        config = config_of(grain_train_files=records, use_sft=use_sft)
        made(mesh, config, options, own)
        changed = use_sft and off
        assert seen == {"ends": (not changed,) * 2, "files": records}
        assert ("pack --chat" in caplog.text) == use_sft
        assert (f"{'off' if off else 'put a token'}" in caplog.text) == use_sft
    with pytest.raises(InputError, match="template or settings"):
        Options(sft_ends="both")
