"""Supervised training by Tunix gets the rows of every step, and is resumed exactly."""

import os
import pathlib

import jax
import numpy as np
import optax
from flax import nnx
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig

from examples.tunix_batches import NAMES, TunixBatches, model_input
from gristmill import loader
from tests.rows.packed_shards import conversations, supervised_dataset

ROWS = supervised_dataset(pathlib.Path("chat"), [conversations(400, seed=1)])
given = []


class Model(nnx.Module):
    """Each token sees the mean of what its attention mask lets it see."""

    def __init__(self):
        self.embed = nnx.Embed(320, 16, rngs=nnx.Rngs(0))
        self.out = nnx.Linear(16, 320, rngs=nnx.Rngs(1))

    def __call__(self, tokens, positions, cache, attention_mask):
        seen = attention_mask / attention_mask.sum(-1, keepdims=True)
        return self.out(seen @ self.embed(tokens)), cache


class Kept(TunixBatches):
    """Keeps the batches that it gives."""

    def load_next_train_batch(self, train_ctx):
        given.append(super().load_next_train_batch(train_ctx))
        return given[-1]


def train(output, steps):
    given.clear()
    config = TrainingConfig(
        eval_every_n_steps=100,
        max_steps=steps,
        checkpoint_root_directory=os.path.abspath(output),
    )
    trainer = PeftTrainer(Model(), optax.sgd(0.1), config)
    trainer.with_gen_model_input_fn(model_input)
    with Kept(ROWS, batch_size=8, seed=42) as batches:
        trainer.with_data_hooks(batches)
        trainer.train([])
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(trainer.model))]


rows = loader.open(ROWS)
reader = loader.global_batches(rows, batch_size=8, seed=42, epochs=None)
decode = loader.PackedRows.of(rows, names=NAMES)


def check_given(first, stop):
    # Tunix asks for a batch after the last step, too.
    for step, got in zip(range(first, stop + 1), given, strict=True):
        for name, array in decode(reader.read(step)).items():
            np.testing.assert_array_equal(got[name], array)


whole = train("whole", 10)
check_given(0, 10)
train("parts", 5)
resumed = train("parts", 10)
check_given(5, 10)
for got, expected in zip(resumed, whole, strict=True):
    np.testing.assert_array_equal(got, expected)
