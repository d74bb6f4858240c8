"""Run in each process of a job: global arrays on many meshes are the global batches.

Arguments: the dataset, and the job (HOST:PORT,COUNT,INDEX).
"""

import sys

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader
from gristmill.dataset import InputError

BATCH_SIZE = 16
LENGTH = 8


def sharding(*spec, order=range(8), **axes):
    """Returns a sharding over a mesh of the devices, taken in an order."""
    devices = np.array(jax.devices())[[*order]].reshape(tuple(axes.values()))
    return NamedSharding(Mesh(devices, tuple(axes)), PartitionSpec(*spec))


def shardings():
    """Returns how to divide rows, and their length, by names.

    With 8 devices in 4 processes each row of `two batch axes` is on a pair of
    processes, and in `mixed up` no process has contiguous rows.
    """
    return {
        "data": sharding("data", data=8),
        "data, length x model": sharding("data", "model", data=4, model=2),
        "rows on several processes": sharding("data", data=2, model=4),
        "all rows everywhere": sharding("data", "model", data=1, model=8),
        "backwards": sharding("data", data=8, order=range(7, -1, -1)),
        "mixed up": sharding("data", data=8, order=[0, 7, 2, 5, 4, 3, 6, 1]),
        "two batch axes": sharding(("data", "fsdp"), model=2, fsdp=2, data=2),
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


def check_evaluation(dataset, rows):
    """Checks how many records there are, and sums over all of them, by the devices.

    Batches of 24 do not divide the records: some devices have only padding at the end.
    """
    batches = loader.global_batches(
        dataset, batch_size=24, epochs=1, drop_remainder=False
    )
    feed = batches.feed(decode=lengths, host=rows, mask="mask")
    with loader.to_jax(feed, rows) as arrays:
        found = np.sum([np.asarray(sums(batch)) for batch in arrays], axis=0)
    sizes = np.array([len(record) for record in dataset])
    assert found.tolist() == [len(sizes), sizes.sum(), (sizes**2).sum()]


def check(dataset, batches, tokens, in_turn):
    """Checks batches, evaluation, and which rows are refused, on one mesh."""
    rows = NamedSharding(tokens.mesh, PartitionSpec(tokens.spec[0]))
    both = {"tokens": tokens, "of": rows}
    mine = batches.feed(decode=decode, host=tokens)
    with loader.to_jax(mine, both) as feed:
        for step, batch in zip(range(2), feed, strict=False):
            whole = multihost_utils.process_allgather(batch, tiled=True)
            expected = decode(batches.read(step))
            jax.tree.map(np.testing.assert_array_equal, whole, expected)
            assert feed.get_state()["step"] == step + 1
    check_evaluation(dataset, rows)
    # The rows of hosts in turn are refused where they are others.
    with loader.to_jax(batches.feed(decode=decode, host="jax"), both) as feed:
        if np.array_equal(mine.rows, in_turn):
            next(feed)
        else:
            with pytest.raises(InputError, match=r"feed\(host=sharding\)"):
                next(feed)


def main(path, job):
    coordinator, *numbers = job.split(",")
    count, index = map(int, numbers)
    if count > 1:
        jax.distributed.initialize(coordinator, count, index, initialization_timeout=60)
    dataset = loader.open(path)
    batches = loader.global_batches(dataset, batch_size=BATCH_SIZE, seed=5)
    in_turn = np.split(np.arange(BATCH_SIZE), count)[index]
    for name, tokens in shardings().items():
        print(name, flush=True)
        check(dataset, batches, tokens, in_turn)


if __name__ == "__main__":
    main(*sys.argv[1:])
