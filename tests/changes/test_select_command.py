"""Datasets made of some records of a dataset, with their columns."""

from __future__ import annotations

import json
import pathlib
import random
import shutil
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.commands.main import cli
from tests.faults.kills import Killer
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


def run(*arguments: object) -> Result:
    words = [*map(str, arguments)]
    if words[0] in ("convert", "append", "pack") and "--runner" not in str(words):
        words += ["--workers=1"]
    return CliRunner().invoke(cli, words)


def ran(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def rows_of(output: str | pathlib.Path) -> list[dict[str, Any]]:
    """Returns each record with its columns, and whether `gristmill verify` accepts."""
    opened = loader.open(str(output))
    names = [*opened.columns]
    columns = {name: opened.column(name)[:].tolist() for name in names}
    return [
        {"record": record, **{name: columns[name][row] for name in names}}
        for row, record in enumerate(opened)
    ]


def check_a_random_selection(folder: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 3, 17, 40]) for _ in range(rng.randrange(1, 4))] + [5]
    output = examples(folder, counts)
    if rng.random() < 0.5:
        ran("convert", output, folder / "grouped", "--group-size", rng.choice([2, 7]))
        output = str(folder / "grouped")
    total = sum(counts)
    if rng.random() < 0.5:
        more = folder / "more.tfrecord"
        more.write_bytes(frames_of(map(example, range(total, total + 9))))
        ran("append", output, more)
        total += 9
    values = {
        "number": [*range(total)],
        "score": [rng.choice([0, 0.25, 0.5, 1]) for _ in range(total)],
        "language": [rng.choice(["de", "en", "fr\0"]) for _ in range(total)],
        "flag": [rng.random() < 0.3 for _ in range(total)],
        "vector": [[float(n), 0.5] for n in range(total)],
    }
    attach(output, folder, {**values, "place": [*range(total)]}, PLACE)
    if rng.random() < 0.3:
        gone = {rng.randrange(total) for _ in range(3)}
        remove_from(output, sorted(gone))
    before = rows_of(output)
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
    options = [*plan, "--group-size", rng.choice([1, 2, 7])]
    select = ["--select", condition] if rng.random() < 0.8 else []
    said = ran("convert", output, folder / "new", *options, *select)
    wanted = before
    if select:
        wanted = [row for row in before if eval(condition, {}, dict(row))]
        assert (
            f"{len(wanted):,} of {len(before):,} records; "
            f"{len(before) - len(wanted):,} left out"
        ) in said
    assert rows_of(folder / "new") == wanted
    assert run("verify", folder / "new").exit_code == 0


PLACE = type(NUMBER)(feature=None, key="place")


@pytest.mark.parametrize("seed", range(3))
def test_as_python_selects(tmp_path: pathlib.Path, seed: int) -> None:
    check_a_random_selection(tmp_path, seed)


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    found = examples(tmp_path, [50, 0, 61])
    attach_numbers(found, tmp_path, 111)
    return found


@pytest.mark.parametrize(
    "how", [[], pytest.param(["--runner=FnApiRunner"], marks=pytest.mark.slow)]
)
def test_runs_again_and_beam_make_the_same_bytes(
    tmp_path: pathlib.Path, output: str, how: list[str]
) -> None:
    argv = ["--select", "score >= 0.5", "--num-shards=3", "--name=d"]
    ran("convert", output, tmp_path / "a", *argv)
    ran("convert", output, tmp_path / "b", *argv, *how)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert "nothing to do" in ran("convert", output, tmp_path / "b", *argv)
    other = run("convert", output, tmp_path / "b", *argv[2:], "--select", "score > 0.6")
    assert other.exit_code == 2
    assert "select" in other.output


@pytest.mark.slow
def test_a_command_that_is_killed_is_run_again(
    tmp_path: pathlib.Path, output: str
) -> None:
    argv = ["--select", "language == 'de'", "--num-shards=3", "--name=d"]
    ran("convert", output, tmp_path / "whole", *argv)
    wanted = contents(tmp_path / "whole")
    made = tmp_path / "new"
    with Killer(tmp_path) as killer:
        for kill_at in (5, 9, 13, 15, 17, 19):
            command = ["convert", output, str(made), *argv]
            assert killer.run(command, kill_at=kill_at).status in (-9, 0)
            assert killer.run(command).status == 0
            assert contents(made) == wanted
            shutil.rmtree(made)


def test_a_packed_dataset_has_only_the_selected_documents(
    tmp_path: pathlib.Path, output: str
) -> None:
    options = ["--column", "n", "--length", "16", "--select", "score < 0.1"]
    said = ran("pack", output, tmp_path / "rows", *options)
    assert "selected score < 0.1: 12 of 111 records; 99 left out" in said
    assert "the columns language, score" in said
    packed = open_manifest(str(tmp_path / "rows")).splits["train"].packed
    assert packed is not None
    assert packed["documents"] == 12


def test_what_cannot_be_selected_is_said(tmp_path: pathlib.Path, output: str) -> None:
    files = tmp_path / "more.tfrecord"
    files.write_bytes(frames_of([example(1)]))
    for source, options, message in (
        (files, [], "records are selected from a dataset"),
        (output, ["--map", "json:loads"], "records are selected from a dataset"),
        (output, ["--select", "missing > 1"], "names no column 'missing'"),
        (output, ["--select", "score >"], "the expression cannot be read"),
    ):
        argv = ["--select", "score > 1", *options]
        result = run("convert", source, tmp_path / "new", *argv)
        assert result.exit_code == 2, result.output
        assert message in " ".join(result.output.split())
    (values,) = (pathlib.Path(output) / "columns").glob("*00000-of-*.score-*")
    data = values.read_bytes()
    values.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    result = run("convert", output, tmp_path / "new", "--select", "score > 0.1")
    assert result.exit_code == 3
    assert "values of a column are damaged" in result.output


def test_appending_carries_columns_along(tmp_path: pathlib.Path, output: str) -> None:
    (tmp_path / "more").mkdir()
    more = examples(tmp_path / "more", [30, 1])
    attach_numbers(more, tmp_path, 31)
    ran("append", output, more, "--select", "score > 0.9")
    rows = rows_of(more)
    chosen = [row for row in rows if row["score"] > 0.9]
    assert rows_of(output)[111:] == chosen
    assert not run("verify", output).exit_code
    ledger = json.loads(pathlib.Path(output, "dataset.json").read_text())
    appended = ledger["splits"]["train"]["editions"][-1]
    assert appended["source"]["selected"] == "score > 0.9"
    assert appended["dropped_records"] == sum(r["score"] <= 0.9 for r in rows)
