"""Errors that come out of a Python or Beam call name parameters, and no options."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset import Writer, WriterOptions
from gristmill.dataset.base.errors import GristmillError
from gristmill.transforms import (
    ChatOptions,
    ConversionJob,
    ConvertFiles,
    PackOptions,
    ReadRecords,
    RecordOptions,
    WriteArrayRecords,
)
from tests.support.pipelines import run
from tests.support.records import frames_of


def job(folder: pathlib.Path, **options: Any) -> ConversionJob:
    given = {"inputs": (folder / "in",), "output": folder / "out", "name": "out"}
    return ConversionJob(**given | options)


def convert(folder: pathlib.Path, **options: Any) -> None:
    run(ConvertFiles(jobs=(job(folder, **options),)))


def pack(**options: Any) -> PackOptions:
    return PackOptions(**{"length": 8, **options})


def chat(**options: Any) -> ChatOptions:
    return ChatOptions(**{"template": "t", **options})


def read(path: pathlib.Path, split: str | None = None, **records: Any) -> None:
    run(ReadRecords(path, split=split, records=RecordOptions(**records)))


def again(folder: pathlib.Path) -> None:
    convert(folder)
    convert(folder, map="os.path:basename")


Call = Callable[[pathlib.Path], object]
CALLS: list[tuple[str, Call]] = [
    ("`on_corrupt`", lambda folder: job(folder, on_corrupt="stop")),
    ("`name`", lambda folder: job(folder, name="a/b")),
    ("`split`", lambda folder: job(folder, split="a/b")),
    ("`split`", lambda folder: WriteArrayRecords("out", split="a/b")),
    ("`input_format`", lambda _: RecordOptions(input_format="avro")),
    ("`nulls`", lambda _: RecordOptions(nulls="keep")),
    ("`record`", lambda _: RecordOptions(record="rows")),
    ("`columns`", lambda _: RecordOptions(columns=("a", "a"))),
    ("`group_size`", lambda _: WriterOptions(group_size=0)),
    ("`compression`", lambda _: WriterOptions(compression="x")),
    ("`method`", lambda _: pack(method="x")),
    ("`length`", lambda _: pack(length=1)),
    ("`rows`", lambda _: pack(rows="x")),
    ("`special_text`", lambda _: pack(special_text="x")),
    ("`accept`", lambda _: pack(accept="x")),
    ("`fast` has no effect without `tokenizer`", lambda _: pack(fast=True)),
    ("`vocabulary_size`", lambda _: pack(vocabulary_size=3, tokenizer="t.json")),
    ("`chat` without a tokenizer", lambda _: pack(chat=chat())),
    ("`train`", lambda _: chat(train="x")),
    ("`train_without`", lambda _: chat(train_without="x")),
    ("`truncate_turns`", lambda _: chat(truncate_turns="x")),
    ("`date`", lambda _: chat(date="x")),
    ("`columns`", lambda folder: read(folder / "a.csv", columns=("zz",))),
    ("`record`", lambda folder: read(folder / "a.jsonl", record="column:a")),
    ("allow_empty_files", lambda folder: read(folder / "empty")),
    ("split", lambda folder: read(folder / "data", "nope")),
    ("`select`", lambda f: convert(f, records=RecordOptions(select="a > 1"))),
    ("`split`", lambda folder: convert(folder, inputs=(f"{folder}/c-*",))),
    ("`overwrite`", again),
    ("split=NAME", lambda folder: loader.open(folder / "data", split="nope")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("calls")
    for name in ("in", "c-train.tfrecord", "c-test.tfrecord"):
        (made / name).write_bytes(frames_of([b"a", b"b"]))
    (made / "a.csv").write_text("a,b\n1,2\n")
    (made / "a.jsonl").write_text('{"a": 1}\n')
    (made / "empty").write_bytes(b"")
    with Writer(made / "data") as writer:
        writer.write(b"a")
    return made


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_it_names_a_parameter(folder: pathlib.Path, name: str, call: Call) -> None:
    with pytest.raises(GristmillError) as raised:
        call(folder)
    said = str(raised.value)
    assert name in said
    # But for those of a command that is named with them.
    assert "--" not in re.sub(r"gristmill [a-z-]+[^;,`]*", "", said)
