"""Faults are put into every step on the way to a dataset: none passes in silence.

Records are lost, doubled, exchanged, cut or changed: where a source gives them, where
they are written, between the finished file and its place, in what workers report, in
the plan, in elements of a pipeline, and in inputs after they were listed. The work then
fails, or its dataset is exactly the one without a fault, or `verify` names what is
wrong. Each fault has to have happened.
"""

import contextlib
import dataclasses
import functools
from unittest import mock

import apache_beam as beam
import pytest

from gristmill.dataset import GristmillError, Writer, WriterOptions
from gristmill.pipelines.anywhere import verify
from gristmill.transforms import ConvertFiles
from gristmill.transforms.beam import run_job, same_code
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    ShardTask,
    make_shards,
    shard_tasks,
)
from tests.order.input_files import WRITERS, rows_of
from tests.order.ledger import FAULTS, FILE_FAULTS, FILES, LISTS, OF_PACKING, PACK, Case
from tests.support import conversion
from tests.support.conversion import prepared_of, read_output
from tests.support.records import text_records

RECORDS = text_records(90)
WRITING = [name for name in FAULTS if name.startswith(("encoder", "finished file"))]


def each_with(faults):
    """Returns pairs of a format and a fault: all of them in a soak.

    TFRecord always has all faults, and of the others each has every fifth.
    """
    rare = (pytest.mark.slow, *[pytest.mark.soak] * 4)
    return [
        pytest.param(
            name, fault, marks=() if name == "tfrecord" else rare[(at + number) % 5]
        )
        for at, name in enumerate(WRITERS)
        for number, fault in enumerate(faults)
    ]


def outcome(case, make, expected):
    """Returns what came of work with a fault in it."""
    output = case.folder / "out"
    try:
        make()
    except (GristmillError, ValueError):  # No index is written of a plan without sense.
        return "refused"
    except RuntimeError as error:
        # What Beam makes of our errors is one of its own, with theirs in its text.
        if "gristmill.dataset.base.errors." not in str(error):
            raise
        return "refused"
    if verify(str(output), workers=1).findings:
        return "found by verify"
    assert case.read(output) == expected
    return "right"


def converted(case, output, **_):
    conversion.convert(case.job(output))


def appended(case, output, **_):
    """Appends other rows to what is there."""
    more = case.folder / "more"
    more.mkdir(exist_ok=True)
    for number in (7, 8):
        WRITERS[case.format](more / f"{number}", rows_of(number))
    job = dataclasses.replace(case.job(output), inputs=(f"{more}/*",), appends=True)
    conversion.convert(job)


def on_beam(case, output, **_):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        pipeline | ConvertFiles(jobs=(case.job(output),))


def write(case, output, records=RECORDS, **options):
    options = {"name": "data", "writer": WriterOptions(group_size=4)} | options
    path = f"{case.folder}/{output}"
    with Writer(path, records_per_shard=20, **options) as writer:
        for record in records[writer.position_records :]:
            writer.write(record)


def check(case, fault, make, *, before=None, finishes=True):
    """Makes a dataset without and with a fault; after a refusal, once more.

    Args:
        case: The files.
        fault: The fault.
        make: Makes the dataset.
        before: Makes what is there before.
        finishes: Whether the same work goes on where it was refused.
    """
    if before:
        before(case, "out")
        before(case, "clean")
    make(case, "clean")
    out = case.folder / "out"
    there = case.read(out) if before else []
    expected = case.read(case.folder / "clean")
    assert len(expected) == len(set(expected)) > len(there)
    with OF_PACKING[fault](case):
        found = outcome(case, functools.partial(make, case, "out"), expected)
    assert case.happened
    if fault.startswith("segment"):
        assert found == "found by verify"
    elif not fault.startswith(("finished file", "plan:")):
        assert found == "refused"
    if found == "refused" and finishes and not fault.startswith("plan:"):
        # Who reads meanwhile reads what was there; run again, it is whole.
        if before:
            assert case.read(out) == there
        make(case, "out", resume=True)
        assert case.read(out) == expected


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "fault"), each_with(FAULTS))
@pytest.mark.parametrize("seed", [0, 1])
def test_no_fault_passes(tmp_path, name, fault, seed):
    check(Case(tmp_path, name, seed), fault, converted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", OF_PACKING)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_no_fault_in_packing_passes(tmp_path, fault, seed):
    check(Case(tmp_path, "tfrecord", seed, pack=PACK), fault, converted)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["tfrecord", "parquet"])
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_in_an_append_passes(tmp_path, name, fault):
    check(Case(tmp_path, name, 4), fault, appended, before=converted)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_on_beam_passes(tmp_path, fault):
    check(Case(tmp_path, "tfrecord", 5), fault, on_beam, finishes=False)


@pytest.mark.parametrize("fault", WRITING)
def test_no_fault_in_a_writer_passes(tmp_path, fault):
    # What is finished and damaged is refused again.
    finishes = fault.startswith("encoder")
    check(Case(tmp_path, "tfrecord", 8), fault, write, finishes=finishes)


def results_of(prepared):
    return [made for task in shard_tasks(prepared) for made in make_shards(task)]


@pytest.mark.parametrize(
    ("name", "kind"), each_with(["lose", "double", "exchange", "other number"])
)
def test_no_fault_in_reports_passes(tmp_path, name, kind):
    case = Case(tmp_path, name, 1)
    converted(case, "clean")
    results = results_of(prepared_of(case.job("out")))
    at = case.chance.randrange(len(results))
    if kind == "other number":
        report = results[at].report
        other = (report.shard_index + 1) % len(results)
        report = dataclasses.replace(report, shard_index=other)
        results[at] = results[at]._replace(report=report)
    else:
        results = LISTS[kind](results, at)
    commit = functools.partial(conversion.commit_shards, (case.job("out"),), results)
    found = outcome(case, commit, read_output(tmp_path / "clean"))
    assert found == ("right" if kind in ("double", "exchange") else "refused")


@contextlib.contextmanager
def faulty_elements(case, where, kind):
    real = getattr(run_job, where)

    @functools.wraps(real)  # Beam reads the signature.
    def faulty(*given, **options):
        found = list(real(*given, **options))
        if isinstance(found[0], ShardTask | ShardResult) and case.once():
            found = LISTS[kind](found, case.chance.randrange(len(found)))
        yield from found

    # No runner here loses elements. Functions that came with a graph are kept.
    with (
        mock.patch.object(run_job, where, faulty),
        mock.patch.object(same_code, "opened", same_code.opened.__wrapped__),
    ):
        yield


@pytest.mark.one_in(3)
@pytest.mark.parametrize("where", ["begun_tasks", "results_of"])
@pytest.mark.parametrize("kind", ["lose", "double", "exchange"])
def test_no_fault_in_elements_passes(tmp_path, where, kind):
    case = Case(tmp_path, "tfrecord", 6)
    converted(case, "clean")
    with faulty_elements(case, where, kind):
        run = functools.partial(on_beam, case, "out")
        found = outcome(case, run, read_output(tmp_path / "clean"))
    assert case.happened
    lost = kind == "lose" or (kind == "exchange" and where == "results_of")
    assert found == ("refused" if lost else "right")


@pytest.mark.parametrize(
    ("name", "kind"), each_with([*FILE_FAULTS, "append", "delete", "exchange"])
)
def test_no_input_that_changes_passes(tmp_path, name, kind):
    case = Case(tmp_path, name, 2)
    prepared = prepared_of(case.job("out"))
    path = case.inputs / str(case.chance.randrange(FILES))
    if kind == "append":
        path.write_bytes(path.read_bytes() * 2)
    elif kind == "delete":
        path.unlink()
    elif kind == "exchange":
        other = case.inputs / str((int(path.name) + 1) % FILES)
        data = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
    else:
        FILE_FAULTS[kind](path, case.chance)
    with pytest.raises(GristmillError):
        conversion.commit_shards((prepared.job,), results_of(prepared))
