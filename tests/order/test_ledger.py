"""Faults are put into every step of a conversion: none passes in silence.

Records are lost, doubled, exchanged, cut or changed: where a source gives them, where
they are written, between the finished file and its place, in what workers report, in
the plan, in the inputs after they were listed, and in the files of the dataset. Each
conversion then fails, or its dataset is exactly the one without a fault, or `verify`
names what is wrong. Each fault has to have happened: one that was never reached fails.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.anywhere import verify
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
from gristmill.transforms.jobs.conversion_job import PreparedJob
from tests.order.input_files import WRITERS, rows_of
from tests.order.ledger import FAULTS, FILE_FAULTS, FILES, LISTS, Case
from tests.support import conversion
from tests.support.conversion import prepared_of, read_output, shards_of

EACH = [
    pytest.param(name, marks=() if name == "tfrecord" else pytest.mark.slow)
    for name in WRITERS
]


def each_with(faults: Iterable[str]) -> list[Any]:
    """Returns pairs of a format and a fault: all of them in a soak.

    TFRecord always has all faults, and of the others each has every fifth.
    """
    return [
        pytest.param(
            name,
            fault,
            marks=()
            if name == "tfrecord"
            else pytest.mark.slow
            if (at + number) % 5 == 0
            else pytest.mark.soak,
        )
        for at, name in enumerate(WRITERS)
        for number, fault in enumerate(faults)
    ]


def results_of(case: Case, kind: str) -> list[Any]:
    """Makes all shards, and returns their results with a fault among them."""
    tasks = list(shard_tasks(prepared_of(case.job("out"))))
    results = [result for task in tasks for result in make_shards(task)]
    at = case.chance.randrange(len(results))
    case.happened += 1
    if kind == "twice":
        return results + list(make_shards(tasks[at % len(tasks)]))
    if kind == "other number":
        report = dataclasses.replace(
            results[at].report, shard_index=(at + 1) % len(results)
        )
        results[at] = results[at]._replace(report=report)
        return results
    return LISTS[kind](results, at)


def _make_all(prepared: PreparedJob) -> None:
    tasks = shard_tasks(prepared)
    results = [result for task in tasks for result in make_shards(task)]
    conversion.commit_shards((prepared.job,), results)


def outcome(case: Case, convert: Callable[[], Any], expected: list[bytes]) -> str:
    """Returns what came of a conversion with a fault in it."""
    try:
        convert()
    except GristmillError:
        return "refused"
    output = str(case.folder / "out")
    if not verify(output, workers=1).findings:
        assert read_output(output) == expected
        return "right"
    return "found by verify"


def clean(case: Case) -> list[bytes]:
    conversion.convert(case.job("clean"))
    return read_output(case.folder / "clean")


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory)


@pytest.mark.parametrize("format_name", EACH)
def test_all_rows_are_there_without_a_fault(folder, format_name):
    case = Case(folder, format_name, 0)
    records = clean(case)
    assert len(records) == len(set(records)) == FILES * len(rows_of(0))
    for number in range(FILES):
        for row in rows_of(number):
            at = number * len(rows_of(0)) + int(row["key"].split("-")[1])
            assert row["text"].encode() in records[at]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("format_name", "fault"), each_with(FAULTS))
def test_no_fault_passes(folder, format_name, fault):
    for seed in range(2):
        case = Case(pathlib.Path(tempfile.mkdtemp(dir=folder)), format_name, seed)
        expected = clean(case)
        with FAULTS[fault](case):
            convert = functools.partial(conversion.convert, case.job("out"))
            found = outcome(case, convert, expected)
        assert case.happened
        if fault.startswith(("source", "encoder")):
            assert found == "refused"
        else:
            assert found in ("refused", "right", "found by verify")


@pytest.mark.parametrize(
    ("format_name", "kind"),
    each_with(["lose", "double", "exchange", "twice", "other number"]),
)
def test_no_fault_in_reports_passes(folder, format_name, kind):
    case = Case(folder, format_name, 1)
    expected = clean(case)
    results = results_of(case, kind)
    commit = functools.partial(conversion.commit_shards, (case.job("out"),), results)
    found = outcome(case, commit, expected)
    assert found == ("right" if kind in ("double", "exchange", "twice") else "refused")
    assert case.happened


@pytest.mark.parametrize(
    ("format_name", "kind"), each_with([*FILE_FAULTS, "append", "delete", "exchange"])
)
def test_no_input_that_changes_passes(folder, format_name, kind):
    case = Case(folder, format_name, 2)
    clean(case)
    prepared = prepared_of(case.job("out"))
    path = case.inputs / str(case.chance.randrange(FILES))
    if kind == "append":
        path.write_bytes(path.read_bytes() * 2)
    elif kind == "delete":
        path.unlink()
    elif kind == "exchange":
        other = case.inputs / str((int(path.name) + 1) % FILES)
        data, others = path.read_bytes(), other.read_bytes()
        path.write_bytes(others)
        other.write_bytes(data)
    else:
        FILE_FAULTS[kind](path, case.chance)
    with pytest.raises(GristmillError):
        _make_all(prepared)


@pytest.mark.parametrize(
    ("format_name", "kind"), each_with([*FILE_FAULTS, "delete", "exchange"])
)
def test_no_damage_of_a_dataset_passes(folder, format_name, kind):
    case = Case(folder, format_name, 3)
    clean(case)
    dataset = case.folder / "clean"
    shards = shards_of(dataset)
    path = dataset / case.chance.choice(shards)
    if kind == "delete":
        path.unlink()
    elif kind == "exchange":
        other = dataset / next(name for name in shards if name != path.name)
        data, others = path.read_bytes(), other.read_bytes()
        path.write_bytes(others)
        other.write_bytes(data)
    else:
        FILE_FAULTS[kind](path, case.chance)
    assert verify(str(dataset), workers=1).findings
