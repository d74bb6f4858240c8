"""Packed rows traced to every kind of source: there is the text of their tokens."""

from __future__ import annotations

import gzip
import json
import pathlib
import random
import sys
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from gristmill import dataset, loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.loader.provenance.trace import Piece, SourcePlace
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions, PackingOptions
from gristmill.pipelines.text.places import located
from tests.support.records import frames_of, read_array_records

MODULE = """
import re

def letters(texts):
    return [[ord(letter) for letter in text] for text in texts]

letters.vocabulary_size = 1000

def half(record):
    number = int(re.search(rb"([0-9]+):", record)[1])
    return [] if number % 3 == 0 else [record] * (1 + (number % 5 == 0))
"""
LENGTH = 64
_rng = random.Random(0)
TEXTS = [
    f"{number}:" + "".join(_rng.choices("abcdefgh ", k=int(_rng.lognormvariate(3, 1))))
    for number in range(240)
]


@pytest.fixture(autouse=True)
def module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_letters.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_letters", raising=False)


def example(text: str) -> bytes:
    return dataset.encode_example({"text": text})


def text_of(record: bytes) -> str:
    return decode_example(record)["text"][0].decode()


def frames(folder: pathlib.Path) -> str:
    (folder / "in.tfrecord").write_bytes(frames_of(list(map(example, TEXTS))))
    return str(folder / "in.tfrecord")


def json_lines(folder: pathlib.Path) -> str:
    lines = (json.dumps({"n": i, "text": text}) for i, text in enumerate(TEXTS))
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "in.jsonl")


def compressed_csv(folder: pathlib.Path) -> str:
    text = "text,n\n" + "".join(f'"{text}",1\n' for text in TEXTS)
    (folder / "in.csv.gz").write_bytes(gzip.compress(text.encode()))
    return str(folder / "in.csv.gz")


def parquet(folder: pathlib.Path) -> str:
    import pyarrow
    import pyarrow.parquet

    path = str(folder / "in.parquet")
    table = pyarrow.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    return path


def samples(folder: pathlib.Path) -> str:
    path = folder / "in.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, text in enumerate(TEXTS):
            member = folder / "member"
            member.write_text(text)
            tar.add(member, f"{number:04d}.text")
    return str(path)


def committed(folder: pathlib.Path) -> str:
    """A dataset of TFRecords: `trace` goes on to these."""
    convert_to(frames(folder), folder / "between")
    return str(folder / "between")


def convert_to(source: str, output: pathlib.Path) -> None:
    found = ConvertOptions(input=(source,), output=str(output), num_shards=3)
    convert(**conversion_of(found)._asdict(), workers=1)


def read_at(place: SourcePlace) -> str:
    """Reads the text at a place of a source, without gristmill where that is easy."""
    assert place.source_path is not None
    path, at = pathlib.Path(place.source_path), place.source_offset_bytes
    if place.source_format == "parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        return str(table["text"][place.source_record].as_py())
    if place.source_format == "arrayrecord":
        return text_of(read_array_records(path)[place.source_record or 0])
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    assert at is not None, place.source_note
    data = data[at:]
    if place.source_format == "tfrecord":
        return text_of(data[12 : 12 + int.from_bytes(data[:8], "little")])
    if place.source_format == "webdataset":
        assert data.startswith(f"{place.source_sample}.text\0".encode())
        return data[512 : 512 + int(data[124:135], 8)].decode()
    line = data.partition(b"\n")[0].decode()
    if place.source_format == "csv":
        return line.rpartition(",")[0].strip('"')
    return str(json.loads(line)["text"])


def pack(source: str, output: pathlib.Path, **options: Any) -> loader.GlobalBatches:
    given = {"tokenizer": "my_letters:letters", "length": LENGTH, "num_shards": 3}
    found = PackingOptions(input=(source,), output=str(output), **given | options)
    convert(**conversion_of(found)._asdict(), workers=1)
    return loader.global_batches(
        loader.open(output), batch_size=1, shuffle="none", epochs=1
    )


def check(batches: loader.GlobalBatches, *, rows: str = "packed") -> list[Piece]:
    """Follows every piece to its source, and back; returns all pieces."""
    found = []
    assert batches.steps is not None
    for step in range(batches.steps):
        batch = decode_rows(RowFormat(LENGTH, 2, rows), batches.read(step))
        pieces = batches.locate(step, 0).pieces
        assert [piece.end_token - piece.begin_token for piece in pieces] == (
            batch.lengths.tolist()
        )
        for piece in pieces:
            tokens = batch.tokens[piece.begin_token : piece.end_token].tolist()
            text = read_at(piece)[piece.first_token :][: len(tokens)]
            assert [ord(letter) for letter in text] == tokens
            place = piece.source_offset_bytes
            place = piece.source_record if place is None else place
            documents = batches.find_document(str(piece.source_path), place)
            seen = [
                (one.document, part.begin_token)
                for one in documents
                for part in one.pieces
                if part.record == step
            ]
            assert (piece.document, piece.begin_token) in seen
        found += pieces
    return found


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (frames, {"map": "my_letters:half"}),
        (frames, {"rows": "example"}),
        (json_lines, {"pack": "concat"}),
        (json_lines, {"map": "my_letters:half"}),
        (compressed_csv, {}),
        (parquet, {"map": "my_letters:half"}),
        (samples, {}),
        (committed, {"map": "my_letters:half"}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or "-".join(value),
)
def test_there_is_the_text_of_the_tokens(
    make: Callable[[pathlib.Path], str], options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    batches = pack(make(tmp_path), tmp_path / "out", **options)
    pieces = check(batches, rows=options.get("rows", "packed"))
    assert len({read_at(piece) for piece in pieces}) >= 150


@pytest.mark.slow
def test_rows_of_parquet_by_row_group_and_lines_by_number(
    tmp_path: pathlib.Path,
) -> None:
    for make in (parquet, json_lines, compressed_csv):
        batches = pack(make(tmp_path), tmp_path / make.__name__)
        for step in range(0, batches.steps or 0, 7):
            location = batches.locate(step, 0)
            found = located(location, batches.datasets)["pieces"]
            for piece, told in zip(location.pieces, found, strict=True):
                number = int(read_at(piece).partition(":")[0])
                if make is parquet:
                    group = told["source_row_group"], told["source_row_in_group"]
                    assert group == divmod(number, 50)
                else:
                    first = 2 if make is compressed_csv else 1
                    assert told["source_line"] == number + first


@pytest.mark.slow
def test_files_of_one_name(tmp_path: pathlib.Path) -> None:
    first = pathlib.Path(frames(tmp_path))
    (tmp_path / "more").mkdir()
    more = tmp_path / "more" / first.name
    more.write_bytes(frames_of([example(f"{n}: more") for n in range(500, 600)]))
    batches = pack(f"{tmp_path}/**/{first.name}", tmp_path / "out")
    paths = {piece.source_path for piece in check(batches)}
    assert paths == {str(first), str(more)}
    with pytest.raises(InputError, match="no rows were made of such a file") as caught:
        batches.find_document(f"elsewhere/{first.name}", 0)
    assert str(caught.value.expected) == f"{first}, {more}"
