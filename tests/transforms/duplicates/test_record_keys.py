"""The bytes by which records are compared."""

from __future__ import annotations

import hashlib

import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import InputError
from gristmill.transforms.duplicates.record_keys import (
    RecordKeys,
    normalised,
    records_for,
)
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec


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


def place_of(row: int) -> str:
    return f"row {row}"


def test_digests_of_records_and_texts() -> None:
    example = dataset.encode_example({"text": "Two  words", "id": 3})
    spec = SourceSpec()
    for kind, key in (
        ("record", example),
        ("text", b"Two  words"),
        ("normalised", b"two words"),
        ("text:-", example),
    ):
        keys = RecordKeys(Comparison.parse(kind), spec)
        if kind != "text:-":
            assert [*keys.keys([example], place_of)] == [key]
            digest = keys.digests([example], place_of)
            assert digest.tobytes() == hashlib.sha256(key).digest()[:16]
    lines = RecordKeys(Comparison.parse("normalised:-"), spec)
    assert [*lines.keys([b"A  b"], place_of)] == [b"a b"]
    with pytest.raises(InputError, match="row 0"):
        RecordKeys(Comparison.parse("text:body"), spec).keys([example], place_of)


def test_a_table_gives_the_text_alone() -> None:
    by = Comparison.parse("text:body")
    table = RecordOptions(input_format="parquet")
    assert records_for(table, by).record == "column:body"
    assert records_for(table, Comparison.parse("record")) == table
    for other in (
        RecordOptions(input_format="tfrecord"),
        RecordOptions(input_format="jsonl", record="line"),
        RecordOptions(input_format="csv", columns=("body", "id")),
    ):
        assert records_for(other, by) == other
