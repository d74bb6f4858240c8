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


class Unit(NamedTuple):
    """A document, or a piece of one."""

    parts: dict[str, Any]  # By what to count -> value and note.
    document: Any  # None for a piece that does not begin one.
    piece: Any
    tokens: int | None


def _key(value: Any) -> tuple[Any, str | None]:
    return (value, None) if value == value else (None, NAN)


@functools.cache
def chosen(root: pathlib.Path, kind: str) -> list[int]:
    """Returns the numbers of the records that are selected."""
    languages = loader.open(f"{root}/{kind}/out").column("language")[:]
    return [number for number, one in enumerate(languages) if one == "de"]


@functools.cache
def truth(root: pathlib.Path, kind: str, edition: int) -> list[list[Unit]]:
    """Returns what is in each record of an edition."""
    real = loader.open(f"{root}/{kind}/out", edition=edition)
    values = {n: real.column(n)[:].tolist() for n in ("language", "score")}
    found = []
    for number in range(len(real)):
        at = locate_record(real, number)
        parts = {n: _key(value[number]) for n, value in values.items()}
        parts["dataset"] = (None, None)
        units = []
        for piece in at.pieces or [at]:
            source = piece.source_path
            note = UNKNOWN if source is None else None
            own = parts | {"source": (source, note)}
            if not at.pieces:
                identity = real[number]
                units.append(Unit(own, identity, None, None))
            else:
                identity = piece.source_path, piece.source_offset_bytes
                begins = identity if piece.first_token == 0 else None
                size = piece.end_token - piece.begin_token
                units.append(Unit(own, begins, (number, piece.begin_token), size))
        found.append(units)
    return found


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


class Stage(NamedTuple):
    """Batches as they are from a step on, and the edition of each dataset."""

    step: int
    batches: Batches
    editions: tuple[int, ...]


def random_run(
    root: pathlib.Path, chance: random.Random, kinds: list[str]
) -> tuple[list[Source], list[Stage]]:
    """Returns the datasets of a run, and its batches before and after each change."""
    sources = []
    for kind in chance.sample(kinds, min(len(kinds), chance.choice((1, 1, 2, 3)))):
        selected = kind != "rows" and chance.random() < 0.3
        sources.append(Source(kind, selected))
    begun = [
        source.editions[-1] if source.selected else chance.choice(source.editions)
        for source in sources
    ]
    mixed = len(sources) > 1 or chance.random() < 0.2
    names = [f"d{number}" for number in range(len(sources))]
    first = [opened(root, *pair) for pair in zip(sources, begun, strict=True)]
    named = dict(zip(names, first, strict=True))
    weights = {name: chance.randrange(1, 5) for name in names}
    batches: Batches = loader.global_batches(
        named if mixed else first[0],
        batch_size=chance.randrange(1, 12),
        seed=chance.randrange(9),
        shuffle=chance.choice(SHUFFLES),
        epochs=chance.choice((None, None, 9)),
        weights=weights if mixed else None,
    )
    stages, editions = [Stage(0, batches, tuple(begun))], [*begun]
    limit = min(batches.steps or 60, 60)
    for step in sorted(chance.sample(range(1, max(limit, 5)), chance.randrange(4))):
        number = chance.randrange(len(sources))
        later = [e for e in sources[number].editions if e > editions[number]]
        what = chance.choice(("extended", "extended", "resized", "weights"))
        if what == "extended" and later and not sources[number].selected:
            edition = chance.choice(later)
            new = opened(root, sources[number], edition)
            try:
                batches = batches.then(
                    {names[number]: new} if mixed else new, step=step
                )
            except InputError:  # They end before.
                break
            editions[number] = edition
        elif what == "weights" and mixed:
            weights = {name: chance.randrange(1, 5) for name in names}
            try:
                batches = batches.then(weights=weights, step=step)
            except InputError:
                break
        else:
            try:
                batches = batches.then(batch_size=chance.randrange(1, 12), step=step)
            except InputError:
                break
        stages.append(Stage(step, batches, tuple(editions)))
    return sources, stages


def counted(
    root: pathlib.Path,
    sources: list[Source],
    stages: list[Stage],
    steps: int,
    by: str,
    labels: dict[tuple[int, int], str],
) -> dict[tuple[str, Any, str | None], tuple[int | None, ...]]:
    """Returns what the steps have, by looking at each row."""
    found = collections.defaultdict[Any, list[Any]](lambda: [0, set(), 0, {}])
    ends = [*(stage.step for stage in stages[1:]), steps]
    for stage, end in zip(stages, ends, strict=True):
        schedule = stage.batches.schedule
        rows = [schedule.positions(step) for step in range(stage.step, end)]
        batch = schedule.batch_at(np.concatenate([[], *rows]).astype(np.int64))
        names = stage.batches.names or ["d0"] * len(stage.batches.datasets)
        which = [int(name[1:]) for name in names]
        for entry, row in zip(*map(np.ndarray.tolist, batch), strict=True):
            number = which[entry]
            kind, selected = sources[number]
            edition = stage.editions[number]
            if selected:
                row = chosen(root, kind)[row]
            for unit in truth(root, kind, edition)[row]:
                label = labels[number, sources[number].lineage(edition)]
                totals = found[label, *unit.parts[by]]
                if unit.document is not None:
                    totals[0] += 1
                    totals[1].add(unit.document)
                if unit.tokens is None:
                    totals[2] = None
                else:
                    totals[2] += unit.tokens
                    totals[3][unit.piece] = unit.tokens
    return {
        key: (
            documents,
            len(once),
            tokens,
            None if tokens is None else sum(each.values()),
        )
        for key, (documents, once, tokens, each) in found.items()
    }


def labels_of(
    batches: Batches, sources: list[Source], stages: list[Stage]
) -> dict[tuple[int, int], str]:
    """Returns what the parts of each dataset and lineage are called."""
    found: dict[tuple[int, int], str] = {}
    for number, source in enumerate(sources):
        name = f"d{number}" if batches.names else batches.datasets[0].path
        last = {source.lineage(s.editions[number]): s.editions[number] for s in stages}
        for lineage, edition in last.items():
            suffix = f", edition {edition}" if len(last) > 1 else ""
            found[number, lineage] = name + suffix
    return found


def check_random_run(root: pathlib.Path, seed: int, kinds: list[str]) -> None:
    chance = random.Random(seed)
    sources, stages = random_run(root, chance, kinds)
    batches, known = stages[-1].batches, stages
    limit = min(batches.schedule.step_limit, 90)
    steps = chance.choice((chance.randint(0, limit), limit))
    stages = [stage for stage in stages if stage.step < max(steps, 1)]
    if chance.random() < 0.5:
        # The run had no later change, and its datasets have changed since.
        batches, known = stages[-1].batches, stages
        if batches.schedule.step_limit < steps:
            steps = batches.schedule.step_limit
    if chance.random() < 0.7:
        state = json.loads(json.dumps(state_of(batches, steps)))
        now = {
            name: opened(root, source, source.editions[-1])
            for name, source in zip(
                dict.fromkeys(batches.names) or [""], sources, strict=True
            )
        }
        batches = batches_of_state(now if batches.names else now[""], state)
    labels = labels_of(batches, sources, known)
    for by in chance.sample(("source", "dataset", "language", "score"), 2):
        expected = counted(root, sources, stages, steps, by, labels)
        got = {
            (part.dataset, part.value, part.note): tuple(part.counts)
            for part in account(batches, steps, by=by)
        }
        assert got == expected, (seed, by, batches, steps)


SHUFFLES = "none", "global", loader.BlockShuffle(block_records=4, window_blocks=2)
QUICK = ["plain", "written"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("quick")
    for kind in QUICK:
        MAKE[kind](root / kind)
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("account")
    for kind, make in MAKE.items():
        make(root / kind)
    return root


@pytest.mark.parametrize("seed", range(25))
def test_it_is_what_the_rows_have(quick: pathlib.Path, seed: int) -> None:
    for number in (2 * seed, 2 * seed + 1):
        check_random_run(quick, number, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_also_of_packed_rows_and_through_conversions(
    root: pathlib.Path, seed: int
) -> None:
    check_random_run(root, seed, [*MAKE])


def test_it_says_why_it_cannot_count(quick: pathlib.Path) -> None:
    dataset = loader.open(f"{quick}/written/out")
    batches = loader.global_batches(dataset, batch_size=4, epochs=2)
    assert account(batches, 0) == []
    with pytest.raises(InputError, match="steps is out of range"):
        account(batches, 10)
    with pytest.raises(InputError, match="no column 'nothing'"):
        account(batches, 0, by="nothing")
