"""A Kauldron run that is resumed ends with the parameters of an uninterrupted one."""

import os

import flax.linen as nn
import jax
import numpy as np
import optax
from kauldron import kd, kontext

from examples.kauldron_batches import KauldronBatches
from gristmill import loader


class Model(nn.Module):
    tokens: kontext.Key = kontext.REQUIRED

    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(4096)(nn.Embed(4096, 16)(tokens))


packed = loader.PackedRows.of(loader.open("data/rows"))


def decode(records):
    arrays = packed(records)
    return {"inputs": arrays["inputs"], "labels": arrays["targets"][..., None]}


def train(workdir, steps):
    trainer = kd.train.Trainer(
        seed=42,
        train_ds=KauldronBatches(path="data/rows", batch_size=8, decode=decode),
        model=Model(tokens="batch.inputs"),
        train_losses={
            "loss": kd.losses.SoftmaxCrossEntropyWithIntLabels(
                logits="preds", labels="batch.labels"
            )
        },
        optimizer=optax.sgd(0.1),
        num_train_steps=steps,
        checkpointer=kd.ckpts.Checkpointer(save_interval_steps=5),
        workdir=os.path.abspath(workdir),
    )
    state, _ = trainer.train()
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


whole = train("whole", 10)
train("parts", 5)
for got, expected in zip(train("parts", 10), whole, strict=True):
    np.testing.assert_array_equal(got, expected)
