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
from gristmill.pipelines.text.training_summary import training_summary
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
    heads = ["documents", "different", "tokens", "different", "dataset", "dataset"]
    assert head.split() == heads
    assert [line.split()[-1] for line in lines] == ["a", "b"]
    assert last.endswith("in 11 steps")
    few = json.loads(run(*options, "--documents-only", "--steps", 2, "--json"))
    assert {one["tokens"] for one in few["parts"]} == {None}
    assert few["total"]["documents"] < found["total"]["documents"]


def test_selected_records_by_a_column(folder: pathlib.Path) -> None:
    condition = "score > 0.25"
    dataset = loader.open(folder / "a/out").select(condition)
    batches = loader.global_batches(dataset, batch_size=4)
    path = state(folder, batches, 40)
    options = (folder / "a/out", "--state", path, "--by", "language")
    out = run(*options, "--select", condition).splitlines()
    assert [line.split()[-1] for line in out[1:-1]] == ["de", "en"]
    counts = [int(line.split()[1]) for line in out[1:-1]]
    assert sum(counts) == len(dataset)
    assert "does not match the records" in run(*options, code=2)
    named = (f"a={folder / 'a/out'}", f"b={folder / 'b/out'}", "--batch-size", 4)
    chosen = (*named, "--steps", 60, "--by", "dataset", "--json")
    found = json.loads(run(*chosen, "--select", f"a={condition}"))
    assert found["parts"][0]["different_documents"] == len(dataset)
    assert "names no dataset" in run(*chosen, "--select", condition, code=2)


@pytest.mark.parametrize(
    ("tokens", "size"),
    [
        (10**9 - 1, "Less than 1 billion tokens"),
        (10**9, "1 billion to 10 trillion tokens"),
        (10**13, "1 billion to 10 trillion tokens"),
        (10**13 + 1, "More than 10 trillion tokens"),
    ],
)
def test_sizes_are_ranges(tokens: int, size: str) -> None:
    general = training_summary(text_tokens=tokens, sources=[])["1_general_information"]
    modalities = general["1.3_characteristics"]["modalities"]
    assert modalities["text"]["size"] == size
    assert modalities["audio"]["size"] == ""
