"""Datasets made of some records of a dataset, with their columns."""

import pathlib
import random

import pytest

from gristmill import loader
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.columns.row_store import JoinBy
from tests.changes.changes import run
from tests.support.columns import attach, attach_numbers, example, examples
from tests.support.conversion import contents
from tests.support.records import flip, frames_of
from tests.support.removals import remove_from

PLACE = JoinBy(feature=None, key="place")


def rows_of(output):
    """Returns each record with its columns."""
    opened = loader.open(str(output))
    columns = {name: opened.column(name)[:].tolist() for name in opened.columns}
    return [
        {"record": record, **{name: values[row] for name, values in columns.items()}}
        for row, record in enumerate(opened)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_as_python_selects(tmp_path, seed):
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 3, 17, 40]) for _ in range(rng.randrange(1, 4))] + [5]
    output, total = examples(tmp_path, counts), sum(counts)
    if rng.random() < 0.5:
        grouped = f"{tmp_path}/grouped"
        size = rng.choice([2, 7])
        run(f"convert {output} {grouped} --group-size {size} --workers=1")
        output = grouped
    if rng.random() < 0.5:
        more = tmp_path / "more.tfrecord"
        more.write_bytes(frames_of(map(example, range(total, total + 9))))
        run(f"append {output} {more} --workers=1")
        total += 9
    values = {
        "number": [*range(total)],
        "score": [rng.choice([0, 0.25, 0.5, 1]) for _ in range(total)],
        "language": [rng.choice(["de", "en", "fr\0"]) for _ in range(total)],
        "flag": [rng.random() < 0.3 for _ in range(total)],
        "vector": [[float(n), 0.5] for n in range(total)],
    }
    attach(output, tmp_path, {**values, "place": [*range(total)]}, PLACE)
    if rng.random() < 0.3:
        remove_from(output, sorted({rng.randrange(total) for _ in range(3)}))
    before = rows_of(output)
    condition = rng.choice(["score > 0.25", "language == 'de' or flag", "place < 0"])
    shards, size = rng.randrange(1, 5), rng.randrange(500, 5000)
    plans = ["--match-shards", f"--num-shards {shards}", f"--shard-size {size}"]
    plan, group = rng.choice(plans), rng.choice([1, 2, 7])
    line = f"convert {output} {tmp_path}/new {plan} --group-size {group} --workers=1"
    if rng.random() < 0.8:
        said = run(line, "--select", condition)
        wanted = [row for row in before if eval(condition, {}, dict(row))]
        left_out = len(before) - len(wanted)
        assert f"{len(wanted)} of {len(before)} records; {left_out} left out" in said
    else:
        run(line)
        wanted = before
    assert rows_of(tmp_path / "new") == wanted
    run(f"verify {tmp_path}/new")


@pytest.fixture
def output(tmp_path):
    found = examples(tmp_path, [50, 0, 61])
    attach_numbers(found, tmp_path, 111)
    return found


@pytest.mark.parametrize(
    "how", ["--workers=1", pytest.param("--runner=FnApiRunner", marks=pytest.mark.slow)]
)
def test_runs_again_and_beam_make_the_same_bytes(tmp_path, output, how):
    def convert(place, options, score, code=0):
        line = f"convert {output} {tmp_path}/{place} --num-shards=3 --name=d {options}"
        return run(f"{line} --select 'score >= {score}'", code=code)

    convert("a", "--workers=1", 0.5)
    convert("b", how, 0.5)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert "nothing to do" in convert("b", how, 0.5)
    assert "select" in convert("b", how, 0.6, code=2)


def test_a_packed_dataset_has_only_the_selected_documents(tmp_path, output):
    options = "--column n --length 16 --select 'score < 0.1' --workers=1"
    said = run(f"pack {output} {tmp_path}/rows {options}")
    assert "selected score < 0.1: 12 of 111 records; 99 left out" in said
    assert "the columns language, score" in said
    packed = open_manifest(str(tmp_path / "rows")).splits["train"].packed
    assert packed is not None
    assert packed["documents"] == 12


def test_what_cannot_be_selected_is_said(tmp_path, output):
    file = tmp_path / "more.tfrecord"
    file.write_bytes(frames_of([example(1)]))
    for given, options in ((file, ""), (output, "--map=json:loads")):
        line = f"convert {given} {tmp_path}/new {options} --select 'score > 0.1'"
        assert "records are selected from a dataset" in run(line, code=2)
    (values,) = pathlib.Path(output).glob("columns/*00000-of-*.score-*")
    flip(values, -1)
    line = f"convert {output} {tmp_path}/new --workers=1 --select 'score > 0.1'"
    assert "values of a column are damaged" in run(line, code=3)


def test_appending_carries_columns_along(tmp_path, output):
    more = examples(tmp_path / "more", [30, 1])
    attach_numbers(more, tmp_path, 31)
    run(f"append {output} {more} --workers=1 --select 'score > 0.9'")
    rows = rows_of(more)
    chosen = [row for row in rows if row["score"] > 0.9]
    assert rows_of(output)[111:] == chosen
    run(f"verify {output}")
    appended = open_manifest(output).splits["train"].parts[-1]
    assert appended.source["selected"] == "score > 0.9"
    assert appended.dropped_records == len(rows) - len(chosen)
