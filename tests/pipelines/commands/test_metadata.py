"""What is in a dataset, shown to people and to scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gristmill.dataset import encode_example
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.text.contents import manifest_text
from tests.support.datasets import convert, describe
from tests.support.examples import tf_example
from tests.support.packed import pack
from tests.support.records import (
    text_records,
    write_tfrecords,
)
from tests.support.shell import gristmill, succeeded, write_source


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("dataset") / "texts"
    succeeded("convert", "*.tfrecord", output, "--num-shards", "5", cwd=source)
    return output


@pytest.mark.slow
def test_inspect_and_head(dataset, source):
    text = succeeded("inspect", dataset, cwd=source)
    assert "600 in 5 shards" in text
    assert (
        json.loads(succeeded("inspect", dataset, "--json", cwd=source))["records"]
        == 600
    )
    lines = succeeded("head", dataset, "-n", "201", "--json", cwd=source).splitlines()
    assert len(lines) == 201
    last = json.loads(lines[-1])
    assert last["bytes"] == len(text_records(1, seed=1)[0])
    assert "record 0:" in succeeded("head", dataset, "-n", "1", cwd=source)
    done = gristmill("head", dataset, "--split", "test", cwd=source)
    assert done.returncode == 2
    assert "no such split" in done.stderr


@pytest.mark.slow
def test_head_decodes_examples(tmp_path):
    example = tf_example({"text": [b"Hello there"], "ids": [1, -2], "score": [0.5]})
    write_tfrecords(tmp_path / "in.tfrecord", [example])
    succeeded("convert", "in.tfrecord", "out", cwd=tmp_path)
    text = succeeded("head", "out", cwd=tmp_path)
    assert "text: 'Hello there'" in text
    assert "ids: [1, -2]" in text
    assert "score: 0.5" in text


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
def test_head_gives_bytes_as_they_are(odd, tmp_path):
    with open(tmp_path / "bytes", "wb") as file:
        command = [sys.executable, "-m", "gristmill", "head", odd, "--raw"]
        subprocess.run(command, stdout=file, check=True, timeout=120)
    assert (tmp_path / "bytes").read_bytes() == b"".join(ODD)
    assert run("head", odd, "--raw", "--offset=1", "-n1").stdout_bytes == ODD[1]


def test_head_prints_bytes_that_are_no_text_in_base64(odd):
    first, second, third = rows_of(odd)
    assert base64.b64decode(first["base64"]) == ODD[0]
    assert first["features"] is None
    text, rest = second["features"]["t"]
    assert text == "word " * 40
    assert base64.b64decode(rest["base64"]) == b"\xfe"
    assert "text" not in second
    assert third == {"record": 2, "bytes": 5, "features": None, "text": "plain"}


def test_inspect_tells_sizes_of_shards_and_of_input(tmp_path):
    noise = random.Random(1).randbytes
    one, many = [noise(1000)], [noise(1000) for _ in range(3000)]
    dataset = convert(tmp_path, [one, one, one, many])
    text = run("inspect", dataset).stdout
    sizes = sorted(path.stat().st_size for path in pathlib.Path(dataset).glob("d-*"))
    largest = f"{sizes[3] / (1 << 20):.1f} MiB the largest\n"
    assert f"shards    128.0 KiB the smallest, 128.0 KiB the median, {largest}" in text
    assert f"  input     {3003 * 1016 / (1 << 20):.1f} MiB as stored\n" in text
    assert f"largest has {sizes[3] / sizes[2]:.1f} times the median" in text
    cure = f"`gristmill convert {dataset} {dataset}-even`"
    assert cure in text
    assert "more than the input" not in text
    found = json.loads(run("inspect", dataset, "--json").stdout)["summary"]["train"]
    (warning,) = found["warnings"]
    assert cure in warning
    names = ("smallest_bytes", "median_bytes", "largest_bytes", "input_bytes", "map")
    values = [sizes[0], sizes[1], sizes[3], 3003 * 1016, None]
    assert [found[name] for name in names] == values
    assert [found["editions"][0][name] for name in names] == values
    next(pathlib.Path(dataset).glob("index/*.shards.npz")).unlink()
    assert (
        "  warning   sizes of shards are not known: " in run("inspect", dataset).stdout
    )


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
        "  packed    3 documents into rows of 32 tokens (best-fit), 14.58 % padding",
        "  tokens    82; targets 77 = tokens - 5 pieces",
        "  cut       1 document in several pieces",
        "  left out  1 document without a token",
        f"  tokenizer function, 256 ids, my_words:words, sha256:{digest[:16]}",
    ):
        assert line in text.splitlines()
    given = pack(tmp_path / "given", [[[1, 2]]])
    text = succeeded("inspect", given, cwd=tmp_path)
    assert "  tokenizer none: the documents were tokens" in text.splitlines()


@pytest.mark.slow
def test_head_shows_the_pieces_of_packed_rows(tmp_path):
    documents = [[1, 2, 3], list(range(100, 140)), [7]]
    packed = pack(tmp_path, [documents], length=32)
    text = succeeded("head", packed, cwd=tmp_path)
    assert text.splitlines() == [
        "record 0: 140 bytes, 32 tokens in 2 pieces",
        "  1 2 3",
        "  100 101 102 103 104 105 106 107 ... (29 tokens)",
        "record 1: 68 bytes, 12 tokens in 2 pieces",
        "  from token 29 of its document: "
        "129 130 131 132 133 134 135 136 ... (11 tokens)",
        "  7",
    ]
    lines = succeeded("head", packed, "--json", cwd=tmp_path).splitlines()
    rows = list(map(json.loads, lines))
    assert [(row["record"], row["bytes"]) for row in rows] == [(0, 140), (1, 68)]
    assert rows[0]["pieces"][0] == {"first": 0, "ids": [1, 2, 3]}
    assert rows[1]["pieces"][0] == {"first": 29, "ids": list(range(129, 140))}
    order = "--batch-size", "2", "--shuffle", "none", "--show"
    row = succeeded("trace", packed, "--step", 0, "--row", 1, *order, cwd=tmp_path)
    assert row.endswith("\n".join(text.splitlines()[3:]) + "\n")
    record = "--record", 0, "--stop-epoch", 1, "--json"
    found = succeeded("trace", packed, *record, *order, cwd=tmp_path)
    assert json.loads(found.splitlines()[1]) == rows[0]


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
