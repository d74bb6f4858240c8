"""What a run has seen, against every row of its steps, one by one.

Runs are random: mixtures, editions that are appended and removed, selections, weights
and batch sizes that change. The truth is taken of editions that are kept.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import math
import random
from typing import Any, NamedTuple

import pytest

from gristmill import dataset as writing
from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.accounting.account import NAN, UNKNOWN, account
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.provenance.trace import locate_record
from tests.support import conversion
from tests.support.columns import ID, attach, attach_numbers, example
from tests.support.datasets import convert
from tests.support.packed import documents, pack
from tests.support.removals import remove_from

SELECT = "language == 'de'"
LOST = [2, 11, 12, 13, 14, 40]


def _plain(folder, ids, edition=1):
    """Converts records of these ids from three files, or appends them."""
    cut = len(ids) // 3
    parts = ids[:cut], ids[cut : cut + 1], ids[cut + 1 :]
    return convert(folder, [[*map(example, part)] for part in parts], edition=edition)


def _attach(folder, output, ids, **options):
    """Attaches columns that follow from the ids of records."""
    ids = [*ids]
    languages = ["de" if number % 3 else "en" for number in ids]
    scores = [number % 7 / 7 if number % 5 else math.nan for number in ids]
    keys = [f"doc{number}" for number in ids]
    table = {"id": keys, "language": languages, "score": scores}
    attach(output, folder, table, ID, **options)


def make_plain(folder):
    """Editions 1, 2 without some records, 3 with more, 5 without some of both."""
    output = _plain(folder, range(41))
    _attach(folder, output, range(41))
    remove_from(output, LOST)
    _plain(folder, range(100, 120), 3)
    there = [n for n in range(41) if n not in LOST]
    _attach(folder, output, [*there, *range(100, 120)], overwrite=True)
    remove_from(output, [0, 9, 53, 54])


def make_lineage(folder):
    """A conversion of a dataset of two editions."""
    _plain(folder / "base", range(30))
    base = _plain(folder / "base", range(30, 39), 2)
    job = conversion.job_of(base, folder / "out", name="e", plan=("num_shards", 3))
    conversion.convert(job)
    _attach(folder, job.output, range(39))


def make_rows(folder):
    """Packed rows of documents, of which one is longer than a row."""
    files = [[*documents(9, seed=n), [*range(1, 90)]] for n in range(3)]
    output = pack(folder, files, method="best-fit")
    attach_numbers(output, folder, len(loader.open(output)))


def make_written(folder):
    """Records of a program, whose sources nobody knows."""
    with writing.Writer(folder / "out", records_per_shard=7) as writer:
        for number in range(19):
            writer.write(example(number))
    _attach(folder, str(folder / "out"), range(19))


MAKE = {
    "plain": make_plain,
    "lineage": make_lineage,
    "rows": make_rows,
    "written": make_written,
}


EDITIONS = {"plain": [1, 2, 3, 5]}
LINEAGES = {1: 0, 2: 1, 3: 1, 5: 2}
"""Which editions of `plain` begin with each other: those between removals."""


@functools.cache
def opened(path, edition, selected):
    dataset = loader.open(path, edition=edition)
    return dataset.select(SELECT) if selected else dataset


class Unit(NamedTuple):
    """A document, or a piece of one."""

    source: str | None
    document: Any  # None for a piece that does not begin one.
    piece: Any = None
    tokens: int | None = None


@functools.cache
def units(dataset, record):
    """Returns what is in a record, by where it comes from."""
    at = locate_record(dataset, record)
    if not at.pieces:
        return [Unit(at.source_path, dataset[record])]
    found = []
    for piece in at.pieces:
        place = piece.source_path, piece.source_offset_bytes
        begins = None if piece.first_token else place
        size = piece.end_token - piece.begin_token
        found.append(Unit(place[0], begins, (record, piece.begin_token), size))
    return found


@functools.cache
def column(dataset, name):
    values = dataset.column(name)[:].tolist()
    return values


def labels_of(batches):
    """Returns what the parts of each dataset of a run are called."""
    names = batches.names or [batches.datasets[0].path] * len(batches.datasets)
    found = []
    for one in batches.datasets:
        found.append(LINEAGES[one.facts.edition or 1] if "/plain/" in one.path else 0)
    last = {name: {} for name in names}
    for name, lineage, one in zip(names, found, batches.datasets, strict=True):
        last[name][lineage] = one.facts.edition
    return [
        name + (f", edition {last[name][lineage]}" if len(last[name]) > 1 else "")
        for name, lineage in zip(names, found, strict=True)
    ]


def counted(batches, steps, by):
    """Returns what the steps have, by looking at each row."""
    found = collections.defaultdict[Any, list[Any]](lambda: [0, set(), 0, {}])
    labels = labels_of(batches)
    batch = (batches.schedule.batch(step) for step in range(steps))
    for number, record in (row for one in batch for row in zip(*one, strict=True)):
        dataset = batches.datasets[number]
        for unit in units(dataset, int(record)):
            value, note = None, None
            if by == "source":
                value, note = unit.source, None if unit.source else UNKNOWN
            elif by != "dataset":
                value = column(dataset, by)[record]
                value, note = (value, None) if value == value else (None, NAN)
            totals = found[labels[number], value, note]
            if unit.document is not None:
                totals[0] += 1
                totals[1].add(unit.document)
            if unit.tokens is None:
                totals[2] = None
            else:
                totals[2] += unit.tokens
                totals[3][unit.piece] = unit.tokens
    return {
        key: (seen, len(once), tokens, None if tokens is None else sum(each.values()))
        for key, (seen, once, tokens, each) in found.items()
    }


def check_random_run(root, seed, kinds):
    chance = random.Random(seed)
    chosen = chance.sample(kinds, min(len(kinds), chance.choice((1, 1, 2, 3))))
    places = {f"d{number}": f"{root}/{kind}/out" for number, kind in enumerate(chosen)}
    editions = {n: EDITIONS.get(k, [1]) for n, k in zip(places, chosen, strict=True)}
    selected = {n: "rows" not in places[n] and chance.random() < 0.3 for n in places}
    mixed = len(places) > 1 or chance.random() < 0.2

    def newest(name):
        return opened(places[name], editions[name][-1], selected[name])

    def weights():
        return {name: chance.randrange(1, 5) for name in places} if mixed else None

    def given(datasets):
        return datasets if mixed else datasets["d0"]

    first = {
        name: newest(name)
        if selected[name]
        else opened(places[name], chance.choice(editions[name]), False)
        for name in places
    }
    batches = loader.global_batches(
        given(first),
        batch_size=chance.randrange(1, 12),
        seed=chance.randrange(9),
        shuffle=chance.choice(SHUFFLES),
        epochs=chance.choice((None, None, 9)),
        weights=weights(),
    )
    limit = max(min(batches.steps or 60, 60), 5)
    for step in sorted(chance.sample(range(1, limit), chance.randrange(4))):
        change = {"batch_size": chance.randrange(1, 12)}
        name, what = chance.choice([*places]), chance.choice("eew ")
        if what == "e" and not selected[name]:
            began = first[name].facts.edition or 1
            edition = chance.choice([e for e in editions[name] if e > began] or [began])
            first[name] = opened(places[name], edition, False)
            change = {"datasets": given({name: first[name]} if mixed else first)}
        elif what == "w" and mixed:
            change = {"weights": weights()}
        with contextlib.suppress(InputError):  # They end before.
            batches = batches.then(**change, step=step)
    limit = min(batches.schedule.step_limit, 90)
    steps = chance.choice((chance.randint(0, limit), limit))
    expected = batches
    if chance.random() < 0.7:  # The datasets have changed since.
        state = json.loads(json.dumps(state_of(batches, steps)))
        batches = batches_of_state(
            given({name: newest(name) for name in places}), state
        )
    for by in chance.sample(("source", "dataset", "language", "score"), 2):
        got = {
            (part.dataset, part.value, part.note): tuple(part.counts)
            for part in account(batches, steps, by=by)
        }
        assert got == counted(expected, steps, by), (seed, by)


SHUFFLES = "none", "global", loader.BlockShuffle(block_records=4, window_blocks=2)
QUICK = ["plain", "written"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("account")


def made(root, kinds):
    for kind in kinds:
        if not (root / kind).exists():
            MAKE[kind](root / kind)


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize(
    "kinds",
    [QUICK, pytest.param([*MAKE], marks=pytest.mark.slow)],
    ids=["quick", "all"],
)
def test_it_is_what_the_rows_have(root, kinds, seed):
    made(root, kinds)
    check_random_run(root, seed, kinds)


def test_it_says_why_it_cannot_count(root):
    made(root, QUICK)
    dataset = loader.open(f"{root}/written/out")
    batches = loader.global_batches(dataset, batch_size=4, epochs=2)
    assert account(batches, 0) == []
    with pytest.raises(InputError, match="steps is out of range"):
        account(batches, 10)
    with pytest.raises(InputError, match="no column 'nothing'"):
        account(batches, 0, by="nothing")
