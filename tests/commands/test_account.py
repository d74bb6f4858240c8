"""`gristmill account`: its table, JSON, CSV and the summary of training content."""

from __future__ import annotations

import csv
import json
import pathlib

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.loader.accounting.account import account as accounted
from gristmill.loader.feed.state import state_of
from gristmill.pipelines.commands.main import cli
from tests.support.columns import attach_numbers, examples
from tests.support.packed import documents, pack

RECORDS = 30


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["account", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A dataset `a` of two files with columns, and packed rows `b`."""
    folder = tmp_path_factory.mktemp("account")
    found = examples(folder / "a", [RECORDS - 10, 10])
    attach_numbers(found, folder, RECORDS)
    pack(folder / "b", [documents(20, seed=1), documents(9, seed=2)])
    return folder


def state(folder: pathlib.Path, batches: loader.GlobalBatches, steps: int) -> str:
    path = folder / "state.json"
    path.write_text(json.dumps(state_of(batches, steps)))
    return str(path)


def test_a_mixture_in_all_forms(folder: pathlib.Path) -> None:
    named = {"a": loader.open(folder / "a/out"), "b": loader.open(folder / "b/out")}
    batches = loader.global_batches(named, batch_size=8)
    named = [f"{name}={folder / name / 'out'}" for name in "ab"]
    options = (*named, "--state", state(folder, batches, 11))
    found = json.loads(run(*options, "--csv", folder / "t.csv", "--json"))
    expected = [
        {"dataset": part.dataset, "value": part.value, "note": part.note}
        | part.counts._asdict()
        for part in accounted(batches, 11)
    ]
    assert found["parts"] == expected
    assert len(expected) == 4
    assert found["total"]["documents"] == sum(one["documents"] for one in expected)
    assert found["total"]["tokens"] is None  # Those of `a` are not known.
    with open(folder / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {name: "" if value is None else str(value) for name, value in one.items()}
        for one in expected
    ]
    head, *lines, last = run(*options, "--by", "dataset").splitlines()
    assert head.split("  ")[-1] == "dataset"
    assert [line.split()[-1] for line in lines] == ["a", "b"]
    assert last.endswith("in 11 steps")
    few = json.loads(run(*options, "--documents-only", "--steps", 2, "--json"))
    assert {one["tokens"] for one in few["parts"]} == {None}
    assert few["total"]["documents"] < found["total"]["documents"]
