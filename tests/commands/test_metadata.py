"""`gristmill inspect`: what is in a dataset, for people."""

from __future__ import annotations

import hashlib

import pytest

from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from tests.commands.conftest import run
from tests.support.datasets import convert, describe
from tests.support.packed import pack


@pytest.mark.slow
def test_inspect_shows_what_was_packed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_words.py").write_text(
        "def words(texts):\n    return [[*text.encode()] for text in texts]\n"
        "words.vocabulary_size = 256\n"
    )
    (tmp_path / "in.txt").write_text("a\n" + "long" * 20 + "\n\nb\n")
    options = "--tokenizer", "my_words:words", "--column=-", "--length=32"
    run("pack", "in.txt", "rows", *options)
    lines = run("inspect", "rows").stdout.splitlines()
    digest = hashlib.sha256((tmp_path / "my_words.py").read_bytes()).hexdigest()
    assert {
        "  packed    rows of 32 tokens (best-fit)",
        "  tokens    82; targets 77 = tokens - 5 pieces; 14.58 % padding",
        "  documents 3, cut at 2 places",
        "  empty     1 document without a token",
        f"  tokenizer function, 256 ids, my_words:words, sha256:{digest[:16]}",
    } <= {*lines}
    given = pack(tmp_path / "given", [[[1, 2]]])
    text = run("inspect", given).stdout
    assert "  tokenizer none: the documents were tokens\n" in text


def test_inspect_says_what_records_hold(tmp_path):
    def spec(kind: str, dtype: str, **more: object) -> FeatureSpec:
        return FeatureSpec(kind=kind, dtype=dtype, **more)

    plain = spec("bytes", "bytes")
    features = {
        "text": spec("bytes", "bytes", type="string", optional=True),
        "when": spec("int64", "int64", type="timestamp[us]"),
        "label": spec("int64", "int64", type="class_label", names=("a", "b")),
        "tokens": spec("int64", "uint16", type="uint16", shape=(None,)),
        "box": spec("float", "float32", type="double", shape=(2, 4)),
        "plain": plain,
    }
    dataset = convert(tmp_path, [[b"a"]])
    describe(dataset, encode_features(features))
    assert (
        """
  features  text: string, or none
            when: timestamp[us] as int64
            label: class_label as int64, 2 names
            tokens: uint16 [any]
            box: double as float32 [2, 4]
            plain: bytes"""
        in run("inspect", dataset).stdout
    )
    describe(dataset, encode_features({f"c{n}": plain for n in range(23)}))
    text = run("inspect", dataset).stdout
    assert "            c19: bytes\n            and 3 more: --json has all" in text
    describe(dataset, {"x": {}})
    text = run("inspect", dataset).stdout
    assert "  features  feature 'x' is badly described" in text
