"""Columns through the commands that change, copy and check a dataset."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.commands.main import cli
from tests.support.columns import attach_numbers, example, examples
from tests.support.editions import files_of
from tests.support.records import frames_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    found = examples(tmp_path, [5, 6])
    attach_numbers(found, tmp_path, 11)
    return found


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Returns other bytes: some changed, cut off, added, or another order."""
    at = rng.randrange(len(data))
    return rng.choice(
        [
            data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :],
            data[:at],
            data + b"\0",
            data[:at] + data[at + 1 :] + data[at : at + 1] + b"?",
            b"",
        ]
    )


def values_of(output: str) -> list[list[Any]]:
    opened = loader.open(output)
    return [opened.column(name)[:].tolist() for name in ("score", "language")]


def check_no_mutation_is_silent(output: str, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    expected = values_of(output)
    files = [p for p in files_of(output) if "columns" in p or p == "dataset.json"]
    for _ in range(rounds):
        path = pathlib.Path(output) / rng.choice(files)
        data = path.read_bytes()
        path.write_bytes(mutated(data, rng))
        try:
            found = values_of(output)
        except GristmillError:
            pass
        else:
            # What does not matter to values may differ, such as a name in `source`.
            assert path.name == "dataset.json"
            assert found == expected
        if path.name != "dataset.json":
            assert run("verify", output).exit_code == 3, path
        path.write_bytes(data)
    assert run("verify", output).exit_code == 0


def test_no_mutation_is_silent(output: str) -> None:
    check_no_mutation_is_silent(output, 12, seed=1)


def test_verify_names_what_is_wrong(output: str) -> None:
    (values,) = (pathlib.Path(output) / "columns").glob("*00000-of-*.score-*")
    data = values.read_bytes()
    values.unlink()
    for options in ([], ["--quick"]):
        result = run("verify", output, *options)
        assert result.exit_code == 3
        assert f"columns/{values.name}" in result.output
        assert "column is missing" in result.output
    values.write_bytes(data + b"\0")
    assert "column has the wrong size" in run("verify", output, "--quick").output
    values.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert run("verify", output, "--quick").exit_code == 0  # It reads no file.
    assert "column is not the file that was written" in run("verify", output).output


def test_appended_records_have_no_values(tmp_path: pathlib.Path, output: str) -> None:
    more = tmp_path / "more.tfrecord"
    more.write_bytes(frames_of([example(11), example(12)]))
    result = run("append", output, more)
    assert result.exit_code == 0, result.output
    assert "edition 2 of train has no values of the columns language, score" in (
        " ".join(result.output.split())
    )
    shown = run("inspect", output).stdout
    assert "column    score: float64" in shown
    assert "only of edition 1: attach it again" in shown
    attach_numbers(output, tmp_path, 13, overwrite=True)
    assert loader.open(output).column("score")[12] == 12 / 13
    assert "only of edition" not in run("inspect", output).stdout
    # Going back keeps the values of the edition.
    assert run("rollback", output, 1).exit_code == 0
    assert loader.open(output).column("score")[10] == 10 / 13
