"""Orders: shuffles, mixtures, and changes of weights, of the options that users give.

That the order itself stays, `tests/conformance/order.json` proves for all sizes.
"""

import functools
import json

import numpy as np

from gristmill import loader
from gristmill.dataset import Writer
from tests.golden.cases import case
from tests.golden.facts import digest, folder


@functools.cache
def numbered(records):
    """Returns a dataset of records that tell their numbers."""
    path = f"{folder().name}/r{records}"
    with Writer(path) as writer:
        for number in range(records):
            writer.write(b"r%05d" % number)
    return loader.open(path)


def numbers(batches, step):
    """Returns the records of a step, in a mixture each with its dataset's number."""
    found = batches.indices(step)
    if isinstance(found, np.ndarray):
        return found.tolist()
    return np.stack([found.datasets, found.records], axis=1).tolist()


def order(batches, *, steps=200):
    """Returns how many steps there are, and a digest of the first ones."""
    end = steps if batches.steps is None else min(steps, batches.steps)
    every = [numbers(batches, step) for step in range(end)]
    return {
        "steps": batches.steps,
        "digest": digest([json.dumps(every).encode()]),
    }


@case
def block_shuffle_by_name():
    """Two windows of the usual size."""
    batches = loader.global_batches(
        numbered(70_000), batch_size=150, shuffle="block", seed=1
    )
    return {"seed 1": order(batches, steps=1000)}


def mixed(**options):
    """Returns batches of a mixture of three datasets."""
    datasets = {"web": numbered(1000), "code": numbered(65), "books": numbered(17)}
    return loader.global_batches(datasets, batch_size=10, **options)


@case
def mixture_by_lengths():
    return {
        "no end": order(mixed(seed=1)),
        "end": order(mixed(seed=1, epochs=2)),
        "remainder": order(mixed(seed=1, epochs=1, drop_remainder=False)),
        "stored": order(mixed(shuffle="none")),
    }


@case
def names_are_part_of_the_order():
    data = numbered(64)
    given = {"alone": data, "named": {"web": data}}
    given |= {"twice": {"a": data, "b": data}, "turned": {"b": data, "a": data}}
    return {
        name: order(loader.global_batches(datasets, batch_size=8))
        for name, datasets in given.items()
    }


@case
def weights_that_change():
    before = mixed(seed=2, weights={"web": 8, "code": 1, "books": 1})
    weights = {"web": 1, "code": "1/2", "books": "1/2"}
    return {"later": order(before.then(weights=weights, step=100))}
