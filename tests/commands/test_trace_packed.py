"""`gristmill trace` of packed rows: pieces of a row, and rows of a document."""

from __future__ import annotations

import gzip
import json
import pathlib

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from gristmill.transforms.sources.formats import RecordOptions
from tests.order.packed_datasets import (
    MAPPED,
    documents,
    packing,
    tokens_of,
    write_frames,
)
from tests.support.conversion import convert, job_of

ORDER = ("--seed", "7", "--batch-size", "4")


def trace(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    return done.output


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> pathlib.Path:
    """A packed dataset of TFRecords, behind a function."""
    folder = tmp_path_factory.mktemp("packed")
    write_frames(folder / "in" / "x.tfrecord", documents(200, seed=1))
    options = {"plan": ("num_shards", 2), "map": MAPPED, "pack": packing()}
    convert(job_of(folder / "in", folder / "out", **options))
    return folder


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> pathlib.Path:
    """A packed dataset of lines, of a plain and of a compressed file."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "in").mkdir()
    for number, name in enumerate(("a.txt", "b.txt.gz")):
        records = documents(60, seed=number, first=60 * number)
        data = b"".join(line + b"\n" for line in records)
        path = folder / "in" / name
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    text = RecordOptions(input_format="text")
    convert(job_of(folder / "in", folder / "out", records=text, pack=packing()))
    return folder


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_records_of_a_place_need_no_order(tmp_path, is_packed: bool) -> None:
    lines = documents(20, seed=3)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.txt"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    text = RecordOptions(input_format="text")
    pack = packing() if is_packed else None
    convert(job_of(tmp_path / "in", tmp_path / "out", records=text, pack=pack))
    rows = after = 0
    for number, line in enumerate(lines):
        at, after = after, after + len(line) + 1
        if is_packed and not len(tokens_of(line)):
            refused(tmp_path / "out", "--document", f"{path}@{at}")
            continue
        out = trace(tmp_path / "out", "--document", f"{path}@{at}", "--json")
        assert out == trace(
            tmp_path / "out", "--document", f"{path}@line:{number + 1}", "--json"
        )
        for found in map(json.loads, out.splitlines()):
            rows += 1
            (piece,) = found.get("pieces", [found])
            assert piece["source_path"] == str(path)
            assert piece["source_offset_bytes"] == at
            assert is_packed or found["record"] == number
    assert rows > 10
    unknown = f"{path}@{at - 1}"
    assert "no document begins there" in refused(
        tmp_path / "out", "--document", unknown
    )


def test_where_a_document_is_seen(packed: pathlib.Path) -> None:
    batches = loader.global_batches(loader.open(packed / "out"), batch_size=4, seed=7)
    place = batches.locate(3, 1).pieces[0]
    of = f"{place.source_path}@{place.source_offset_bytes}"
    epochs = ("--stop-epoch", 3)
    found = json.loads(
        trace(packed / "out", *ORDER, "--document", of, *epochs, "--json")
    )
    document = found[0]
    seen = {"epoch": 0, "step": 3, "row": 1}
    piece = next(one for one in document["pieces"] if seen in one["sightings"])
    assert len(piece["sightings"]) == 3
    text = trace(packed / "out", *ORDER, "--document", of, *epochs).splitlines()
    assert text[2].strip() == f"document {document['document']} of the shard"
    assert "            step 3, row 1: epoch 0" in text
    rows = len(batches.datasets[0])
    last = loader.global_batches(
        batches.datasets[0], batch_size=rows, shuffle="none"
    ).locate(0, rows - 1)
    end = f"{place.source_path}@{last.pieces[0].source_offset_bytes}"
    order = ("--shuffle", "none", "--batch-size", rows - 1, "--epochs", 1)
    unseen = trace(packed / "out", *order, "--document", end)
    assert "not seen in these epochs" in unseen


@pytest.mark.slow
def test_lines_by_their_numbers(lines: pathlib.Path) -> None:
    order = ("--shuffle", "none", "--batch-size", 2)
    seen = set()
    for step in range(4, 30, 3):
        fields = json.loads(
            trace(lines / "out", *order, "--step", step, "--row", 0, "--json")
        )
        for piece in fields["pieces"]:
            path, line = piece["source_path"], piece["source_line"]
            data = pathlib.Path(path).read_bytes()
            text = gzip.decompress(data) if path.endswith("gz") else data
            assert text[: piece["source_offset_bytes"]].count(b"\n") == line - 1
            seen.add(path[-3:])
            by_line = trace(lines / "out", *order, "--document", f"{path}@line:{line}")
            at = piece["source_offset_bytes"]
            assert by_line == trace(lines / "out", *order, "--document", f"{path}@{at}")
            assert f"step {step}, row 0: epoch 0" in by_line
    assert seen == {"txt", ".gz"}
    out = trace(lines / "out", *order, "--step", step, "--row", 0)
    assert f"line {line:,}, byte offset {at:,}\n" in out
    for line in (0, 10_000):
        document = ("--document", f"{lines}/in/a.txt@line:{line}")
        assert "names no place of a file" in refused(lines / "out", *order, *document)
