"""A feed on the accelerators of a host: batches, a checkpoint, another topology.

    python -m tests.with_accelerators [--data DATASET]

trains nothing: it puts batches on all devices, compares each there with the records on
the host, saves the feed's state by Orbax, and goes on from it on other meshes. It
prints a table to paste into docs/reference/tested.md, and ends with 1 if a batch
differs. `--cpu-devices 8` does the same on a machine without accelerators; on a slice
of several hosts, run it on each with `--distributed`. It needs gristmill[loader] and
orbax-checkpoint.
"""

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader
from gristmill.dataset import Writer

_PACKAGES = ("gristmill", "jax", "jaxlib", "libtpu", "grain", "orbax-checkpoint")


def make_data(directory, *, records, length):
    """Writes records of `length` random uint16 tokens."""
    rng = np.random.default_rng(0)
    with Writer(directory, records_per_shard=records // 8) as writer:
        for tokens in rng.integers(0, 1 << 16, (records, length), np.uint16):
            writer.write(tokens.tobytes())


def first_bytes(records, *, length):
    """Returns the first bytes of each record, uint8 [rows, length]."""
    rows = b"".join(record[:length].ljust(length, b"\0") for record in records)
    return {"bytes": np.frombuffer(rows, np.uint8).reshape(-1, length)}


@jax.jit
def digest(rows):
    """Returns a digest of a global batch: integers add up the same on any mesh."""
    places = jnp.arange(rows.size, dtype=jnp.uint32).reshape(rows.shape)
    scrambled = (places + 1) * jnp.uint32(2654435761)
    return (rows.astype(jnp.uint32) * (scrambled ^ scrambled >> 15)).sum()


def meshes():
    """Returns meshes by name: all devices, then other ways to divide the rows."""
    devices = np.array(jax.devices())
    count = len(devices)
    shapes = [(count, 1)]
    if count % 2 == 0:
        shapes.append((count // 2, 2))
        if jax.process_count() == 1:
            shapes.append((count // 2, 1))
    return {
        f"{rows} x {columns}": Mesh(
            devices[: rows * columns].reshape(rows, columns), ("data", "model")
        )
        for rows, columns in shapes
    }


def run(args, work):
    """Does all of it; returns the rows of the table, and the steps that differ."""
    data = args.data or f"{work}/data"
    if not args.data:
        make_data(data, records=4096, length=args.length // 2)
    batches = loader.global_batches(
        loader.open(data), batch_size=args.batch_size, seed=7
    )
    decode = functools.partial(first_bytes, length=args.length)
    on = meshes()
    name, *others = on
    rows = {"data": repr(batches)[1:-1], "mesh": f"{name} of data x model"}
    saved, differ = f"{args.checkpoints or work}/checkpoint", []

    def feed_on(mesh):
        """Returns a feed of this process's rows, as arrays on a mesh."""
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        feed = batches.feed(decode=decode, host=sharding, workers=args.workers)
        return loader.to_jax(feed, sharding)

    def compare(feed, first, mesh):
        """Takes steps from a feed and compares them."""
        for step in range(first, first + args.steps):
            seen = int(digest(next(feed)["bytes"]))
            whole = decode(batches.read(step))["bytes"]
            if seen != int(digest(jnp.asarray(whole))):
                differ.append(f"step {step} on {mesh}")

    with feed_on(on[name]) as feed:
        compare(feed, 0, name)
        started = time.perf_counter()
        with ocp.CheckpointManager(saved) as manager:
            state = ocp.args.JsonSave(feed.get_state())
            manager.save(args.steps, args=ocp.args.Composite(feed=state))
            manager.wait_until_finished()
        rows["checkpoint"] = f"{time.perf_counter() - started:.2f} s"
    for other, mesh in on.items():
        with ocp.CheckpointManager(saved) as manager, feed_on(mesh) as feed:
            how = ocp.args.Composite(feed=ocp.args.JsonRestore())
            feed.set_state(manager.restore(manager.latest_step(), args=how)["feed"])
            compare(feed, args.steps, other)
    rows["resumed"] = f"on {', '.join(on)}"
    if not others:
        rows["resumed"] += "; an odd number of devices has no other topology"
    checked = args.steps * (1 + len(on))
    wrong = "; ".join(differ) or "none differs"
    rows["batches compared"] = f"{checked:,} on the devices: {wrong}"
    return rows, differ


def table(rows):
    """Returns the rows as a table in Markdown, after those about the machine."""
    devices = jax.devices()
    versions = []
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    machine = {
        "date": f"{datetime.date.today()}",
        "devices": f"{len(devices)} {devices[0].device_kind} ({devices[0].platform}), "
        f"{jax.process_count()} hosts",
        "versions": ", ".join(versions),
    }
    lines = ["| with_accelerators | |", "| --- | --- |"]
    lines += [f"| {name} | {text} |" for name, text in (machine | rows).items()]
    return "\n".join(lines)


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.with_accelerators")
    parser.add_argument("--data", help="a dataset; without it, random tokens")
    parser.add_argument("--checkpoints", help="a new directory, shared by the hosts")
    parser.add_argument("--batch-size", type=int, default=256, help="global")
    parser.add_argument("--length", type=int, default=4096, help="bytes of a record")
    parser.add_argument("--steps", type=int, default=20, help="of each part")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cpu-devices", type=int, help="use so many of the CPU")
    parser.add_argument("--distributed", action="store_true", help="one of several")
    args = parser.parse_args()
    if args.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.cpu_devices)
    if args.distributed:
        jax.distributed.initialize()
        if not (args.data and args.checkpoints):
            parser.error("several hosts need --data and --checkpoints that they share")
    with tempfile.TemporaryDirectory() as work:
        rows, differ = run(args, work)
    if jax.process_index() == 0:
        print(table(rows))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
