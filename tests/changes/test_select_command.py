"""Datasets made of some records of a dataset, with their columns."""

import json
import pathlib
import random

import pytest

from gristmill import loader
from gristmill.dataset.metadata.manifest import open_manifest
from tests.changes.changes import run
from tests.support.columns import NUMBER, attach, attach_numbers, example, examples
from tests.support.conversion import contents
from tests.support.records import frames_of
from tests.support.removals import remove_from

CONDITIONS = (
    "score > {x}",
    "language == 'de' and not score > {x}",
    "flag or number in ({n}, {m})",
    "language in ('en',) and score != {x}",
    "number >= {n}",
    "number < 0",
)
PLACE = type(NUMBER)(feature=None, key="place")
HERE = "--workers=1"


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
        grouped = (tmp_path / "grouped", "--group-size", rng.choice([2, 7]), HERE)
        run("convert", output, *grouped)
        output = str(tmp_path / "grouped")
    if rng.random() < 0.5:
        more = tmp_path / "more.tfrecord"
        more.write_bytes(frames_of(map(example, range(total, total + 9))))
        run("append", output, more, HERE)
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
    wanted = before = rows_of(output)
    condition = rng.choice(CONDITIONS).format(
        x=rng.choice([0, 0.25, 0.5]), n=rng.randrange(total), m=rng.randrange(total)
    )
    plan = rng.choice(
        [
            ("--match-shards",),
            ("--num-shards", rng.randrange(1, 5)),
            ("--shard-size", rng.randrange(500, 5000)),
        ]
    )
    options = [*plan, "--group-size", rng.choice([1, 2, 7]), HERE]
    select = ["--select", condition] if rng.random() < 0.8 else []
    said = run("convert", output, tmp_path / "new", *options, *select)
    if select:
        wanted = [row for row in before if eval(condition, {}, dict(row))]
        left_out = len(before) - len(wanted)
        assert (
            f"{len(wanted):,} of {len(before):,} records; {left_out:,} left out" in said
        )
    assert rows_of(tmp_path / "new") == wanted
    run("verify", tmp_path / "new")


@pytest.fixture
def output(tmp_path):
    found = examples(tmp_path, [50, 0, 61])
    attach_numbers(found, tmp_path, 111)
    return found


@pytest.mark.parametrize(
    "how", [HERE, pytest.param("--runner=FnApiRunner", marks=pytest.mark.slow)]
)
def test_runs_again_and_beam_make_the_same_bytes(tmp_path, output, how):
    argv = ["--num-shards=3", "--name=d", "--select"]
    run("convert", output, tmp_path / "a", HERE, *argv, "score >= 0.5")
    again = ("convert", output, tmp_path / "b", how, *argv)
    run(*again, "score >= 0.5")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert "nothing to do" in run(*again, "score >= 0.5")
    assert "select" in run(*again, "score > 0.6", code=2)


def test_a_packed_dataset_has_only_the_selected_documents(tmp_path, output):
    options = ["--column", "n", "--length", "16", "--select", "score < 0.1", HERE]
    said = run("pack", output, tmp_path / "rows", *options)
    assert "selected score < 0.1: 12 of 111 records; 99 left out" in said
    assert "the columns language, score" in said
    packed = open_manifest(str(tmp_path / "rows")).splits["train"].packed
    assert packed is not None
    assert packed["documents"] == 12


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("files", ["score > 1"], "records are selected from a dataset"),
        ("", ["score > 1", "--map=json:loads"], "records are selected from a dataset"),
        ("", ["missing > 1"], "names no column 'missing'"),
        ("", ["score >"], "the expression cannot be read"),
        ("damaged", ["score > 0.1"], "values of a column are damaged"),
    ],
)
def test_what_cannot_be_selected_is_said(tmp_path, output, source, options, message):
    if source == "files":
        output = str(tmp_path / "more.tfrecord")
        pathlib.Path(output).write_bytes(frames_of([example(1)]))
    elif source == "damaged":
        (values,) = pathlib.Path(output).glob("columns/*00000-of-*.score-*")
        data = values.read_bytes()
        values.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    argv = ("convert", output, tmp_path / "new", HERE, "--select", *options)
    assert message in run(*argv, code=3 if source == "damaged" else 2)


def test_appending_carries_columns_along(tmp_path, output):
    more = examples(tmp_path / "more", [30, 1])
    attach_numbers(more, tmp_path, 31)
    run("append", output, more, HERE, "--select", "score > 0.9")
    rows = rows_of(more)
    chosen = [row for row in rows if row["score"] > 0.9]
    assert rows_of(output)[111:] == chosen
    run("verify", output)
    ledger = json.loads(pathlib.Path(output, "dataset.json").read_text())
    appended = ledger["splits"]["train"]["editions"][-1]
    assert appended["source"]["selected"] == "score > 0.9"
    assert appended["dropped_records"] == len(rows) - len(chosen)
