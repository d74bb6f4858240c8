"""The documents of the benchmarks of packing: distinct, and alike in every form."""

from __future__ import annotations

import itertools
import json
import pathlib

import pytest

from benchmarks import pack_text, peers
from gristmill import loader

REAL = [b"A first. A second one! And a third?", b"Another text. With two.", b"Short"]


@pytest.mark.slow
@pytest.mark.parametrize("real", [[], REAL])
def test_no_document_occurs_twice(real: list[bytes]) -> None:
    texts = list(itertools.islice(pack_text.generate_texts(3, real), 3000))
    assert len(set(texts)) == len(texts)
    again = itertools.islice(pack_text.generate_texts(3, real), 3000)
    assert texts == list(again)
    other = set(itertools.islice(pack_text.generate_texts(4, real), 3000))
    assert not other & set(texts)


@pytest.mark.slow
def test_one_word_in_a_hundred_is_new() -> None:
    texts = list(itertools.islice(pack_text.generate_texts(5), 300))
    plain = list(itertools.islice(pack_text._invent(5), 300))
    words = changed = 0
    for text, before in zip(texts, plain, strict=True):
        pairs = list(zip(text.split(b" "), before.split(b" "), strict=True))
        words += len(pairs)
        changed += sum(a != b for a, b in pairs)
    assert 0.008 < changed / words < 0.014


@pytest.mark.slow
def test_the_forms_hold_the_same_documents(tmp_path: pathlib.Path) -> None:
    documents, text_bytes = pack_text.write_inputs(tmp_path, 40_000, files=2)
    decode = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})
    found: dict[str, list[bytes]] = {"tfrecord": [], "jsonl": [], "text": []}
    for path in sorted(tmp_path.glob("*/*")):
        if path.suffix == ".jsonl":
            lines = path.read_text().splitlines()
            found["jsonl"] += [json.loads(line)["text"].encode() for line in lines]
            continue
        records = list(peers.read_frames_unchecked(str(path)))
        if path.suffix == ".tfrecord":
            records = decode(records)["text"].tolist()
        found[path.suffix[1:]] += records
    assert found["tfrecord"] == found["jsonl"] == found["text"]
    assert len(found["text"]) == documents
    assert sum(map(len, found["text"])) == text_bytes


def test_real_texts_are_read(tmp_path: pathlib.Path) -> None:
    pack_text.write_inputs(tmp_path, 5_000, files=1, forms=("tfrecord",))
    texts = pack_text.read_real(tmp_path / "tfrecord")
    real = tmp_path / "tfrecord"
    pack_text.write_inputs(tmp_path / "spliced", 5_000, files=1, real=real)
    assert sum(map(len, texts)) >= 5_000
    with pytest.raises(FileNotFoundError, match="no TFRecord files"):
        pack_text.read_real(tmp_path / "spliced" / "text")


def test_a_tokenizer_is_trained(tmp_path: pathlib.Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path / "t" / "tokenizer.json"
    pack_text.train_tokenizer(path, vocabulary=500, size_bytes=60_000)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size() == 500
    text = next(pack_text.generate_texts(9)).decode()
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == text
    assert len(ids) < 0.7 * len(text)
