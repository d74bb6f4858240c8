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
    texts = [f"{prefix}{number:05d}".encode() for number in range(records)]
    with Writer(path, shard_bytes=6 * -(-records // shards)) as writer:
        for text in texts:
            writer.write(text)
    return path


def numbers(batches, step):
    """Returns the records of a step, in a mixture each with its dataset's number."""
    found = batches.indices(step)
    if isinstance(found, np.ndarray):
        return found.tolist()
    return np.stack([found.datasets, found.records], axis=1).tolist()


def shown(records):
    """Returns records of a step as a short text."""
    texts = [
        f"{record[0]}:{record[1]}" if isinstance(record, list) else str(record)
        for record in records[:32]
    ]
    return " ".join(texts)


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
def global_shuffle(_):
    data = numbered(1000)
    return {
        f"seed {seed}": order(
            loader.global_batches(data, batch_size=8, seed=seed), steps=1000
        )
        for seed in SEEDS
    }


@case
def global_shuffle_of_few_records(_):
    facts = {}
    for records in (1, 2, 3, 17, 64, 65):
        data = numbered(records)
        batches = loader.global_batches(data, batch_size=1, seed=5, epochs=4)
        facts[str(records)] = order(batches, first=8)
    return facts


@case
def stored_order(_):
    data = numbered(17)
    facts = {}
    for epochs in (1, 3):
        for drop in (True, False):
            batches = loader.global_batches(
                data, batch_size=4, shuffle="none", epochs=epochs, drop_remainder=drop
            )
            facts[f"{epochs} epochs, {drop}"] = order(batches, first=20)
    return facts


@case
def global_shuffle_with_an_end(_):
    data = numbered(65)
    return {
        str(drop): order(
            loader.global_batches(
                data, batch_size=16, seed=3, epochs=3, drop_remainder=drop
            ),
            first=20,
        )
        for drop in (True, False)
    }


@case
def block_shuffle_by_name(_):
    """Two windows of the usual size."""
    data = numbered(70_000)
    return {
        f"seed {seed}": order(
            loader.global_batches(data, batch_size=150, shuffle="block", seed=seed),
            steps=1000,
        )
        for seed in SEEDS[:2]
    }


@case
def block_shuffle_of_sizes(_):
    facts = {}
    for records, block, window in (
        (1000, 4, 3),
        (1000, 1, 16),
        (1000, 64, 1),
        (65, 64, 9),
        (17, 5, 2),
    ):
        batches = loader.global_batches(
            numbered(records),
            batch_size=8,
            seed=11,
            shuffle=loader.BlockShuffle(block_records=block, window_blocks=window),
        )
        facts[f"{records} {block} {window}"] = order(batches)
    return facts


def mixed(*, batch_size=10, **options):
    """Returns batches of a mixture of three datasets."""
    datasets = {"web": numbered(1000), "code": numbered(65), "books": numbered(17)}
    return loader.global_batches(datasets, batch_size=batch_size, **options)


@case
def mixture_by_lengths(_):
    return {
        "no end": order(mixed(seed=1)),
        "end": order(mixed(seed=1, epochs=2)),
        "remainder": order(mixed(seed=1, epochs=1, drop_remainder=False)),
        "stored": order(mixed(shuffle="none")),
    }


@case
def mixture_by_weights(_):
    return {
        str(number): order(mixed(seed=2, weights=weights))
        for number, weights in enumerate(
            (
                {"web": 0.7, "code": 0.2, "books": 0.1},
                {"web": 1, "code": 1, "books": 1},
                {"web": "1/7", "code": Fraction(3, 7), "books": "3/7"},
                {"books": 1e-3, "code": 1, "web": 999},
            )
        )
    }


@case
def mixture_in_blocks(_):
    shuffle = loader.BlockShuffle(block_records=4, window_blocks=5)
    weights = {"web": 5, "code": 3, "books": 1}
    return order(mixed(seed=4, shuffle=shuffle, weights=weights), steps=400)


@case
def mixture_by_tokens(_):
    datasets = {"web": numbered(1000), "code": numbered(65)}
    facts = {}
    for tokens in (7, {"web": 300, "code": 1000}):
        weights = loader.token_weights(
            datasets, {"web": 3, "code": 1}, tokens_per_row=tokens
        )
        batches = loader.global_batches(
            datasets, batch_size=12, seed=6, weights=weights
        )
        shares = {name: str(share) for name, share in weights.items()}
        facts[str(tokens)] = {"shares": shares, "order": order(batches)}
    return facts


@case
def names_are_part_of_the_order(_):
    data = numbered(64)
    return {
        "alone": order(loader.global_batches(data, batch_size=8)),
        "named": order(loader.global_batches({"web": data}, batch_size=8)),
        "twice": order(loader.global_batches({"a": data, "b": data}, batch_size=8)),
        "turned": order(loader.global_batches({"b": data, "a": data}, batch_size=8)),
    }


@case
def shards_do_not_matter(_):
    facts = {}
    for shards in (1, 3, 8):
        data = numbered(65, shards)
        batches = loader.global_batches(data, batch_size=16, seed=9, epochs=2)
        read = [record for step in range(8) for record in batches.read(step)]
        facts[str(shards)] = {
            "order": order(batches),
            "records": digest(read),
            "all": digest(list(data)),
        }
    return facts


@case
def batch_size_that_grows_at_the_end_of_an_epoch(_):
    batches = loader.global_batches(numbered(64), batch_size=8, seed=3)
    larger = batches.then(batch_size=16, step=8)
    sizes = [larger.schedule.batch_size(step) for step in (0, 7, 8, 99)]
    return {"sizes": sizes, "order": order(larger, first=10)}


@case
def batch_size_that_grows_within_an_epoch(_):
    batches = loader.global_batches(numbered(1000), batch_size=8, seed=3, epochs=2)
    larger = batches.then(batch_size=16, step=5).then(batch_size=32, step=40)
    around = {str(step): shown(numbers(larger, step)) for step in (4, 5, 39, 40)}
    sizes = [larger.schedule.batch_size(step) for step in (0, 4, 5, 39, 40, 60)]
    return {"sizes": sizes, "around": around, "order": order(larger)}


@case
def weights_that_change(_):
    before = mixed(seed=2, weights={"web": 8, "code": 1, "books": 1})
    weights = {"web": 1, "code": "1/2", "books": "1/2"}
    later = before.then(weights=weights, step=100)
    around = {str(step): shown(numbers(later, step)) for step in (99, 100, 101)}
    return {
        "before": order(before, steps=100),
        "same": order(later, steps=100),
        "around": around,
        "later": order(later),
    }


@case
def parts_of_hosts(_):
    """The parts of 1, 2, 3 and 8 hosts, which together are the global batch."""
    batches = loader.global_batches(numbered(1000), batch_size=48, seed=21)
    facts = {}
    for hosts in (1, 2, 3, 8):
        parts = []
        for host in range(hosts):
            with batches.feed(host=(host, hosts)) as feed:
                parts.append([next(feed) for _ in range(12)])
        joined = [
            [r for part in step for r in part] for step in zip(*parts, strict=True)
        ]
        assert joined == [batches.read(step) for step in range(12)]
        facts[str(hosts)] = [
            [digest([record for step in part for record in step]), part[0][0].decode()]
            for part in parts
        ]
    return facts


@case
def rows_that_are_given(_):
    """Rows of a host that do not follow each other."""
    batches = loader.global_batches(numbered(65), batch_size=8, seed=2)
    rows = np.array([6, 0, 3])
    taken = (batches.read(step, rows) for step in range(20))
    return {"records": [b" ".join(records).decode() for records in taken]}


@case
def joined_datasets(_):
    paths = [numbered(65, 3).path, numbered(17).path, numbered(64, 8).path]
    data = loader.open(paths)
    batches = loader.global_batches(data, batch_size=10, seed=8, epochs=3)
    read = [record for step in range(40) for record in batches.read(step)]
    return {
        "records": len(data),
        "all": digest(list(data)),
        "order": order(batches),
        "read": digest(read),
        "first": b" ".join(read[:10]).decode(),
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
def selections(_):
    data = scored()
    facts = {}
    for condition in ("score > 0.5", "score <= 0.3 and language in ('de', 'fr')"):
        chosen = data.select(condition)
        batches = loader.global_batches(chosen, batch_size=7, seed=8)
        facts[condition] = {
            "records": digest(list(chosen)),
            "first": b" ".join(chosen[:5]).decode(),
            "order": order(batches),
            "read": b" ".join(batches.read(100)).decode(),
        }
    mask = np.arange(300) % 11 == 3
    chosen = data.select(mask)
    batches = loader.global_batches(
        {"some": chosen, "all": data}, batch_size=9, weights={"some": 1, "all": 2}
    )
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
def steps_that_see_a_record(_):
    data = numbered(65)
    block = loader.BlockShuffle(block_records=4, window_blocks=3)
    facts = {}
    for name, shuffle in (("none", "none"), ("global", "global"), ("block", block)):
        batches = loader.global_batches(data, batch_size=6, seed=7, shuffle=shuffle)
        facts[name] = sightings(batches, 65, first_epoch=1, stop_epoch=4)
        for record in (0, 17, 64):
            for _, step, row in batches.find(record, stop_epoch=5):
                assert numbers(batches, step)[row] == record
    mixture = mixed(seed=3, weights={"web": 1, "code": 2, "books": 2})
    for name, records in (("web", 100), ("code", 65), ("books", 17)):
        facts[f"mixture, {name}"] = sightings(
            mixture, records, dataset=name, stop_epoch=2
        )
    return facts


@case
def resume_on_other_hosts(_):
    """A state of two hosts is given to three, whose parts follow it."""
    facts = {}
    for name, make in (
        ("one", lambda: loader.global_batches(numbered(1000), batch_size=12, seed=5)),
        ("mixture", lambda: mixed(batch_size=12, seed=5).then(batch_size=18, step=3)),
    ):
        batches = make()
        with batches.feed(host=(1, 2)) as feed:
            for _ in range(7):
                next(feed)
            state = json.loads(json.dumps(feed.get_state()))
        parts = []
        for host in range(3):
            with make().feed(host=(host, 3)) as feed:
                feed.set_state(state)
                parts.append([next(feed) for _ in range(3)])
        joined = [
            [r for part in step for r in part] for step in zip(*parts, strict=True)
        ]
        assert joined == [batches.read(step) for step in (7, 8, 9)]
        facts[name] = [b" ".join(step).decode() for step in joined]
    return facts
