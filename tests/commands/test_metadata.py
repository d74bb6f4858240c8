"""What is in a dataset, shown to people and to scripts."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill.dataset import encode_example
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.text.split_editions import manifest_text
from tests.support.datasets import convert, describe
from tests.support.packed import pack
from tests.support.shell import succeeded, write_source


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("dataset") / "texts"
    succeeded("convert", "*.tfrecord", output, "--num-shards", "5", cwd=source)
    return output


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def rows_of(*arguments: object) -> list[dict[str, Any]]:
    return [*map(json.loads, run("head", *arguments, "--json").stdout.splitlines())]


# No text, a tf.train.Example, and a text.
ODD = [b"\xff\x00" * 40, encode_example({"t": [b"word " * 40, b"\xfe"]}), b"plain"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory) -> str:
    records = [*ODD, *(b"%d" % number for number in range(3, 60))]
    parts = [records[:2], [], records[2:40], records[40:]]
    return convert(tmp_path_factory.mktemp("odd"), parts, group_size=7)


def test_head_from_a_record_on(odd):
    assert [row["record"] for row in rows_of(odd)] == [0, 1, 2]
    found = rows_of(odd, "--offset", 39, "-n", 2)
    assert [(row["record"], row["text"]) for row in found] == [(39, "39"), (40, "40")]
    assert [row["record"] for row in rows_of(odd, "--offset", 59)] == [59]
    error = run("head", odd, "--offset", 60, code=2).stderr
    assert "no record has this number" in error
    assert "--offset below 60" in error


def test_head_of_random_records(odd):
    done = run("head", odd, "--random", "-n", 5, "--json")
    numbers = [json.loads(line)["record"] for line in done.stdout.splitlines()]
    assert numbers == sorted({*numbers})
    assert len(numbers) == 5
    # The seed that was taken shows the same ones again, another one others.
    (seed,) = re.findall(
        r"^note: --random --seed (\d+) shows", done.stderr, re.MULTILINE
    )
    again = rows_of(odd, "--random", "-n", 5, "--seed", seed)
    assert [row["record"] for row in again] == numbers
    assert all(
        row["text"] == str(n) for row, n in zip(again, numbers, strict=True) if n > 2
    )
    seeds = [rows_of(odd, "--random", "--seed", seed) for seed in range(9)]
    assert len({row["record"] for rows in seeds for row in rows}) > 9
    every = rows_of(odd, "--random", "-n", 99)
    assert [row["record"] for row in every] == list(range(60))


@pytest.mark.slow
def test_inspect_shows_what_was_packed(tmp_path):
    (tmp_path / "my_words.py").write_text(
        "def words(texts):\n    return [[*text.encode()] for text in texts]\n"
        "words.vocabulary_size = 256\n"
    )
    (tmp_path / "in.txt").write_text("a\n" + "long" * 20 + "\n\nb\n")
    options = "--tokenizer", "my_words:words", "--column=-", "--length=32"
    succeeded("pack", "in.txt", "rows", *options, cwd=tmp_path)
    text = succeeded("inspect", "rows", cwd=tmp_path)
    digest = hashlib.sha256((tmp_path / "my_words.py").read_bytes()).hexdigest()
    for line in (
        "  packed    rows of 32 tokens (best-fit)",
        "  tokens    82; targets 77 = tokens - 5 pieces; 14.58 % padding",
        "  documents 3, cut at 2 places",
        "  empty     1 document without a token",
        f"  tokenizer function, 256 ids, my_words:words, sha256:{digest[:16]}",
    ):
        assert line in text.splitlines()
    given = pack(tmp_path / "given", [[[1, 2]]])
    text = succeeded("inspect", given, cwd=tmp_path)
    assert "  tokenizer none: the documents were tokens" in text.splitlines()


def test_inspect_says_what_records_hold(tmp_path):
    features = {
        "text": FeatureSpec(kind="bytes", dtype="bytes", type="string", optional=True),
        "when": FeatureSpec(kind="int64", dtype="int64", type="timestamp[us]"),
        "label": FeatureSpec(
            kind="int64", dtype="int64", type="class_label", names=("a", "b")
        ),
        "tokens": FeatureSpec(
            kind="int64", dtype="uint16", type="uint16", shape=(None,)
        ),
        "box": FeatureSpec(kind="float", dtype="float32", type="double", shape=(2, 4)),
        "plain": FeatureSpec(kind="bytes", dtype="bytes"),
    }
    dataset = convert(tmp_path, [[b"a"]])
    describe(dataset, encode_features(features))
    text = manifest_text(open_manifest(dataset), dataset)
    assert (
        """
  features  text: string, or none
            when: timestamp[us] as int64
            label: class_label as int64, 2 names
            tokens: uint16 [any]
            box: double as float32 [2, 4]
            plain: bytes"""
        in text
    )
    describe(dataset, encode_features({f"c{n}": features["plain"] for n in range(23)}))
    text = manifest_text(open_manifest(dataset), dataset)
    assert "            c19: bytes\n            and 3 more: --json has all" in text
    describe(dataset, {"x": {}})
    text = manifest_text(open_manifest(dataset), dataset)
    assert "  features  feature 'x' is badly described" in text
