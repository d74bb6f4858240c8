"""Duplicates by the command and by Beam: a column, left out, and removed."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.dataset import Writer, encode_example
from gristmill.dataset.base.example import decode_example
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.local.pool import run_job
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.duplicates import (
    Comparison,
    DuplicatesJob,
    normalised,
)
from tests.faults.kills import Killer
from tests.support.conversion import contents, read_output
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
)
from tests.support.pipelines import run as run_beam

WORDS = (
    *("a", "A  a", "\uff21 a\n", "\ufb01n", "FIN", "b\u3000b", "B b", "", "long " * 40),
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def records_of(rng: random.Random, count: int) -> list[bytes]:
    """Returns records, many of them alike by text, by normalised text and whole."""
    return [
        encode_example(
            {
                "text": rng.choice(WORDS) + rng.choice(["", "1", "2"]),
                "id": rng.randrange(3),
            }
        )
        for _ in range(count)
    ]


def write(path: pathlib.Path, records: list[bytes], **options: Any) -> str:
    with Writer(path, **{"shard_bytes": 1000, **options}) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def key_of(by: str, record: bytes) -> bytes:
    """Returns the bytes of a record that are compared."""
    if by == "record":
        return record
    (text,) = decode_example(record)["text"] or (b"",)
    text = bytes(text)
    if by == "normalised":
        found = unicodedata.normalize("NFKC", text.decode()).lower()
        return " ".join(found.split()).encode()
    return text


def expected_of(records: list[bytes], by: str) -> list[int]:
    """Returns the column, by a dict."""
    first: dict[bytes, int] = {}
    kept = [first.setdefault(key_of(by, r), n) for n, r in enumerate(records)]
    return [-1 if number == own else number for own, number in enumerate(kept)]


def column_of(dataset: str) -> list[int]:
    found: list[int] = loader.open(dataset).column("duplicate_of")[:].tolist()
    return found


def check_random(folder: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    by = rng.choice(["text", "record", "normalised"])
    records = records_of(rng, rng.choice([1, 2, 30, 300]))
    shard_bytes = rng.choice([200, 3000, 1 << 20])
    path = write(folder / "data", records, shard_bytes=shard_bytes)
    job = DuplicatesJob(path, by, block_bits=rng.choice([2, 5, 21]))
    found = run_job(job, workers=1)
    expected = expected_of(records, by)
    assert column_of(path) == expected, seed
    assert found.duplicates == len(records) - expected.count(-1)
    assert not [*(folder / "data").glob("columns/*digests*")]


@pytest.mark.parametrize("seed", range(12))
def test_the_column_is_that_of_a_dict(tmp_path: pathlib.Path, seed: int) -> None:
    check_random(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(50, 1050, 100))
def test_the_columns_of_many_are(tmp_path: pathlib.Path, first: int) -> None:
    for seed in range(first, first + 100):
        check_random(tmp_path / str(seed), seed)


@pytest.fixture
def records() -> list[bytes]:
    return records_of(random.Random(4), 300)


@pytest.fixture
def dataset(tmp_path: pathlib.Path, records: list[bytes]) -> str:
    return write(tmp_path / "data", records)


def test_a_dataset_gets_a_column_and_loses_duplicates(tmp_path, dataset, records):
    assert "300 records = " in done("unique", dataset)
    expected = expected_of(records, "text")
    assert column_of(dataset) == expected
    rest = [r for r, kept in zip(records, expected, strict=True) if kept < 0]
    done("convert", dataset, tmp_path / "rest", "--select", "duplicate_of < 0")
    assert read_output(tmp_path / "rest") == rest
    before = contents(dataset)
    again = json.loads(done("unique", dataset, "--json"))
    assert again["done_before"]
    assert (again["kept"], again["duplicates"]) == (len(rest), 300 - len(rest))
    assert contents(dataset) == before
    other = ("unique", dataset, "--by", "record")
    assert "there is a column 'duplicate_of' already" in run(*other).output
    done(*other, "--overwrite")
    assert column_of(dataset) == expected_of(records, "record")
    done("unique", dataset, "--overwrite")
    condition = ("remove", dataset, "--where", "duplicate_of >= 0")
    done(*condition)
    assert read_output(dataset) == rest
    assert column_of(dataset) == [-1] * len(rest)
    assert "removed before" in run(*condition).output
    done("verify", dataset)
    none = run("remove", dataset, "--where", "duplicate_of > 999")
    assert "no record fulfils the condition" in none.output
    both = run("remove", dataset, "--where", "duplicate_of > 0", "--records", "x")
    assert "exactly one option must name" in both.output


def test_several_editions_and_workers(tmp_path: pathlib.Path, dataset, records) -> None:
    more = records_of(random.Random(5), 200)
    done("append", dataset, write(tmp_path / "more", more))
    done("unique", dataset, "--workers", 2)
    assert column_of(dataset) == expected_of(records + more, "text")


@pytest.mark.parametrize(
    "argv",
    [
        *(IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED),
        pytest.param(WORKER_PROCESSES, marks=pytest.mark.slow),
    ],
    ids=lambda value: value[-1].lstrip("-"),
)
def test_on_beam_it_has_the_same_files(tmp_path, dataset, records, argv) -> None:
    beam = write(tmp_path / "beam" / "data", records)
    transform = RunJob(DuplicatesJob(str(beam), "normalised", None, False))
    (found,) = run_beam(transform, argv=argv)
    expected = expected_of(records, "normalised")
    assert found.by == "normalised:text"
    assert (found.records, found.kept) == (300, expected.count(-1))
    assert column_of(beam) == expected
    done("unique", dataset, "--by", "normalised")
    assert contents(beam) == contents(dataset)


def test_a_record_that_is_there_very_often(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "data", [b"same"] * 3000)
    assert run_job(DuplicatesJob(path, "text:-", block_bits=4), workers=1).kept == 1
    assert column_of(path) == [-1] + [0] * 2999


def test_what_cannot_be_compared_is_refused(tmp_path, dataset) -> None:
    assert "compared by this" in run("unique", dataset, "--by", "words").output
    lines = write(tmp_path / "lines", [b"a text"])
    found = run("unique", lines).output
    assert "record 0" in found
    assert "not a tf.train.Example" in found
    assert "as --split NAME" in run("unique", two_splits(tmp_path)).output
    assert "not a committed dataset" in run("unique", tmp_path).output


def two_splits(folder: pathlib.Path) -> pathlib.Path:
    for split in ("train", "test"):
        write(folder / "two", [b"1"], split=split)
    return folder / "two"


@pytest.mark.parametrize(
    ("given", "expected", "text"),
    [
        ("text", ("text", "text"), "text:text"),
        ("text:body", ("text", "body"), "text:body"),
        ("normalised:a:b", ("normalised", "a:b"), "normalised:a:b"),
        ("normalised:-", ("normalised", ""), "normalised:-"),
        ("record", ("record", ""), "record"),
    ],
)
def test_what_is_compared(given: str, expected: tuple[str, str], text: str) -> None:
    found = Comparison.parse(given)
    assert found == expected
    assert str(found) == text
    assert Comparison.parse(str(found)) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Hello  World", "hello world"),
        ("\ta\r\n\x0b b\x1c", "A B"),
        ("\uff28ello\u3000world", "hello world"),
        ("ﬁne", "FINE"),
        ("e\u0301", "\u00c9"),
        ("x\u00a0y\u2009z", "x y z"),
        ("", " \n"),
        ("²", "2"),
        ("ΟΔΟΣ", "οδος"),
    ],
)
def test_texts_that_are_the_same(one: str, other: str) -> None:
    assert normalised(one.encode()) == normalised(other.encode())


@pytest.mark.parametrize(("one", "other"), [("a b", "ab"), ("ß", "ss"), ("a", "á")])
def test_texts_that_are_not(one: str, other: str) -> None:
    assert normalised(one.encode()) != normalised(other.encode())


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
    records = records_of(random.Random(4), 60)
    expected = expected_of(records, "text")
    killed = 0
    for kill_at in itertools.count(1 + stride // 2, stride):
        path = write(tmp_path / str(kill_at) / "data", records)
        unique = ["unique", path, "--workers", "1"]
        ended = killer.run(unique, kill_at=kill_at, after=bool(kill_at % 2))
        assert ended.status in (0, -9), ended.error
        if ended.status == 0:
            break
        killed += 1
        assert killer.run(unique).status == 0
        assert column_of(path) == expected
        done("clean", path)
        assert json.loads(done("verify", path, "--json"))["leftovers"] == []
    assert killed
