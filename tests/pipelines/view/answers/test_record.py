"""Records as the page shows them."""

from __future__ import annotations

import base64

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.answers import record as record_module
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.answers.record_fields import fields_of, longest_text
from tests.pipelines.view.conftest import FILES, png
from tests.support.examples import tf_example


def test_a_record_has_its_place_and_its_fields(opened, records) -> None:
    shard = 0
    for number, record in enumerate(records):
        while number >= sum(FILES[: shard + 1]):
            shard += 1
        found = ask(opened, f"api/record?record={number}")
        assert found["shard"] == shard
        assert found["position"] == number - sum(FILES[:shard])
        assert found["size_bytes"] == len(record)
        chunk = found["position"] // 3
        assert found["chunk_records"] == min(3, FILES[shard] - 3 * chunk)
        assert found["offset_bytes"] == opened.datasets[""].offset_bytes(number)
        fields = {field["name"]: field for field in found["fields"]}
        assert fields["id"]["shown"] == [number]
        assert fields["text"]["shown"] == ["word " * (number % 9)]
        assert fields["weights"]["shown"] == [0.5 * number, 1.0]
        head, _, data = fields["image"]["shown"][0].partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data) == png(1 + number % 5)
    with pytest.raises(InputError, match="no such record"):
        ask(opened, f"api/record?record={len(records)}")


def test_the_longest_text_is_found() -> None:
    assert longest_text("é".encode() * 1000) == "é" * 500
    assert longest_text(bytes(10)) is None
    values = {"a": [b"short"], "b": ["longer ä".encode()], "c": [png(9)], "d": [1, 2]}
    assert longest_text(tf_example(values)) == "longer ä"
    assert longest_text(tf_example({"d": [1]})) is None


def test_fields_are_cut_and_say_so() -> None:
    (field,) = fields_of(b"x" * 30_000)
    assert (field.kind, len(field.shown[0])) == ("text", 20_000)
    assert field.cut == "10,000 more characters"
    (field,) = fields_of(bytes(1000))
    assert (field.kind, field.shown) == ("bytes", [bytes(512).hex(" ")])
    assert field.cut == "488 more bytes"
    numbers, images = fields_of(
        tf_example({"a": list(range(300)), "b": [png(1) + bytes(9 << 20)]})
    )
    assert (numbers.shown, numbers.cut) == (list(range(256)), "44 more values")
    assert images.shown == [None]
    assert "too large" in str(images.cut)
    (images,) = fields_of(tf_example({"a": [png(1) + bytes(7 << 20)] * 3}))
    assert [shown is None for shown in images.shown] == [False, False, True]


def test_a_long_row_is_cut(packed: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_module, "_TOKENS_SHOWN", 20)
    segments = ask(packed, "api/record?record=0")["segments"]
    assert sum(len(one["tokens"]) for one in segments) == 20
    assert sum(one["num_tokens"] for one in segments) > 20
