"""Inputs with duplicates of many formats, and which of their records are these."""

from __future__ import annotations

import gzip
import pathlib
import random
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from gristmill import dataset
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.duplicates.certificate import open_certificate
from gristmill.transforms.sources.first_records import first_records
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.line_files import csv_of, jsonl_of
from tests.support.parquet_files import write_parquet
from tests.support.records import frames_of
from tests.support.tars import tar_of

WORDS = (
    "a",
    "A  a",
    "\uff21 a\n",
    "\ufb01n",
    "FIN",
    "b\u3000b",
    "B b",
    "",
    "long " * 40,
)
Rows = list[dict[str, Any]]


def rows_of(rng: random.Random, count: int) -> Rows:
    """Returns rows with many duplicates, by text, by normalised text and whole."""
    return [
        {"text": rng.choice(WORDS) + rng.choice(["", "1", "2"]), "id": rng.randrange(3)}
        for _ in range(count)
    ]


def _examples(rows: Rows) -> bytes:
    return frames_of(dataset.encode_example(row) for row in rows)


def _tar(rows: Rows) -> bytes:
    return tar_of(
        [(f"{n:05}.text", row["text"].encode()) for n, row in enumerate(rows)]
    )


def _lines(rows: Rows) -> bytes:
    return "".join(" ".join(row["text"].split()) + "\n" for row in rows).encode()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "tfrecord": _examples,
    "tfrecord.gz": lambda rows: gzip.compress(_examples(rows)),
    "jsonl": jsonl_of,
    "csv": csv_of,
    "tar": _tar,
    "txt": _lines,
}


_NAMES = {"tfrecord.gz": "tfrecord", "tar": "webdataset", "txt": "text"}


def options_of(kind: str) -> RecordOptions:
    """Returns options that name a format: files of few rows look like others."""
    return RecordOptions(input_format=_NAMES.get(kind, kind))


def write_inputs(
    folder: pathlib.Path,
    rng: random.Random,
    kind: str,
    counts: Sequence[int] = (1, 2, 30, 200),
) -> str:
    """Writes some files; returns the pattern that matches them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(rng.randrange(1, 4)):
        rows = rows_of(rng, rng.choice(counts))
        path = folder / f"in{number}.{kind}"
        if kind == "parquet":
            size = rng.choice([3, 50, 1000])
            write_parquet(path, pa.Table.from_pylist(rows), row_group_size=size)
        else:
            path.write_bytes(FORMATS[kind](rows))
    return str(folder / f"in*.{kind}")


def text_of(record: bytes, *, whole: bool) -> bytes:
    """Returns the text of a record, or of a `tf.train.Example`."""
    if whole:
        return record
    (text,) = decode_example(record)["text"] or (b"",)
    return bytes(text)


def key_of(kind: str, record: bytes, *, whole: bool) -> bytes:
    """Returns the bytes of a record that are compared."""
    if kind == "record":
        return record
    text = text_of(record, whole=whole)
    if kind == "text":
        return text
    found = unicodedata.normalize("NFKC", text.decode()).lower()
    return " ".join(found.split()).encode()


def expected_of(files: InputFiles, kind: str) -> list[tuple[int, int, int, int]]:
    """Returns all removals, by a dict over the records of files in order."""
    numbers = {path: number for number, path in enumerate(files.paths)}
    whole = bool(files.spec.record.startswith("column:")) or files.spec.format == "text"
    first: dict[bytes, tuple[int, int]] = {}
    found = []
    for one in first_records(files):
        place = numbers[one.path], one.place
        kept = first.setdefault(key_of(kind, one.record, whole=whole), place)
        if kept != place:
            found.append((place[0], kept[0], place[1], kept[1]))
    return found


def removals_in(certificate: str | pathlib.Path) -> list[tuple[int, int, int, int]]:
    """Returns all removals of a certificate."""
    blocks = open_certificate(str(certificate)).blocks()
    return [row for block in blocks for row in block.tolist()]
