"""Trains a model of Flax NNX from scratch on packed rows, and resumes after a kill.

    pip install flax optax orbax-checkpoint
    python examples/nnx_train.py --data data/rows --output run --steps 100

The rows are those of `gristmill pack`. A token sees its own document alone. The state
of the feed is saved beside the model: the same command resumes on other devices, too.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader


class Model(nnx.Module):
    """One block of attention over the tokens of a document."""

    def __init__(self, vocabulary: int, length: int, width: int, rngs: nnx.Rngs):
        self.tokens = nnx.Embed(vocabulary, width, rngs=rngs)
        self.places = nnx.Embed(length, width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, batch: dict[str, jax.Array]) -> jax.Array:
        """Returns the logits of the token after each."""
        segments = batch["inputs_segmentation"]
        causal = jnp.tril(jnp.ones((segments.shape[1],) * 2, bool))
        mask = (segments[:, :, None] == segments[:, None, :]) & causal
        x = self.tokens(batch["inputs"]) + self.places(batch["inputs_position"])
        x = x + self.attention(x, mask=mask[:, None])
        x = x + self.down(nnx.relu(self.up(x)))
        return self.tokens.attend(x)


@nnx.jit
def train_step(
    model: Model, optimizer: nnx.Optimizer, batch: dict[str, jax.Array]
) -> jax.Array:
    """Changes the model by a batch, and returns the loss of a token."""

    def loss_of(model: Model) -> jax.Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model(batch), batch["targets"]
        )
        counts = batch["targets_segmentation"] > 0
        return jnp.sum(losses * counts) / jnp.sum(counts)

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return loss


def main() -> None:
    """Trains from the last checkpoint, or from the beginning, to the last step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=4096)
    args = parser.parse_args()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    rows, whole = (
        NamedSharding(mesh, PartitionSpec("data")),
        NamedSharding(mesh, PartitionSpec()),
    )

    dataset = loader.open(args.data)
    batches = loader.global_batches(dataset, batch_size=args.batch_size, seed=42)
    decode = loader.PackedRows.of(dataset)
    model = Model(args.vocabulary, decode.length, 64, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(3e-3), wrt=nnx.Param)
    trained = jax.device_put(nnx.state((model, optimizer)), whole)
    nnx.update((model, optimizer), trained)

    feed = batches.feed(decode=decode, host=rows)
    output = pathlib.Path(args.output).absolute()
    with (
        loader.to_jax(feed, rows) as feed,
        ocp.CheckpointManager(
            output, options=ocp.CheckpointManagerOptions(save_interval_steps=10)
        ) as manager,
    ):
        first = manager.latest_step() or 0
        if first:
            asked: dict[str, Any] = {
                "model": ocp.args.StandardRestore(trained),
                "feed": ocp.args.JsonRestore(),
            }
            saved = manager.restore(first, args=ocp.args.Composite(**asked))
            nnx.update((model, optimizer), saved["model"])
            feed.set_state(saved["feed"])
        for step in range(first, args.steps):
            loss = train_step(model, optimizer, next(feed))
            state = nnx.state((model, optimizer))
            both = ocp.args.Composite(
                model=ocp.args.StandardSave(state),
                feed=ocp.args.JsonSave(feed.get_state()),
            )
            manager.save(step + 1, args=both, force=step + 1 == args.steps)
            print(f"step {step} loss {float(loss)!r}", flush=True)


if __name__ == "__main__":
    main()
