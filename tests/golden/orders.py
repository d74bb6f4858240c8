"""Orders: shuffles, mixtures, batch sizes, hosts, states."""

import functools
import json
from fractions import Fraction

import numpy as np

from gristmill import loader
from gristmill.dataset import Writer
from tests.golden.cases import case
from tests.golden.facts import digest, folder

SEEDS = (0, 1, -7, 2**70)


@functools.cache
def numbered(records):
    """Returns a dataset of records that tell their numbers."""
    path = f"{folder().name}/r{records}"
    with Writer(path) as writer:
        for number in range(records):
            writer.write(b"r%05d" % number)
    return loader.open(path)


def batches_of(records, batch_size, **options):
    """Returns batches of records that tell their numbers, of a dataset or several."""
    data = numbered(records) if isinstance(records, int) else records
    return loader.global_batches(data, batch_size=batch_size, **options)


def numbers(batches, step):
    """Returns the records of a step, in a mixture each with its dataset's number."""
    found = batches.indices(step)
    if isinstance(found, np.ndarray):
        return found.tolist()
    return np.stack([found.datasets, found.records], axis=1).tolist()


def shown(records):
    """Returns records of a step as a short text."""
    return " ".join(
        f"{record[0]}:{record[1]}" if isinstance(record, list) else str(record)
        for record in records[:32]
    )


def order(batches, *, steps=200, first=2):
    """Returns the records of the first steps, and a digest of those of many."""
    end = steps if batches.steps is None else min(steps, batches.steps)
    every = [numbers(batches, step) for step in range(end)]
    return {
        "steps": batches.steps,
        "first": [shown(records) for records in every[:first]],
        "last": shown(every[-1][:8]),
        "digest": digest([json.dumps(every).encode()]),
    }


@case
def global_shuffle():
    return {
        f"seed {seed}": order(batches_of(1000, 8, seed=seed), steps=1000)
        for seed in SEEDS
    }


@case
def stored_order():
    options = {"shuffle": "none"}
    return {
        f"{epochs} epochs, {drop}": order(
            batches_of(17, 4, epochs=epochs, drop_remainder=drop, **options), first=20
        )
        for epochs in (1, 3)
        for drop in (True, False)
    }


@case
def block_shuffle_by_name():
    """Two windows of the usual size."""
    return {
        f"seed {seed}": order(
            batches_of(70_000, 150, shuffle="block", seed=seed), steps=1000
        )
        for seed in SEEDS[:2]
    }


def mixed(batch_size=10, **options):
    """Returns batches of a mixture of three datasets."""
    datasets = {"web": numbered(1000), "code": numbered(65), "books": numbered(17)}
    return batches_of(datasets, batch_size, **options)


@case
def mixture_by_lengths():
    return {
        "no end": order(mixed(seed=1)),
        "end": order(mixed(seed=1, epochs=2)),
        "remainder": order(mixed(seed=1, epochs=1, drop_remainder=False)),
        "stored": order(mixed(shuffle="none")),
    }


@case
def mixture_by_weights():
    given = (
        {"web": 0.7, "code": 0.2, "books": 0.1},
        {"web": 1, "code": 1, "books": 1},
        {"web": "1/7", "code": Fraction(3, 7), "books": "3/7"},
        {"books": 1e-3, "code": 1, "web": 999},
    )
    return {
        number: order(mixed(seed=2, weights=weights))
        for number, weights in enumerate(given)
    }


@case
def names_are_part_of_the_order():
    data = numbered(64)
    given = {"alone": data, "named": {"web": data}}
    given |= {"twice": {"a": data, "b": data}, "turned": {"b": data, "a": data}}
    return {name: order(batches_of(datasets, 8)) for name, datasets in given.items()}


def around(batches, *steps):
    return {str(step): shown(numbers(batches, step)) for step in steps}


@case
def batch_size_that_grows_within_an_epoch():
    larger = batches_of(1000, 8, seed=3, epochs=2)
    larger = larger.then(batch_size=16, step=5).then(batch_size=32, step=40)
    return {
        "sizes": [larger.schedule.batch_size(n) for n in (0, 4, 5, 39, 40, 60)],
        "around": around(larger, 4, 5, 39, 40),
        "order": order(larger),
    }


@case
def weights_that_change():
    before = mixed(seed=2, weights={"web": 8, "code": 1, "books": 1})
    weights = {"web": 1, "code": "1/2", "books": "1/2"}
    later = before.then(weights=weights, step=100)
    return {
        "before": order(before, steps=100),
        "same": order(later, steps=100),
        "around": around(later, 99, 100, 101),
        "later": order(later),
    }


@case
def resume_on_other_hosts():
    """A state of two hosts is given to three, whose parts follow it."""
    facts = {}
    for name, batches in (
        ("one", batches_of(1000, 12, seed=5)),
        ("mixture", mixed(12, seed=5).then(batch_size=18, step=3)),
    ):
        with batches.feed(host=(1, 2)) as feed:
            for _ in range(7):
                next(feed)
            state = json.loads(json.dumps(feed.get_state()))
        parts = []
        for host in range(3):
            with batches.feed(host=(host, 3)) as feed:
                feed.set_state(state)
                parts.append([b" ".join(next(feed)) for _ in range(3)])
        facts[name] = [b" ".join(step).decode() for step in zip(*parts, strict=True)]
    return facts
