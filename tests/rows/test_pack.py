"""Packing documents into rows, from every source, against plain Python."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import (
    InputError,
    JobChangedError,
    UserFunctionError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions, PackingOptions
from tests.support.records import frames_of, read_array_records
from tests.support.tokenizer_files import published

MODULE = '''
import gristmill.dataset

def words(texts):
    return [[ord(letter) for letter in text] for text in texts]

words.vocabulary_size = 1000
words.special_ids = {"<s>": 1, "</s>": 2}

def example(record):
    return gristmill.dataset.encode_example({"ids": list(record)})

def half(record):
    """Drops a third of the documents, and makes two of another third."""
    text = record.decode() if not record.startswith(b"\\n") else ""
    number = sum(record) % 3
    return None if number == 0 else [record] * number
'''
LENGTH = 64


@pytest.fixture(autouse=True)
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_words", raising=False)


def texts_of(count: int, *, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    lengths = [int(rng.lognormvariate(3, 1)) for _ in range(count)]
    return [
        f"{number}:" + "".join(rng.choices("abcdefgh ", k=length))
        for number, length in enumerate(lengths)
    ]


TEXTS = texts_of(400)


def example(text: str) -> bytes:
    return dataset.encode_example({"text": text, "url": f"http://{len(text)}"})


def tfrecords(folder: pathlib.Path, texts: Sequence[str]) -> str:
    (folder / "in.tfrecord").write_bytes(frames_of(list(map(example, texts))))
    return str(folder / "in.tfrecord")


def committed(folder: pathlib.Path, texts: Sequence[str]) -> str:
    with dataset.Writer(str(folder / "made"), name="made") as writer:
        for text in texts:
            writer.write(example(text))
    return str(folder / "made")


def json_lines(folder: pathlib.Path, texts: Sequence[str]) -> str:
    lines = (json.dumps({"n": i, "text": text}) for i, text in enumerate(texts))
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "in.jsonl")


def parquet(folder: pathlib.Path, texts: Sequence[str]) -> str:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": list(texts), "n": list(range(len(texts)))})
    path = str(folder / "in.parquet")
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    return path


def comma_separated(folder: pathlib.Path, texts: Sequence[str]) -> str:
    rows = ["text,n", *(f"{text},7" for text in texts)]
    (folder / "in.csv").write_text("\n".join(rows) + "\n")
    return str(folder / "in.csv")


def lines(folder: pathlib.Path, texts: Sequence[str]) -> str:
    (folder / "in.txt").write_text("\n".join(texts) + "\n")
    return str(folder / "in.txt")


def pack(source: str, output: pathlib.Path, *, workers: int = 1, **options: Any) -> Any:
    given = {"tokenizer": "my_words:words", "length": LENGTH, "num_shards": 3}
    found = PackingOptions(input=(source,), output=str(output), **given | options)
    return convert(**conversion_of(found)._asdict(), workers=workers)


class Document(NamedTuple):
    """A document as it is found in the rows of a shard."""

    ids: list[int]
    place: int


def packed_split(output: pathlib.Path, split: str = "train") -> PackedSplit:
    found = open_manifest(str(output)).splits[split].packed
    assert found is not None
    return PackedSplit.parse(found, where=str(output))


def documents_of(output: pathlib.Path) -> list[Document]:
    """Joins the pieces of every document, shard by shard, one piece after the other."""
    split = open_manifest(str(output)).splits["train"]
    packed = packed_split(output)
    form = RowFormat(packed.length, packed.id_bytes, packed.rows)  # type: ignore[arg-type]
    found = []
    for path in read_table(str(output), split).paths:
        rows = decode_rows(form, read_array_records(output / path))
        place = output / layout.segments_path(path)
        index = SegmentIndex.decode(place.read_bytes(), where=str(place))
        np.testing.assert_array_equal(index.row_ends, rows.row_ends)
        np.testing.assert_array_equal(index.piece_firsts, rows.firsts)
        joined: dict[int, dict[int, list[int]]] = {}
        ends = np.cumsum(rows.lengths)
        for piece, document in enumerate(index.piece_documents.tolist()):
            tokens = rows.tokens[ends[piece] - rows.lengths[piece] : ends[piece]]
            firsts = joined.setdefault(document, {})
            assert int(rows.firsts[piece]) not in firsts
            firsts[int(rows.firsts[piece])] = tokens.tolist()
        for document, firsts in sorted(joined.items()):
            ids: list[int] = []
            for first, tokens in sorted(firsts.items()):
                assert first == len(ids)
                ids += tokens
            found.append(Document(ids, int(index.sources.places[document])))
    return found


def ids_of(texts: Sequence[str], *, bos: int = 0, eos: int = 0) -> list[list[int]]:
    return [
        [1] * bos + [ord(letter) for letter in text] + [2] * eos
        for text in texts
        if text
    ]


@pytest.mark.parametrize(
    "make",
    [tfrecords, committed, json_lines, parquet, comma_separated, lines],
    ids=lambda make: make.__name__,
)
def test_every_source_gives_the_same_documents(
    make: Callable[[pathlib.Path, Sequence[str]], str], tmp_path: pathlib.Path
) -> None:
    source = make(tmp_path, TEXTS)
    pack(source, tmp_path / "out")
    assert [found.ids for found in documents_of(tmp_path / "out")] == ids_of(TEXTS)
    counts = packed_split(tmp_path / "out").counts
    assert counts.documents == len(TEXTS)
    assert counts.tokens == sum(map(len, TEXTS))
    assert counts.text_bytes == counts.tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pack": "concat"},
        {"pack": "none"},
        {"truncate": True},
        {"bos": "<s>", "eos": "2"},
        {"eos": "</s>", "pack": "concat", "truncate": True},
        {"rows": "example", "bos": "1"},
        {"rows": "example", "pack": "none"},
        {"num_shards": 1, "length": 7},
    ],
    ids=str,
)
def test_the_ledger_adds_up(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    texts = [*TEXTS[:150], "", *TEXTS[150:200], ""]
    pack(tfrecords(tmp_path, texts), tmp_path / "out", **options)
    bos, eos = "bos" in options, "eos" in options
    whole = ids_of(texts, bos=bos, eos=eos)
    length = options.get("length", LENGTH)
    cuts = options.get("truncate") or options.get("pack") == "none"
    kept = [ids[:length] for ids in whole] if cuts else whole
    assert [found.ids for found in documents_of(tmp_path / "out")] == kept
    packed = packed_split(tmp_path / "out")
    counts = packed.counts
    tokens = sum(map(len, kept))
    rows = open_manifest(str(tmp_path / "out")).splits["train"].records
    assert packed.length == length
    assert counts == dataclasses.replace(
        counts,
        documents=len(whole),
        empty_documents=len(texts) - len(whole),
        tokens=tokens,
        special_tokens=(bos + eos) * len(whole)
        - sum(len(ids) > length for ids in whole) * bool(eos and cuts),
        padding_tokens=rows * length - tokens,
        truncated_documents=sum(len(ids) > length for ids in whole) if cuts else 0,
        truncated_tokens=sum(map(len, whole)) - tokens,
    )
    fitting = [ids for ids in kept if len(ids) <= length]
    if options.get("pack") != "concat":
        assert (counts.pieces > counts.documents) == (len(kept) > len(fitting))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_before(tmp_path: pathlib.Path, workers: int) -> None:
    source = lines(tmp_path, TEXTS)
    pack(source, tmp_path / "out", map="my_words:half", workers=workers)
    expected, places, at = [], [], 0
    for text in TEXTS:
        for _ in range(sum(text.encode()) % 3):
            expected.append([ord(letter) for letter in text])
            places.append(at)
        at += len(text) + 1
    found = documents_of(tmp_path / "out")
    assert [each.ids for each in found] == expected
    assert [each.place for each in found] == places
    split = open_manifest(str(tmp_path / "out")).splits["train"]
    assert split.dropped_records == sum(sum(text.encode()) % 3 == 0 for text in TEXTS)
    assert split.added_records == sum(sum(text.encode()) % 3 == 2 for text in TEXTS)


def test_another_tokenizer_is_another_job(tmp_path: pathlib.Path) -> None:
    source = tfrecords(tmp_path, TEXTS)
    first = pack(source, tmp_path / "out")
    assert not first.committed_before
    again = pack(source, tmp_path / "out")
    assert again.committed_before == ("train",)
    (tmp_path / "my_words.py").write_text(MODULE + "\n# Changed.\n")
    with pytest.raises(JobChangedError, match="other options") as raised:
        pack(source, tmp_path / "out")
    assert "pack.found.digest changed: the tokenizer" in str(raised.value)
    with pytest.raises(JobChangedError):
        pack(source, tmp_path / "out", length=65)
    pack(source, tmp_path / "out", length=65, overwrite=True)
    assert packed_split(tmp_path / "out").length == 65
    # Only rows that are examples have features.
    assert open_manifest(str(tmp_path / "out")).splits["train"].features is None
    plain = ConvertOptions(input=(source,), output=str(tmp_path / "out"), num_shards=3)
    with pytest.raises(JobChangedError) as raised:
        convert(**conversion_of(plain)._asdict(), workers=1)
    assert raised.value.got == "pack was given, is not"
    assert [found.ids for found in documents_of(tmp_path / "out")] == ids_of(TEXTS)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"column": "body"}, InputError, "body"),
        ({"tokenizer": None}, InputError, "text"),
        ({"tokenizer": "my_words:missing"}, InputError, "cannot import"),
        ({"tokenizer": "nothing.json"}, Exception, "nothing.json"),
        ({"bos": "<nope>"}, InputError, "<nope>"),
        ({"map": "my_words:words"}, UserFunctionError, "failed|cannot be written"),
    ],
    ids=str,
)
def test_what_cannot_be_packed_writes_nothing(
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: pathlib.Path,
) -> None:
    source = tfrecords(tmp_path, TEXTS)
    with pytest.raises(error, match=message):
        pack(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_tokens_that_are_there_already(tmp_path: pathlib.Path) -> None:
    records = [dataset.encode_example({"ids": ids}) for ids in ids_of(TEXTS)]
    (tmp_path / "in.tfrecord").write_bytes(frames_of(records))
    source = str(tmp_path / "in.tfrecord")
    pack(source, tmp_path / "out", tokenizer=None, column="ids")
    assert [found.ids for found in documents_of(tmp_path / "out")] == ids_of(TEXTS)
    assert packed_split(tmp_path / "out").counts.text_bytes == 0
    assert packed_split(tmp_path / "out").id_bytes == 4
    lists = "".join(json.dumps({"n": 1, "ids": ids}) + "\n" for ids in ids_of(TEXTS))
    (tmp_path / "in.jsonl").write_text(lists)
    small = {"tokenizer": None, "column": "ids", "vocabulary_size": 1000}
    pack(str(tmp_path / "in.jsonl"), tmp_path / "small", **small)
    assert packed_split(tmp_path / "small").id_bytes == 2
    found = [each.ids for each in documents_of(tmp_path / "small")]
    assert found == ids_of(TEXTS)


def test_damage_is_set_aside(tmp_path: pathlib.Path) -> None:
    source = tfrecords(tmp_path, TEXTS)
    path = pathlib.Path(source)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    pack(source, tmp_path / "out", on_corrupt="skip")
    found = [each.ids for each in documents_of(tmp_path / "out")]
    assert len(found) == len(TEXTS) - 1
    (lost,) = [ids for ids in ids_of(TEXTS) if ids not in found]
    assert found == [ids for ids in ids_of(TEXTS) if ids != lost]
    split = open_manifest(str(tmp_path / "out")).splits["train"]
    assert split.skipped_regions == 1


def test_a_document_on_which_the_tokenizer_fails_is_left_out(tmp_path) -> None:
    tokenizer = tmp_path / "o200k_base.tiktoken"
    tokenizer.write_bytes(published("o200k_base"))
    source = json_lines(tmp_path, ["one", "a" + " " * 1_000_000 + "b", "two"])
    asked = {"tokenizer": str(tokenizer), "eos": "none"}
    with pytest.raises(InputError, match="backtracking"):
        pack(source, tmp_path / "out", **asked)
    pack(source, tmp_path / "out", **asked, on_corrupt="skip")
    (line,) = (tmp_path / "out/errors").iterdir()
    region = json.loads(line.read_text())
    at = len(json.dumps({"n": 0, "text": "one"})) + 1
    assert (region["reason"], region["begin_bytes"]) == ("document", at)
    counts = packed_split(tmp_path / "out").counts
    assert (counts.documents, counts.empty_documents) == (2, 1)
