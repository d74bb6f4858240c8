"""Faults are put into the other ways to a dataset: none passes in silence.

An append, a conversion and a write on Beam, and `dataset.Writer` meet the faults of
`test_ledger`, and those that only they can have: elements of a pipeline that are lost
or come twice, parts that are missing, changed or written twice.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import apache_beam as beam
import pytest

from gristmill.dataset import Writer, commit_parts
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import AppendOptions
from gristmill.transforms import WriteArrayRecords
from gristmill.transforms.beam import run_job, same_code
from gristmill.transforms.beam.job_transforms import ConvertFiles
from gristmill.transforms.conversion.make_shards import ShardResult, ShardTask
from tests.order.input_files import WRITERS, rows_of
from tests.order.ledger import FAULTS, FILE_FAULTS, LISTS, Case
from tests.support import conversion
from tests.support.conversion import read_output
from tests.support.records import text_records


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory)


def outcome(output: pathlib.Path, make: Callable[[], Any], expected: Any) -> str:
    try:
        make()
    except GristmillError:
        return "refused"
    except RuntimeError as error:
        # What Beam makes of our errors is one of its own, with theirs in its text.
        if "gristmill.dataset.base.errors." not in str(error):
            raise
        return "refused"
    if not verify(str(output), workers=1).findings:
        assert read_output(output) == expected
        return "right"
    return "found by verify"


def more_of(case: Case) -> pathlib.Path:
    """Returns a folder with files of other rows."""
    folder = case.folder / "more"
    folder.mkdir()
    for number in (7, 8):
        WRITERS[case.format](folder / f"{number}", rows_of(number))
    return folder


def append(case: Case, output: pathlib.Path, source: pathlib.Path) -> None:
    given = AppendOptions(
        input=(str(source),),
        output=str(output),
        num_shards=2,
        input_format=case.format,
    )
    run_conversion(**conversion_of(given)._asdict())


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("format_name", "fault"),
    list(itertools.product(["tfrecord", "parquet"], FAULTS)),
)
def test_no_fault_in_an_append_passes(folder, format_name, fault):
    case = Case(folder, format_name, 4)
    more = more_of(case)
    for name in ("clean", "out"):
        conversion.convert(case.job(name))
    before = read_output(folder / "out")
    append(case, folder / "clean", more)
    expected = read_output(folder / "clean")
    assert len(expected) > len(before)
    with FAULTS[fault](case):
        run = functools.partial(append, case, folder / "out", more)
        found = outcome(folder / "out", run, expected)
    assert case.happened
    if fault.startswith(("source", "encoder")):
        assert found == "refused"
    if found == "refused" and not fault.startswith("plan"):
        # Who reads meanwhile reads what was there; run again, it is whole.
        assert read_output(folder / "out") == before
        append(case, folder / "out", more)
        assert read_output(folder / "out") == expected


def on_beam(case: Case, output: str) -> None:
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | ConvertFiles(jobs=(case.job(output),))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_on_beam_passes(folder, fault):
    case = Case(folder, "tfrecord", 5)
    conversion.convert(case.job("clean"))
    expected = read_output(folder / "clean")
    with FAULTS[fault](case):
        run = functools.partial(on_beam, case, "out")
        found = outcome(folder / "out", run, expected)
    assert case.happened
    if fault.startswith(("source", "encoder")):
        assert found == "refused"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["begun_tasks", "results_of"])
@pytest.mark.parametrize("kind", ["lose", "double", "exchange"])
def test_no_fault_in_elements_passes(folder, where, kind):
    case = Case(folder, "tfrecord", 6)
    conversion.convert(case.job("clean"))
    real = getattr(run_job, where)

    @functools.wraps(real)  # Beam reads the signature.
    def faulty(*given: Any, **options: Any) -> Iterator[Any]:
        found = list(real(*given, **options))
        if isinstance(found[0], ShardTask | ShardResult) and case.once():
            found = LISTS[kind](found, case.chance.randrange(len(found)))
        yield from found

    # No runner here loses elements. Functions that came with a graph are kept.
    with (
        mock.patch.object(run_job, where, faulty),
        mock.patch.object(same_code, "opened", same_code.opened.__wrapped__),
    ):
        run = functools.partial(on_beam, case, "out")
        found = outcome(folder / "out", run, read_output(folder / "clean"))
    assert case.happened
    lost = kind == "lose" or (kind == "exchange" and where == "results_of")
    assert found == ("refused" if lost else "right")


def write_on_beam(output: pathlib.Path, records: list[bytes]) -> None:
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | beam.Create(records) | WriteArrayRecords(str(output), num_shards=3)


WRITING = [name for name in FAULTS if name.startswith(("encoder", "finished file"))]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", WRITING)
def test_no_fault_in_a_write_on_beam_passes(folder, fault):
    case = Case(folder, "tfrecord", 7)
    records = text_records(90)
    write_on_beam(folder / "clean", records)
    expected = read_output(folder / "clean")
    assert sorted(expected) == sorted(records)
    with FAULTS[fault](case):
        run = functools.partial(write_on_beam, folder / "out", records)
        found = outcome(folder / "out", run, expected)
    assert case.happened
    if fault.startswith("encoder"):
        assert found == "refused"


def write(output: pathlib.Path, records: list[bytes], **options: Any) -> None:
    options = {"name": "data", "writer": WriterOptions(group_size=4), **options}
    with Writer(str(output), records_per_shard=20, **options) as writer:
        for record in records[writer.position_records :]:
            writer.write(record)


@pytest.mark.parametrize("fault", WRITING)
def test_no_fault_in_a_writer_passes(folder, fault):
    case = Case(folder, "tfrecord", 8)
    records = text_records(90)
    with FAULTS[fault](case):
        run = functools.partial(write, folder / "out", records)
        found = outcome(folder / "out", run, records)
    assert case.happened
    if fault.startswith("encoder"):
        assert found == "refused"
        write(folder / "out", records, resume=True)
        assert read_output(folder / "out") == records


@pytest.mark.parametrize("kind", [*FILE_FAULTS, "delete", "missing", "twice", "other"])
def test_no_fault_in_parts_passes(folder, kind):
    case = Case(folder, "tfrecord", 9)
    records = text_records(90)
    output = folder / "out"
    cuts = {0: (0, 30), 1: (30, 60), 2: (60, 90)}
    for part, (begin, end) in cuts.items():
        if kind != "missing" or part != 1:
            write(output, records[begin:end], part=part, parts=3)
    if kind == "twice":
        write(output, records[30:60], part=1, parts=3, overwrite=True)
    elif kind == "other":
        write(output, records[30:60], part=1, parts=4)
    elif kind != "missing":
        shards = [path for path in output.rglob("*array_record*") if path.is_file()]
        path = case.chance.choice([one for one in shards if "index" not in str(one)])
        if kind == "delete":
            path.unlink()
        else:
            FILE_FAULTS[kind](path, case.chance)
    commit = functools.partial(commit_parts, str(output), name="data")
    found = outcome(output, commit, records)
    assert found == {
        "twice": "right",
        "flip": "found by verify",
        "zero": "found by verify",
    }.get(kind, "refused")
