"""Columns that a Beam pipeline computes are those of local processes."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.columns.attach import attach_computed
from gristmill.pipelines.commands.main import cli
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.attach_job import ComputeJob
from tests.support.columns import examples
from tests.support.editions import files_of
from tests.support.pipelines import run

FUNCTION = "tests.conversion.test_attach_job:facts"


def facts(record: bytes) -> dict[str, object]:
    return {"size": len(record), "words": record.hex(" ", 4), "pair": [0.5, 1.0]}


def computed(output: str, *, overwrite: bool = False) -> None:
    run(RunJob(ComputeJob(output, FUNCTION, None, overwrite)))


@pytest.fixture
def outputs(tmp_path: pathlib.Path) -> list[str]:
    first = examples(tmp_path, [5, 0, 6])
    shutil.copytree(first, tmp_path / "again")
    return [first, str(tmp_path / "again")]


def test_the_bytes_are_the_same(outputs: list[str]) -> None:
    attach_computed(outputs[0], FUNCTION, workers=1)
    computed(outputs[1])
    made = files_of(outputs[1])
    assert made == files_of(outputs[0])
    opened = loader.open(outputs[1])
    assert opened.column("size")[:].tolist() == [*map(len, opened)]
    computed(outputs[1])  # There is nothing to do.
    assert files_of(outputs[1]) == made
    computed(outputs[1], overwrite=True)
    assert files_of(outputs[1]) == made


def test_what_cannot_be_attached_is_said(outputs: list[str]) -> None:
    for runner, options, said in (
        ("FnApiRunner", ["rows.jsonl", "--number", "n"], "only --map runs on Beam"),
        ("DataflowRunner", ["--map", FUNCTION], "on Dataflow by this command"),
    ):
        argv = ["attach", outputs[0], *options, "--runner", runner]
        result = CliRunner().invoke(cli, argv)
        assert result.exit_code == 2
        assert said in result.output


@pytest.mark.slow
def test_the_command_runs_it(outputs: list[str]) -> None:
    attach_computed(outputs[0], FUNCTION, workers=1)
    argv = ["attach", outputs[1], "--map", FUNCTION, "--runner", "FnApiRunner"]
    result = CliRunner().invoke(cli, argv)
    assert result.exit_code == 0, result.output
    assert "size (int64), words (text), pair (float64 [2]) attached to 11" in (
        result.output
    )
    assert files_of(outputs[1]) == files_of(outputs[0])
    assert "attached before" in CliRunner().invoke(cli, argv).output
