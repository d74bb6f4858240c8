"""What a run has seen, against every row of its steps, one by one.

Runs are random: mixtures, editions that are appended and removed, selections, weights
and batch sizes that change. The truth is taken of editions that are kept.
"""

from __future__ import annotations

import collections
import functools
import json
import math
import pathlib
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

from gristmill import dataset as writing
from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.accounting.account import NAN, UNKNOWN, account
from gristmill.loader.data.batches import Batches
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.provenance.trace import locate_record
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.support import conversion
from tests.support.columns import ID, attach, attach_numbers, example
from tests.support.packed import documents
from tests.support.records import frames_of
from tests.support.removals import remove_from

SELECT = "language == 'de'"
PLAIN = 41
LOST = [2, 11, 12, 13, 14, 40]


def _plain(folder: pathlib.Path, output: str, first: int, count: int):
    inputs = folder / f"in-{first}"
    inputs.mkdir(parents=True)
    numbers = [*range(first, first + count)]
    for number, size in enumerate((count // 3, 1, count - count // 3 - 1)):
        records = [example(numbers.pop(0)) for _ in range(size)]
        (inputs / f"{number}.tfrecord").write_bytes(frames_of(records))
    job = conversion.job_of(
        inputs, output, name="d", appends=first > 0, plan=("num_shards", 4)
    )
    conversion.convert(job)


def _attach(folder: pathlib.Path, output: str, ids: Iterable[int], **options: Any):
    """Attaches columns that follow from the ids of records."""
    ids = [*ids]
    languages = ["de" if number % 3 else "en" for number in ids]
    scores = [number % 7 / 7 if number % 5 else math.nan for number in ids]
    keys = [f"doc{number}" for number in ids]
    table = {"id": keys, "language": languages, "score": scores}
    attach(output, folder, table, ID, **options)


def make_plain(folder: pathlib.Path) -> str:
    """Editions 1, 2 without some records, 3 with more, 5 without some of both."""
    output = str(folder / "out")
    _plain(folder, output, 0, PLAIN)
    _attach(folder, output, range(PLAIN))
    remove_from(output, LOST)
    _plain(folder, output, 100, 20)
    there = [n for n in range(PLAIN) if n not in LOST]
    _attach(folder, output, [*there, *range(100, 120)], overwrite=True)
    remove_from(output, [0, 9, 53, 54])
    return output


def make_lineage(folder: pathlib.Path) -> str:
    """A conversion of a dataset of two editions."""
    output = str(folder / "base")
    _plain(folder, output, 0, 30)
    _plain(folder, output, 30, 9)
    again = str(folder / "out")
    job = conversion.job_of(output, again, name="e", plan=("num_shards", 3))
    conversion.convert(job)
    _attach(folder, again, range(39))
    return again


def make_rows(folder: pathlib.Path) -> str:
    """Packed rows of three files and two editions."""
    output = str(folder / "out")
    for edition in (1, 2):
        inputs = folder / f"in-{edition}"
        inputs.mkdir(parents=True)
        for number in range(3):
            ids = [*documents(9, seed=10 * edition + number), [*range(1, 90)]]
            records = [writing.encode_example({"ids": each}) for each in ids]
            (inputs / f"{number}.tfrecord").write_bytes(frames_of(records))
        packing = PackOptions(length=32, method="best-fit", column="ids")
        plan = ("num_shards", 2)
        job = conversion.job_of(
            inputs, output, appends=edition > 1, plan=plan, pack=packing
        )
        conversion.convert(job)
    rows = len(loader.open(output))
    attach_numbers(output, folder, rows)
    return output


def make_written(folder: pathlib.Path) -> str:
    """Records of a program, whose sources nobody knows."""
    output = str(folder / "out")
    with writing.Writer(output, records_per_shard=7) as writer:
        for number in range(19):
            writer.write(example(number))
    _attach(folder, output, range(19))
    return output


MAKE = {
    "plain": make_plain,
    "lineage": make_lineage,
    "rows": make_rows,
    "written": make_written,
}


class Source(NamedTuple):
    kind: str
    selected: bool

    @property
    def editions(self) -> list[int]:
        return {"plain": [1, 2, 3, 5], "rows": [1, 2]}.get(self.kind, [1])

    def lineage(self, edition: int) -> int:
        """Returns which editions begin with each other: those between removals."""
        return {2: 1, 3: 1, 5: 2}.get(edition, 0) if self.kind == "plain" else 0


@functools.cache
def opened(root: pathlib.Path, source: Source, edition: int) -> loader.Dataset:
    dataset = loader.open(f"{root}/{source.kind}/out", edition=edition)
    return dataset.select(SELECT) if source.selected else dataset


class Unit(NamedTuple):
    """A document, or a piece of one."""

    source: str | None
    document: Any  # None for a piece that does not begin one.
    piece: Any = None
    tokens: int | None = None


@functools.cache
def units(dataset: loader.Dataset, record: int) -> list[Unit]:
    """Returns what is in a record, by where it comes from."""
    at = locate_record(dataset, record)
    if not at.pieces:
        return [Unit(at.source_path, dataset[record])]
    return [
        Unit(
            piece.source_path,
            None
            if piece.first_token
            else (piece.source_path, piece.source_offset_bytes),
            (record, piece.begin_token),
            piece.end_token - piece.begin_token,
        )
        for piece in at.pieces
    ]


@functools.cache
def column(dataset: loader.Dataset, name: str) -> list[Any]:
    values: list[Any] = dataset.column(name)[:].tolist()
    return values


class Stage(NamedTuple):
    """Batches as they are from a step on, and the edition of each dataset."""

    step: int
    batches: Batches
    editions: dict[str, int]


def random_run(
    root: pathlib.Path, chance: random.Random, kinds: list[str]
) -> tuple[dict[str, Source], list[Stage]]:
    """Returns the datasets of a run, and its batches before and after each change."""
    chosen = chance.sample(kinds, min(len(kinds), chance.choice((1, 1, 2, 3))))
    sources = {
        f"d{number}": Source(kind, kind != "rows" and chance.random() < 0.3)
        for number, kind in enumerate(chosen)
    }
    editions = {
        name: one.editions[-1] if one.selected else chance.choice(one.editions)
        for name, one in sources.items()
    }
    given = {name: opened(root, one, editions[name]) for name, one in sources.items()}
    mixed = len(sources) > 1 or chance.random() < 0.2

    def weights() -> Any:
        return {name: chance.randrange(1, 5) for name in sources} if mixed else None

    batches: Batches = loader.global_batches(
        given if mixed else given["d0"],
        batch_size=chance.randrange(1, 12),
        seed=chance.randrange(9),
        shuffle=chance.choice(SHUFFLES),
        epochs=chance.choice((None, None, 9)),
        weights=weights(),
    )
    stages = [Stage(0, batches, editions)]
    limit = max(min(batches.steps or 60, 60), 5)
    for step in sorted(chance.sample(range(1, limit), chance.randrange(4))):
        name = chance.choice([*sources])
        later = [e for e in sources[name].editions if e > editions[name]]
        what = chance.choice(("extended", "extended", "resized", "weights"))
        change: dict[str, Any] = {"batch_size": chance.randrange(1, 12)}
        if what == "extended" and later and not sources[name].selected:
            editions = editions | {name: chance.choice(later)}
            new = opened(root, sources[name], editions[name])
            change = {"datasets": {name: new} if mixed else new}
        elif what == "weights" and mixed:
            change = {"weights": weights()}
        try:
            batches = batches.then(**change, step=step)
        except InputError:  # They end before.
            break
        stages.append(Stage(step, batches, editions))
    return sources, stages


def counted(
    sources: dict[str, Source], stages: list[Stage], steps: int, by: str, labels: Any
) -> dict[tuple[str, Any, str | None], tuple[int | None, ...]]:
    """Returns what the steps have, by looking at each row."""
    found = collections.defaultdict[Any, list[Any]](lambda: [0, set(), 0, {}])
    ends = [*(stage.step for stage in stages[1:]), steps]
    for stage, end in zip(stages, ends, strict=True):
        batches = stage.batches
        names = batches.names or ["d0"] * len(batches.datasets)
        for step in range(stage.step, end):
            batch = batches.schedule.batch(step)
            for number, record in zip(*map(np.ndarray.tolist, batch), strict=True):
                name, dataset = names[number], batches.datasets[number]
                label = labels[name, sources[name].lineage(stage.editions[name])]
                for unit in units(dataset, record):
                    value, note = None, None
                    if by == "source":
                        value, note = unit.source, None if unit.source else UNKNOWN
                    elif by != "dataset":
                        value = column(dataset, by)[record]
                        value, note = (value, None) if value == value else (None, NAN)
                    totals = found[label, value, note]
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


def labels_of(
    batches: Batches, sources: dict[str, Source], stages: list[Stage]
) -> dict[tuple[str, int], str]:
    """Returns what the parts of each dataset and lineage are called."""
    found: dict[tuple[str, int], str] = {}
    for name, source in sources.items():
        label = name if batches.names else batches.datasets[0].path
        last = {source.lineage(s.editions[name]): s.editions[name] for s in stages}
        for lineage, edition in last.items():
            suffix = f", edition {edition}" if len(last) > 1 else ""
            found[name, lineage] = label + suffix
    return found


def check_random_run(root: pathlib.Path, seed: int, kinds: list[str]) -> None:
    chance = random.Random(seed)
    sources, stages = random_run(root, chance, kinds)
    batches, known = stages[-1].batches, stages
    limit = min(batches.schedule.step_limit, 90)
    steps = chance.choice((chance.randint(0, limit), limit))
    stages = [stage for stage in stages if stage.step < max(steps, 1)]
    if chance.random() < 0.5:  # The run had no later change.
        batches, known = stages[-1].batches, stages
        steps = min(steps, batches.schedule.step_limit)
    if chance.random() < 0.7:  # Its datasets have changed since.
        state = json.loads(json.dumps(state_of(batches, steps)))
        now = {n: opened(root, one, one.editions[-1]) for n, one in sources.items()}
        batches = batches_of_state(now if batches.names else now["d0"], state)
    labels = labels_of(batches, sources, known)
    for by in chance.sample(("source", "dataset", "language", "score"), 2):
        got = {
            (part.dataset, part.value, part.note): tuple(part.counts)
            for part in account(batches, steps, by=by)
        }
        assert got == counted(sources, stages, steps, by, labels), (seed, by)


SHUFFLES = "none", "global", loader.BlockShuffle(block_records=4, window_blocks=2)
QUICK = ["plain", "written"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("account")


def made(root: pathlib.Path, kinds: list[str]) -> None:
    for kind in kinds:
        if not (root / kind).exists():
            MAKE[kind](root / kind)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(
    "kinds",
    [QUICK, pytest.param([*MAKE], marks=pytest.mark.slow)],
    ids=["quick", "all"],
)
def test_it_is_what_the_rows_have(
    root: pathlib.Path, kinds: list[str], seed: int
) -> None:
    made(root, kinds)
    check_random_run(root, seed, kinds)


def test_it_says_why_it_cannot_count(root: pathlib.Path) -> None:
    made(root, QUICK)
    dataset = loader.open(f"{root}/written/out")
    batches = loader.global_batches(dataset, batch_size=4, epochs=2)
    assert account(batches, 0) == []
    with pytest.raises(InputError, match="steps is out of range"):
        account(batches, 10)
    with pytest.raises(InputError, match="no column 'nothing'"):
        account(batches, 0, by="nothing")
