"""Kauldron fine-tunes Gemma on the rows of every step, and ends the same if resumed.

The configuration is as in Gemma's `examples/seq2seq.py`; the model is tiny and random.
"""

import dataclasses
import importlib
import os

import jax
import numpy as np
from gemma import gm
from kauldron import konfig

from gristmill import loader

ROWS = loader.open("data/rows")
packed = loader.PackedRows.of(ROWS)


class TinyGemma(gm.testing.DummyGemma):
    config: gm.nn.config.TransformerConfig = dataclasses.replace(
        gm.testing.DummyGemma.config, num_embed=4096
    )


def decode(records):
    arrays = packed(records)
    segments = arrays["inputs_segmentation"]
    same = segments[:, :, None] == segments[:, None, :]
    return {
        "input": arrays["inputs"],
        "positions": arrays["inputs_position"],
        "attention_mask": same & np.tri(packed.length, dtype=bool),
        "target": arrays["targets"][..., None],
        "loss_mask": (arrays["targets_segmentation"] > 0)[..., None],
    }


def trainer(workdir, steps):
    with konfig.imports():  # It takes modules only.
        import optax
        from kauldron import kd

        from examples import kauldron_batches
        from tests.with_trainers import run_gemma
    loss = kd.losses.SoftmaxCrossEntropyWithIntLabels(
        logits="preds.logits", labels="batch.target", mask="batch.loss_mask"
    )
    data = kauldron_batches.KauldronBatches(
        path="data/rows", batch_size=8, decode=run_gemma.decode
    )
    keys = {"positions": "batch.positions", "attention_mask": "batch.attention_mask"}
    cfg = kd.train.Trainer(
        seed=42,
        train_ds=data,
        model=run_gemma.TinyGemma(tokens="batch.input", **keys),
        num_train_steps=steps,
        train_losses={"xentropy": loss},
        optimizer=optax.adafactor(learning_rate=1e-3),
        checkpointer=kd.ckpts.Checkpointer(save_interval_steps=3),
        workdir=os.path.abspath(workdir),
    )
    return konfig.resolve(cfg)


def main():
    reader = loader.global_batches(ROWS, batch_size=8, seed=42, epochs=None)
    for step, batch in zip(range(3), trainer("whole", 6).train_ds, strict=False):
        for name, array in decode(reader.read(step)).items():
            np.testing.assert_array_equal(batch[name], array)
    runs = ("whole", 6), ("parts", 3), ("parts", 6)
    states = [trainer(*run).train()[0] for run in runs]
    whole, _, resumed = [jax.tree.leaves(state.params) for state in states]
    for got, expected in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(got, expected)


if __name__ == "__main__":  # The configuration imports what stands here by name.
    importlib.import_module("tests.with_trainers.run_gemma").main()
