"""Trains a small language model with JAX, and continues after it was killed.

It needs Orbax beside gristmill: `pip install orbax-checkpoint`. One command makes a
dataset, trains, and evaluates on records that are held out:

    python examples/train_lm.py --make-data --data data --output run --eval-every 50

The same command continues from the last checkpoint, also on another number of devices,
processes (`--distributed`) or workers: the batches stay the same.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import random
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gristmill import loader
from gristmill.dataset import Writer

try:
    import orbax.checkpoint as ocp
except ModuleNotFoundError as e:
    raise SystemExit("Orbax is missing: pip install orbax-checkpoint") from e

VOCABULARY = 256  # tokens are the bytes of the text
WORDS = "the mill grinds grain to flour and water turns a wheel of stone by night"
RECORDS = {"train": 2048, "validation": 211}  # no batch size divides the second


def make_data(directory: str, *, length: int) -> None:
    """Writes made-up text as records of `length` uint16 tokens, where it is missing."""
    for split, records in RECORDS.items():
        with Writer(
            directory, split=split, records_per_shard=512, resume=True
        ) as writer:
            for number in range(writer.position_records, records):
                rng = random.Random(f"{split} {number}")
                text = " ".join(rng.choices(WORDS.split(), k=length)).encode()[:length]
                writer.write(np.frombuffer(text, np.uint8).astype("<u2").tobytes())


def parameter_shapes(args: argparse.Namespace) -> dict[str, tuple[Any, Any]]:
    """Returns the shape of each parameter, and how it lies on the mesh."""
    layers, width, heads = args.layers, args.width, args.heads
    head, hidden = width // heads, 4 * width
    return {
        "embed": ((VOCABULARY, width), P(None, "model")),
        "place": ((args.length, width), P(None, "model")),
        "qkv": ((layers, 3, width, heads, head), P(None, None, None, "model")),
        "mix": ((layers, heads, head, width), P(None, "model")),
        "up": ((layers, width, hidden), P(None, None, "model")),
        "down": ((layers, hidden, width), P(None, "model")),
    }


def new_state(args: argparse.Namespace) -> dict[str, Any]:
    """Returns new parameters, and Adam's two moments of each."""
    shapes = {name: shape for name, (shape, _) in parameter_shapes(args).items()}
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    # One draw for all: a generator for each takes long to compile.
    drawn = jax.random.normal(jax.random.key(args.seed), (ends[-1],))
    pieces = jnp.split(drawn, ends[:-1])
    parameters = {
        name: piece.reshape(shape) / math.sqrt(args.width)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
    zeros = jax.tree.map(jnp.zeros_like, parameters)
    return {"parameters": parameters, "mean": zeros, "square": zeros, "step": 0}


def norm(x: jax.Array) -> jax.Array:
    """Scales the last axis to a mean square of 1."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def logits_of(parameters: Any, tokens: jax.Array) -> jax.Array:
    """The model: what comes after each token. [rows, length] -> [rows, length, 256]."""
    length = tokens.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))

    def layer(x: jax.Array, own: Any) -> tuple[jax.Array, None]:
        q, k, v = jnp.einsum("bld,cdhe->cblhe", norm(x), own["qkv"])
        scores = jnp.einsum("blhe,bmhe->bhlm", q, k) / math.sqrt(q.shape[-1])
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        mixed = jnp.einsum("bhlm,bmhe->blhe", weights, v)
        x = x + jnp.einsum("blhe,hed->bld", mixed, own["mix"])
        return x + jax.nn.gelu(norm(x) @ own["up"]) @ own["down"], None

    layers = {name: parameters[name] for name in ("qkv", "mix", "up", "down")}
    x = parameters["embed"][tokens] + parameters["place"][:length]
    x, _ = jax.lax.scan(layer, x, layers)
    return norm(x) @ parameters["embed"].T


def losses_of(parameters: Any, tokens: jax.Array) -> jax.Array:
    """Mean cross entropy of each row's tokens, given those before them: [rows]."""
    log_p = jax.nn.log_softmax(logits_of(parameters, tokens)[:, :-1])
    return -jnp.take_along_axis(log_p, tokens[:, 1:, None], axis=-1).mean(axis=(1, 2))


def loss_of(parameters: Any, tokens: jax.Array) -> jax.Array:
    """The loss to train on."""
    return losses_of(parameters, tokens).mean()


def digest_of(tokens: jax.Array) -> jax.Array:
    """A digest of the global batch: integers add up the same on any mesh."""
    places = jnp.arange(tokens.size, dtype=jnp.uint32).reshape(tokens.shape)
    scrambled = (places + 1) * jnp.uint32(2654435761)
    return (tokens.astype(jnp.uint32) * (scrambled ^ scrambled >> 15)).sum()


def train_step(state: Any, tokens: jax.Array, *, rate: float) -> tuple[Any, Any]:
    """One step of Adam."""
    loss, gradient = jax.value_and_grad(loss_of)(state["parameters"], tokens)
    step = state["step"] + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], gradient)
    square = jax.tree.map(
        lambda s, g: 0.98 * s + 0.02 * g * g, state["square"], gradient
    )
    size = rate * jnp.sqrt(1 - 0.98**step) / (1 - 0.9**step)
    parameters = jax.tree.map(
        lambda p, m, s: p - size * m / (jnp.sqrt(s) + 1e-8),
        state["parameters"],
        mean,
        square,
    )
    state = {"parameters": parameters, "mean": mean, "square": square, "step": step}
    return state, {"loss": loss, "digest": digest_of(tokens)}


@jax.jit
def eval_step(parameters: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
    """The sum of the losses of a batch's records, and how many records it has."""
    losses, mask = losses_of(parameters, batch["tokens"]), batch["mask"]
    return jnp.where(mask, losses, 0).sum(), mask.sum()


def evaluate(args: argparse.Namespace, parameters: Any, rows: NamedSharding) -> Any:
    """Returns the mean loss of the held-out records, and their number.

    Each record counts once, and all processes make as many steps: rows of padding fill
    up the last batch, and the mask tells them from records.
    """
    batches = loader.global_batches(
        loader.open(args.data, split="validation"),
        batch_size=args.batch_size,
        shuffle="none",
        epochs=1,
        drop_remainder=False,
    )
    decode = loader.TokenDecoder(length=args.length, stored="uint16")
    feed = batches.feed(
        decode=lambda records: {"tokens": decode(records)},
        host=rows,
        mask="mask",
    )
    total = records = 0
    with loader.to_jax(feed, rows) as arrays:
        for batch in arrays:
            sums = eval_step(parameters, batch)
            total, records = total + sums[0], records + sums[1]
    return total / records, records


def restore(manager: ocp.CheckpointManager, state: Any, feed: loader.JaxFeed) -> Any:
    """Returns the state of the last checkpoint, on this mesh; the feed goes to it."""
    saved = manager.restore(
        manager.latest_step(),
        args=ocp.args.Composite(
            model=ocp.args.StandardRestore(
                jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
            ),
            feed=ocp.args.JsonRestore(),
        ),
    )
    feed.set_state(saved["feed"])
    return saved["model"]


def report(step: int, metrics: Any) -> None:
    """Says what came of a step, once for all processes."""
    if jax.process_index() == 0:
        loss, digest = float(metrics["loss"]), int(metrics["digest"])
        print(f"step {step} loss {loss!r} batch {digest:08x}", flush=True)
        if "held_out" in metrics:
            mean, records = metrics["held_out"]
            print(f"held out: loss {float(mean)!r} of {int(records)} records")


def train(args: argparse.Namespace) -> None:
    """Trains from the last checkpoint, or from the beginning, to the last step."""
    devices = np.array(jax.devices()).reshape(-1, args.model_axis)
    on_mesh = functools.partial(NamedSharding, Mesh(devices, ("data", "model")))
    shapes = parameter_shapes(args)
    parameters = {name: on_mesh(spec) for name, (_, spec) in shapes.items()}
    layout = dict.fromkeys(("parameters", "mean", "square"), parameters)
    layout |= {"step": on_mesh(P())}
    rows = on_mesh(P("data"))  # what of a batch this process reads follows from it
    step_function = jax.jit(
        functools.partial(train_step, rate=args.rate),
        out_shardings=(layout, on_mesh(P())),
        donate_argnums=0,
    )
    state = jax.jit(functools.partial(new_state, args), out_shardings=layout)()

    batches = loader.global_batches(
        loader.open(args.data, split="train"),
        batch_size=args.batch_size,
        seed=args.seed,
    )
    feed = batches.feed(
        decode=loader.TokenDecoder(length=args.length, stored="uint16"),
        host=rows,
        workers=args.workers,
    )
    options = ocp.CheckpointManagerOptions(
        save_interval_steps=args.save_every, max_to_keep=2
    )
    output = args.output if "://" in args.output else os.path.abspath(args.output)
    with (
        loader.to_jax(feed, rows) as feed,
        ocp.CheckpointManager(output, options=options) as manager,
    ):
        first, last = manager.latest_step() or 0, None
        if first:
            state = restore(manager, state, feed)
        for step in range(first, args.steps):
            state, metrics = step_function(state, next(feed))
            both = ocp.args.Composite(
                model=ocp.args.StandardSave(state),
                feed=ocp.args.JsonSave(feed.get_state()),
            )
            done, ends = step + 1, step + 1 == args.steps
            manager.save(done, args=both, force=ends)
            if args.eval_every and (ends or done % args.eval_every == 0):
                metrics["held_out"] = evaluate(args, state["parameters"], rows)
            if last:
                report(*last)  # of the step before: nothing waits for this one
            last = step, metrics
        if last:
            report(*last)
        if jax.process_index() == 0:
            print(f"waited {feed.stats.wait_seconds:.1f} s for data")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = functools.partial(parser.add_argument, type=int)
    add("--data", type=str, required=True, help="directory of the dataset")
    add("--output", type=str, required=True, help="directory of the checkpoints")
    parser.add_argument("--make-data", action="store_true", help="make the dataset")
    add("--steps", default=100, help="when to stop")
    add("--save-every", default=20, help="steps from checkpoint to checkpoint")
    add("--eval-every", default=0, help="steps from evaluation to evaluation; 0: none")
    add("--batch-size", default=32, help="rows of the global batch")
    add("--length", default=64, help="tokens of a record")
    add("--layers", default=2)
    add("--width", default=64)
    add("--heads", default=4)
    add("--rate", type=float, default=3e-3, help="learning rate")
    add("--model-axis", default=1, help="devices that share a copy of the model")
    add("--workers", default=0, help="processes that read and decode")
    add("--seed", default=0, help="of parameters and order")
    add("--distributed", type=str, help="auto, or HOST:PORT,COUNT,INDEX of a process")
    args = parser.parse_args(argv)
    if args.distributed == "auto":
        jax.distributed.initialize()
    elif args.distributed:
        coordinator, count, index = args.distributed.split(",")
        jax.distributed.initialize(coordinator, int(count), int(index))
    if args.make_data:
        if jax.process_index() == 0:
            make_data(args.data, length=args.length)
        multihost_utils.sync_global_devices("dataset")
    train(args)


if __name__ == "__main__":
    main()
