"""Duplicates by the commands: found, made a column, left out and removed."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.convert import convert
from tests.support.conversion import job_of, prepared_of, read_output
from tests.support.duplicates import (
    FORMATS,
    expected_of,
    key_of,
    options_of,
    removals_in,
    rows_of,
    write_inputs,
)
from tests.support.kills import Killer
from tests.support.line_files import jsonl_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def first_of_each(records: list[bytes], kind: str, *, whole: bool) -> list[bytes]:
    found: dict[bytes, bytes] = {}
    for record in records:
        found.setdefault(key_of(kind, record, whole=whole), record)
    return [*found.values()]


def written(folder: pathlib.Path, count: int = 300) -> pathlib.Path:
    path = folder / "in.jsonl"
    path.write_bytes(jsonl_of(rows_of(random.Random(4), count)))
    return path


def tokens(texts: list[str]) -> list[list[int]]:
    return [[*text.encode()] for text in texts]


tokens.vocabulary_size = 256  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [*FORMATS, "parquet"])
def test_the_rest_is_selected(tmp_path: pathlib.Path, kind: str) -> None:
    by = "record" if kind == "tar" else random.Random(kind).choice(["text", "record"])
    pattern = write_inputs(tmp_path / "in", random.Random(6), kind)
    options = {"records": options_of(kind), "name": "data", "plan": ("num_shards", 4)}
    convert([job_of(pattern, tmp_path / "all", **options)])
    given = f"{by}:-" if kind == "txt" and by == "text" else by
    found = run(
        "unique", tmp_path / "all", "--by", given, "--certificate", tmp_path / "c"
    )
    assert found.exit_code == 0, found.output
    rest = ("convert", tmp_path / "all", tmp_path / "rest")
    found = run(*rest, "--select", "duplicate_of < 0", "--workers", 1)
    assert found.exit_code == 0, found.output
    records = read_output(tmp_path / "all")
    whole = kind in ("tar", "txt")
    assert read_output(tmp_path / "rest") == first_of_each(records, by, whole=whole)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> str:
    plan = ("num_shards", 4)
    convert([job_of(written(tmp_path), tmp_path / "data", plan=plan)])
    return str(tmp_path / "data")


def test_a_dataset_gets_a_column_and_loses_duplicates(tmp_path, dataset) -> None:
    records = read_output(dataset)
    result = run("unique", dataset, "--certificate", tmp_path / "c")
    assert result.exit_code == 0, result.output
    opened, expected = loader.open(dataset), []
    first: dict[bytes, int] = {}
    for number, record in enumerate(records):
        key = key_of("text", record, whole=False)
        expected.append(first.get(key, -1))
        first.setdefault(key, number)
    assert opened.column("duplicate_of")[:].tolist() == expected
    kept = opened.select("duplicate_of < 0")
    assert [*kept] == first_of_each(records, "text", whole=False)
    again = run("unique", dataset, "--certificate", tmp_path / "c", "--json")
    assert json.loads(again.stdout)["column"]["done_before"]
    other = ("unique", dataset, "--by", "record", "--certificate", tmp_path / "d")
    assert "there is a column 'duplicate_of' already" in run(*other).output
    assert run(*other, "--overwrite").exit_code == 0
    assert (
        run(*other[:2], "--certificate", tmp_path / "c", "--overwrite").exit_code == 0
    )
    condition = ("remove", dataset, "--where", "duplicate_of >= 0")
    result = run(*condition)
    assert result.exit_code == 0, result.output
    assert read_output(dataset) == first_of_each(records, "text", whole=False)
    assert (loader.open(dataset).column("duplicate_of")[:] == -1).all()
    assert "removed before" in run(*condition).output
    assert run("verify", dataset).exit_code == 0
    none = run("remove", dataset, "--where", "duplicate_of > 999")
    assert "no record fulfils the condition" in none.output
    both = run("remove", dataset, "--where", "duplicate_of > 0", "--records", "x")
    assert "exactly one option must name" in both.output


def test_no_mutation_is_silent(tmp_path: pathlib.Path, dataset: str) -> None:
    path = tmp_path / "c"
    run("unique", dataset, "--certificate", path)
    data, rng = path.read_bytes(), random.Random(2)
    for _ in range(100):
        at = rng.randrange(len(data))
        other = bytearray(data)
        other[at] ^= 1 << rng.randrange(8)
        path.write_bytes(rng.choice([bytes(other), data[:at], data + data[at:]]))
        with pytest.raises(GristmillError):
            removals_in(path)


@pytest.fixture(scope="module")
def killer(tmp_path_factory) -> Iterator[Killer]:
    folder = tmp_path_factory.mktemp("killer")
    with Killer(folder) as killer:
        yield killer
    # What a killed search leaves there, the next one deletes.
    assert not [*folder.glob("gristmill-scratch-*")]


@pytest.mark.slow
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_what_is_killed_and_run_again_is_the_same(tmp_path, killer, stride) -> None:
    path = written(tmp_path)
    files = prepared_of(job_of(path, tmp_path / "other")).files
    found = tmp_path / "c"
    unique = ["unique", str(path), "--certificate", str(found), "--workers", "1"]
    killed = 0
    for kill_at in range(1 + stride // 2, 60, stride):
        ended = killer.run(unique, kill_at=kill_at, after=bool(kill_at % 2))
        assert ended.status in (0, -9), ended.error
        if ended.status == 0:
            break
        killed += 1
        assert killer.run(unique).status == 0
        assert removals_in(found) == expected_of(files, "text")
        found.unlink()
    else:
        pytest.fail("it has more steps")
    assert killed
    killer.run(unique)
