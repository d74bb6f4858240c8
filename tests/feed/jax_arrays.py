"""Run in each process of a job: makes global arrays on many meshes, and saves them.

Arguments: the dataset, the job (HOST:PORT,COUNT,INDEX), and where to save.
"""

import pathlib
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader
from gristmill.dataset.base.errors import InputError

BATCH_SIZE = 16
LENGTH = 8

# Name -> (shape of the mesh, order of the devices, spec of "tokens"). With 8 devices
# in 4 processes `in turn` has every row on a pair of processes, in `mixed up` no
# process has contiguous rows.
MESHES = {
    "data": ({"data": 8}, range(8), PartitionSpec("data")),
    "data x model": ({"data": 4, "model": 2}, range(8), PartitionSpec("data")),
    "data, length x model": (
        {"data": 4, "model": 2},
        range(8),
        PartitionSpec("data", "model"),
    ),
    "rows on several processes": (
        {"data": 2, "model": 4},
        range(8),
        PartitionSpec("data"),
    ),
    "all rows everywhere, length cut": (
        {"data": 1, "model": 8},
        range(8),
        PartitionSpec("data", "model"),
    ),
    "backwards": ({"data": 8}, range(7, -1, -1), PartitionSpec("data")),
    "mixed up": ({"data": 8}, [0, 7, 2, 5, 4, 3, 6, 1], PartitionSpec("data")),
    "two batch axes": (
        {"model": 2, "fsdp": 2, "data": 2},
        range(8),
        PartitionSpec(("data", "fsdp")),
    ),
}


def decode(records):
    """Returns the first bytes of records, and of each a number and its length."""
    tokens = np.array([list(record[:LENGTH]) for record in records], np.int32)
    lengths = np.array([len(record) for record in records], np.int64)
    return {"tokens": tokens, "of": (lengths, lengths[:, None] * np.float32(0.5))}


def lengths(records):
    return {"lengths": np.array([len(record) for record in records], np.int32)}


@jax.jit
def sums(batch):
    counted = jax.numpy.where(batch["mask"], batch["lengths"], 0)
    return jax.numpy.stack([batch["mask"].sum(), counted.sum(), (counted**2).sum()])


def evaluate(path, sharding):
    """Returns how many records there are, and sums over all of them, by the devices.

    Batches of 24 do not divide the records: some devices have only padding at the end.
    """
    batches = loader.global_batches(
        loader.open(path), batch_size=24, epochs=1, drop_remainder=False
    )
    feed = batches.feed(decode=lengths, host=sharding, mask="mask")
    with loader.to_jax(feed, sharding) as arrays:
        return np.sum([np.asarray(sums(batch)) for batch in arrays], axis=0)


def main(path, job, folder):
    coordinator, count, index = job.split(",")
    if int(count) > 1:
        jax.distributed.initialize(
            coordinator, int(count), int(index), initialization_timeout=60
        )
    batches = loader.global_batches(loader.open(path), batch_size=BATCH_SIZE, seed=5)
    out = {}
    for name, (axes, order, spec) in MESHES.items():
        devices = np.array(jax.devices())[list(order)].reshape(tuple(axes.values()))
        mesh = Mesh(devices, tuple(axes))
        rows_spec = PartitionSpec(*spec[:1])
        shardings = {
            "tokens": NamedSharding(mesh, spec),
            "of": NamedSharding(mesh, rows_spec),
        }
        mine = batches.feed(decode=decode, host=shardings["tokens"])
        with loader.to_jax(mine, shardings) as feed:
            for step, batch in zip(range(2), feed, strict=False):
                whole = multihost_utils.process_allgather(batch, tiled=True)
                leaves = [whole["tokens"], *whole["of"], feed.get_state()["step"]]
                for number, leaf in enumerate(leaves):
                    out[f"{name}/{step}/{number}"] = np.asarray(leaf)
        out[f"{name}/rows"] = mine.rows
        # The rows of hosts in turn, where they are others, are refused.
        with loader.to_jax(batches.feed(decode=decode, host="jax"), shardings) as feed:
            try:
                next(feed)
            except InputError as e:
                out[f"{name}/refused"] = np.array(str(e))
        out[f"{name}/evaluated"] = evaluate(path, shardings["of"])
    np.savez(pathlib.Path(folder) / f"{index}-of-{count}.npz", **out)


if __name__ == "__main__":
    main(*sys.argv[1:])
