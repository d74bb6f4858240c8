"""Orders: shuffles, mixtures, batch sizes, hosts, states."""

import functools
import json
from fractions import Fraction

import numpy as np

from gristmill import loader
from gristmill.dataset import ColumnWriter, Writer
from tests.golden.cases import case
from tests.golden.facts import digest, folder

SEEDS = (0, 1, -7, 2**70)


def numbered(records, shards=1):
    """Returns a dataset of records that tell their numbers."""
    return loader.open(written(records, shards, "r"))


@functools.cache
def written(records, shards, prefix):
    """Returns the path of a dataset of records that tell their numbers."""
    path = f"{folder().name}/{prefix}{records}-{shards}"
    with Writer(path, shard_bytes=6 * -(-records // shards)) as writer:
        for number in range(records):
            writer.write(f"{prefix}{number:05d}".encode())
    return path


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


def read(batches, steps):
    return [record for step in range(steps) for record in batches.read(step)]


@case
def global_shuffle():
    return {
        f"seed {seed}": order(batches_of(1000, 8, seed=seed), steps=1000)
        for seed in SEEDS
    }


@case
def global_shuffle_of_few_records():
    return {
        str(records): order(batches_of(records, 1, seed=5, epochs=4), first=8)
        for records in (1, 2, 3, 17, 64, 65)
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
def global_shuffle_with_an_end():
    return {
        str(drop): order(
            batches_of(65, 16, seed=3, epochs=3, drop_remainder=drop), first=20
        )
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


def blocks(block, window):
    return loader.BlockShuffle(block_records=block, window_blocks=window)


@case
def block_shuffle_of_sizes():
    sizes = ((1000, 4, 3), (1000, 1, 16), (1000, 64, 1), (65, 64, 9), (17, 5, 2))
    return {
        f"{records} {block} {window}": order(
            batches_of(records, 8, seed=11, shuffle=blocks(block, window))
        )
        for records, block, window in sizes
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
def mixture_in_blocks():
    weights = {"web": 5, "code": 3, "books": 1}
    return order(mixed(seed=4, shuffle=blocks(4, 5), weights=weights), steps=400)


@case
def mixture_by_tokens():
    datasets = {"web": numbered(1000), "code": numbered(65)}
    facts = {}
    for tokens in (7, {"web": 300, "code": 1000}):
        weights = loader.token_weights(
            datasets, {"web": 3, "code": 1}, tokens_per_row=tokens
        )
        batches = batches_of(datasets, 12, seed=6, weights=weights)
        shares = {name: str(share) for name, share in weights.items()}
        facts[str(tokens)] = {"shares": shares, "order": order(batches)}
    return facts


@case
def names_are_part_of_the_order():
    data = numbered(64)
    given = {"alone": data, "named": {"web": data}}
    given |= {"twice": {"a": data, "b": data}, "turned": {"b": data, "a": data}}
    return {name: order(batches_of(datasets, 8)) for name, datasets in given.items()}


@case
def shards_do_not_matter():
    facts = {}
    for shards in (1, 3, 8):
        data = numbered(65, shards)
        batches = batches_of(data, 16, seed=9, epochs=2)
        records = digest(read(batches, 8))
        found = {"order": order(batches), "records": records}
        facts[str(shards)] = found | {"all": digest(list(data))}
    return facts


def sizes_at(batches, *steps):
    return [batches.schedule.batch_size(step) for step in steps]


@case
def batch_size_that_grows_at_the_end_of_an_epoch():
    larger = batches_of(64, 8, seed=3).then(batch_size=16, step=8)
    return {"sizes": sizes_at(larger, 0, 7, 8, 99), "order": order(larger, first=10)}


def around(batches, *steps):
    return {str(step): shown(numbers(batches, step)) for step in steps}


@case
def batch_size_that_grows_within_an_epoch():
    larger = batches_of(1000, 8, seed=3, epochs=2)
    larger = larger.then(batch_size=16, step=5).then(batch_size=32, step=40)
    return {
        "sizes": sizes_at(larger, 0, 4, 5, 39, 40, 60),
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


def of_hosts(make, hosts, steps, *, state=None):
    """Returns the parts of each host in some steps, which together are the batches."""
    parts = []
    for host in range(hosts):
        with make().feed(host=(host, hosts)) as feed:
            if state is not None:
                feed.set_state(state)
            parts.append([next(feed) for _ in steps])
    joined = [[r for part in step for r in part] for step in zip(*parts, strict=True)]
    assert joined == [make().read(step) for step in steps]
    return parts, joined


@case
def parts_of_hosts():
    """The parts of 1, 2, 3 and 8 hosts, which together are the global batch."""
    facts = {}
    for hosts in (1, 2, 3, 8):
        parts, _ = of_hosts(lambda: batches_of(1000, 48, seed=21), hosts, range(12))
        facts[str(hosts)] = [
            [digest([record for step in part for record in step]), part[0][0].decode()]
            for part in parts
        ]
    return facts


@case
def rows_that_are_given():
    """Rows of a host that do not follow each other."""
    batches = batches_of(65, 8, seed=2)
    taken = (batches.read(step, np.array([6, 0, 3])) for step in range(20))
    return {"records": [b" ".join(records).decode() for records in taken]}


@case
def joined_datasets():
    paths = [numbered(65, 3).path, numbered(17).path, numbered(64, 8).path]
    data = loader.open(paths)
    batches = batches_of(data, 10, seed=8, epochs=3)
    taken = read(batches, 40)
    return {
        "records": len(data),
        "all": digest(list(data)),
        "order": order(batches),
        "read": digest(taken),
        "first": b" ".join(taken[:10]).decode(),
    }


@functools.cache
def scored():
    """Returns a dataset with columns."""
    path = written(300, 4, "s")
    with ColumnWriter(path, {"score": "float64", "language": "text"}) as writer:
        score = np.arange(300) * 7 % 10 / 10
        writer.write({"score": score, "language": ["de", "en", "fr"] * 100})
    return loader.open(path)


@case
def selections():
    data, facts = scored(), {}
    for condition in ("score > 0.5", "score <= 0.3 and language in ('de', 'fr')"):
        chosen = data.select(condition)
        batches = batches_of(chosen, 7, seed=8)
        facts[condition] = {
            "records": digest(list(chosen)),
            "first": b" ".join(chosen[:5]).decode(),
            "order": order(batches),
            "read": b" ".join(batches.read(100)).decode(),
        }
    chosen = data.select(np.arange(300) % 11 == 3)
    both = {"some": chosen, "all": data}
    batches = batches_of(both, 9, weights={"some": 1, "all": 2})
    facts["mask"] = {"records": digest(list(chosen)), "order": order(batches)}
    return facts


def sightings(batches, records, **where):
    """Returns steps and rows that see each record, as the inverse of the order."""
    every = []
    for record in range(records):
        found = batches.find(record, **where)
        every.append(" ".join(f"{seen.epoch}:{seen.step}:{seen.row}" for seen in found))
    return {"first": every[:3], "digest": digest(text.encode() for text in every)}


@case
def steps_that_see_a_record():
    facts = {}
    for name, shuffle in (("none",) * 2, ("global",) * 2, ("block", blocks(4, 3))):
        batches = batches_of(65, 6, seed=7, shuffle=shuffle)
        facts[name] = sightings(batches, 65, first_epoch=1, stop_epoch=4)
        for record in (0, 17, 64):
            for _, step, row in batches.find(record, stop_epoch=5):
                assert numbers(batches, step)[row] == record
    mixture = mixed(seed=3, weights={"web": 1, "code": 2, "books": 2})
    for name, records in (("web", 100), ("code", 65), ("books", 17)):
        found = sightings(mixture, records, dataset=name, stop_epoch=2)
        facts[f"mixture, {name}"] = found
    return facts


@case
def resume_on_other_hosts():
    """A state of two hosts is given to three, whose parts follow it."""
    facts = {}
    for name, make in (
        ("one", lambda: batches_of(1000, 12, seed=5)),
        ("mixture", lambda: mixed(12, seed=5).then(batch_size=18, step=3)),
    ):
        with make().feed(host=(1, 2)) as feed:
            for _ in range(7):
                next(feed)
            state = json.loads(json.dumps(feed.get_state()))
        _, joined = of_hosts(make, 3, (7, 8, 9), state=state)
        facts[name] = [b" ".join(step).decode() for step in joined]
    return facts
