"""What a run has seen, against every row of its steps, one by one.

Runs are random: mixtures, editions that are appended and removed, selections, weights
and batch sizes that change. The truth is taken of editions that are kept.
"""

import collections
import contextlib
import functools
import json
import math
import random

import pytest

from gristmill import dataset as writing
from gristmill import loader
from gristmill.dataset import InputError
from gristmill.loader.accounting.account import NAN, UNKNOWN, account
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.provenance.trace import locate_record
from tests.support import conversion
from tests.support.columns import NUMBER, attach, example
from tests.support.datasets import convert
from tests.support.packed import documents, pack
from tests.support.removals import remove_from

SELECT = "language == 'de'"


def _plain(folder, ids, edition=1):
    """Converts records of these ids from three files, or appends them."""
    cut = len(ids) // 3
    parts = ids[:cut], ids[cut : cut + 1], ids[cut + 1 :]
    return convert(folder, [[*map(example, part)] for part in parts], edition=edition)


def _attach(folder, **options):
    """Attaches columns that follow from the numbers of records."""
    output = str(folder / "out")
    numbers = range(len(loader.open(output)))
    table = {
        "number": [*numbers],
        "language": ["de" if number % 3 else "en" for number in numbers],
        "score": [number % 7 / 7 if number % 5 else math.nan for number in numbers],
    }
    attach(output, folder, table, NUMBER, **options)


def make_plain(folder):
    """Editions 1, 2 without some records, 3 with more, 5 without some of both."""
    output = _plain(folder, range(41))
    _attach(folder)
    remove_from(output, [2, 11, 12, 13, 14, 40])
    _plain(folder, range(100, 120), 3)
    _attach(folder, overwrite=True)
    remove_from(output, [0, 9, 53, 54])


def make_lineage(folder):
    """A conversion of a dataset of two editions."""
    _plain(folder / "base", range(30))
    base = _plain(folder / "base", range(30, 39), 2)
    job = conversion.job_of(base, folder / "out", name="e", plan=("num_shards", 3))
    conversion.convert(job)
    _attach(folder)


def make_rows(folder):
    """Packed rows of documents, of which one is longer than a row."""
    files = [[*documents(9, seed=n), [*range(1, 90)]] for n in range(3)]
    pack(folder, files, method="best-fit")
    _attach(folder)


def make_written(folder):
    """Records of a program, whose sources nobody knows."""
    with writing.Writer(folder / "out", records_per_shard=7) as writer:
        for number in range(19):
            writer.write(example(number))
    _attach(folder)


MAKE = {
    "plain": make_plain,
    "lineage": make_lineage,
    "rows": make_rows,
    "written": make_written,
}
LINEAGES = {1: 0, 2: 1, 3: 1, 5: 2}
"""Which editions of `plain` begin with each other: those between removals."""


@functools.cache
def opened(path, edition, selected):
    dataset = loader.open(path, edition=edition)
    return dataset.select(SELECT) if selected else dataset


# A document, or a piece of one: the document is None if the piece does not begin it.
Unit = collections.namedtuple(
    "Unit", "source document piece tokens", defaults=[None, None]
)


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
    return dataset.column(name)[:].tolist()


def value_of(dataset, record, unit, by):
    """Returns the value that a document counts for, and the note beside it."""
    if by == "dataset":
        return None, None
    if by == "source":
        return unit.source, None if unit.source else UNKNOWN
    value = column(dataset, by)[record]
    return (value, None) if value == value else (None, NAN)


def labels_of(batches):
    """Returns what the parts of each dataset of a run are called."""
    names = batches.names or [batches.datasets[0].path] * len(batches.datasets)
    editions = [one.facts.edition for one in batches.datasets]
    parts = [(n, LINEAGES.get(e)) for n, e in zip(names, editions, strict=True)]
    newest = dict(zip(parts, editions, strict=True))
    several = collections.Counter(name for name, _ in newest)
    return [
        f"{part[0]}, edition {newest[part]}" if several[part[0]] > 1 else part[0]
        for part in parts
    ]


def counted(batches, steps, by):
    """Returns what the steps have, by looking at each row."""
    seen = collections.defaultdict(list)
    labels = labels_of(batches)
    for step in range(steps):
        for number, record in zip(*batches.schedule.batch(step), strict=True):
            dataset = batches.datasets[number]
            for unit in units(dataset, int(record)):
                value = value_of(dataset, record, unit, by)
                seen[labels[number], *value].append(unit)
    return {key: totals(found) for key, found in seen.items()}


def totals(seen):
    documents = [unit.document for unit in seen if unit.document is not None]
    tokens = {unit.piece: unit.tokens for unit in seen}
    known = None not in tokens.values()
    return (
        len(documents),
        len({*documents}),
        sum(unit.tokens for unit in seen) if known else None,
        sum(tokens.values()) if known else None,
    )


def random_run(place, chance, kinds):
    """Returns the batches of a run, and its datasets as they are now."""
    chosen = chance.sample(kinds, min(len(kinds), chance.choice((1, 1, 2, 3))))
    mixed = len(chosen) > 1 or chance.random() < 0.2
    selected = {kind for kind in chosen if kind != "rows" and chance.random() < 0.3}
    editions = {
        kind: [*LINEAGES][-1 if kind in selected else 0 :] if kind == "plain" else [1]
        for kind in chosen
    }

    def datasets(which):
        found = {
            kind: opened(place(kind), left[which], kind in selected)
            for kind, left in editions.items()
        }
        return found if mixed else found[chosen[0]]

    def drawn():
        """Draws a batch size, weights, and editions, none older than before."""
        for left in editions.values():
            if len(left) > 1 and chance.random() < 0.5:
                del left[0]
        found = {"batch_size": chance.randrange(1, 12), "datasets": datasets(0)}
        if mixed:
            found["weights"] = {kind: chance.randrange(1, 5) for kind in chosen}
        return found

    newest = datasets(-1)
    batches = loader.global_batches(
        **drawn(),
        seed=chance.randrange(9),
        shuffle=chance.choice(SHUFFLES),
        epochs=chance.choice((None, None, 9)),
    )
    limit = max(min(batches.steps or 60, 60), 5)
    for step in sorted(chance.sample(range(1, limit), chance.randrange(4))):
        change = {k: value for k, value in drawn().items() if chance.random() < 0.6}
        with contextlib.suppress(InputError):  # They end before.
            batches = batches.then(**change, step=step)
    return batches, newest


SHUFFLES = "none", "global", loader.BlockShuffle(block_records=4, window_blocks=2)
QUICK = ["plain", "written"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Makes the dataset of a kind, once; returns its place."""

    @functools.cache
    def place(kind):
        folder = tmp_path_factory.mktemp(kind)
        MAKE[kind](folder)
        return f"{folder}/out"

    return place


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize(
    "kinds",
    [QUICK, pytest.param([*MAKE], marks=pytest.mark.slow)],
    ids=["quick", "all"],
)
def test_it_is_what_the_rows_have(place, kinds, seed):
    chance = random.Random(seed)
    run, newest = random_run(place, chance, kinds)
    limit = min(run.schedule.step_limit, 90)
    steps = chance.choice((chance.randint(0, limit), limit))
    batches = run
    if chance.random() < 0.7:  # The datasets have changed since.
        state = json.loads(json.dumps(state_of(run, steps)))
        batches = batches_of_state(newest, state)
    for by in chance.sample(("source", "dataset", "language", "score"), 2):
        got = {
            (part.dataset, part.value, part.note): tuple(part.counts)
            for part in account(batches, steps, by=by)
        }
        assert got == counted(run, steps, by), by


def test_it_says_why_it_cannot_count(place):
    dataset = loader.open(place("written"))
    batches = loader.global_batches(dataset, batch_size=4, epochs=2)
    assert account(batches, 0) == []
    with pytest.raises(InputError, match="steps is out of range"):
        account(batches, 10)
    with pytest.raises(InputError, match="no column 'nothing'"):
        account(batches, 0, by="nothing")
