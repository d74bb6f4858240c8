"""`gristmill blame`: files of losses, and the list for people and as JSON."""

from __future__ import annotations

import csv
import json
import pathlib

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.support.conversion import convert, job_of
from tests.support.datasets import convert as dataset_of
from tests.support.packed_datasets import documents, pack, write_frames

ORDER = ("--batch-size", "4", "--seed", "3")


def blame(*arguments: object, status: int = 0) -> str:
    done = CliRunner().invoke(cli, ["blame", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output if status else done.stdout


@pytest.fixture(scope="module")
def spike(tmp_path_factory) -> tuple[pathlib.Path, tuple[str, int]]:
    """A packed dataset, losses of rows in which one document is high, and its place."""
    folder = tmp_path_factory.mktemp("spike")
    places = write_frames(folder / "in" / "x.tfrecord", documents(200, seed=1))
    convert(job_of(folder / "in", folder / "out"))
    pack(folder / "out", places)
    batches = loader.global_batches(loader.open(folder / "out"), batch_size=4, seed=3)
    path = str(folder / "in" / "x.tfrecord")
    wanted = next(
        piece.source_offset_bytes
        for row in range(4)
        for piece in batches.locate(90, row).pieces
        if piece.begin_token == 0 and piece.end_token == 32
    )
    rows = []
    for step in range(120):
        for row in range(4):
            found = batches.locate(step, row).pieces
            high = any(piece.source_offset_bytes == wanted for piece in found)
            rows.append((step, row, 2 + step % 3 / 10 + 5 * (high and step >= 60)))
    with open(folder / "losses.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "row", "loss", "seconds"])
        writer.writerows((*row, 0.5) for row in rows)
    with open(folder / "losses.jsonl", "w") as file:
        for step, row, loss in rows:
            fields = {"step": step, "row": row, "loss": loss}
            file.write(json.dumps(fields) + "\n")
    return folder, (path, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["losses.csv", "losses.jsonl"])
def test_documents_of_the_highest_losses_come_first(spike, name: str) -> None:
    folder, (path, place) = spike
    options = (folder / "out", *ORDER, "--losses", folder / name)
    found = json.loads(blame(*options, "--steps", "60:120", "--json"))
    assert (found["losses"], len(found["documents"])) == (240, 20)
    losses = [one["loss"] for one in found["documents"]]
    assert losses == sorted(losses, reverse=True)
    (first,) = (
        one
        for one in found["documents"]
        if (one["source_path"], one["source_offset_bytes"]) == (path, place)
    )
    assert first["loss"] > 7
    batches = loader.global_batches(loader.open(folder / "out"), batch_size=4, seed=3)
    where = batches.locate(first["step"], first["row"])
    assert first["document"] in {piece.document for piece in where.pieces}
    assert first["shard"] == where.shard
    worst = found["documents"][0]
    out = blame(*options, "--steps", "60:120", "--most", 1).splitlines()
    assert out == [
        f"   1. loss {worst['loss']}, step {worst['step']} row {worst['row']}",
        f"      document {worst['document']} of {worst['shard']}",
        f"      source   {path}",
        f"               frame at byte offset {worst['source_offset_bytes']:,}",
    ]


def test_records_of_rows_that_are_not_packed(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, [[b"a", b"b", b"c", b"d"]])
    losses = tmp_path / "losses"
    losses.write_text("step,loss\n0,2\n1,nan\n")
    options = (dataset, "--batch-size", 2, "--shuffle", "none", "--losses", losses)
    found = json.loads(blame(*options, "--steps", "0:2", "--json"))["documents"]
    assert [(one["loss"], one["step"], one["record"]) for one in found] == [
        *(("nan", 1, 2), ("nan", 1, 3), (2.0, 0, 0), (2.0, 0, 1))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", ["5", "5:5", "7:5", "a:b", "-1:4", "1:2:3", ":", "1:" + "9" * 5000]
)
def test_what_is_no_range_of_steps(spike, steps: str) -> None:
    folder, _ = spike
    options = (folder / "out", *ORDER, "--losses", folder / "losses.csv")
    out = blame(*options, f"--steps={steps}", status=2)
    assert "not a range of steps" in out


def test_an_order_that_has_no_such_rows(spike) -> None:
    folder, _ = spike
    options = ("--losses", folder / "losses.csv", "--steps", "60:120", "--most", 999)
    out = blame(folder / "out", "--batch-size", 2, *options, status=2)
    assert "row" in out
    out = blame(folder / "out", *ORDER, "--epochs", 1, *options, status=2)
    assert "there is no such step" in out
    options = ("--losses", folder / "losses.csv", "--steps", "600:601")
    out = blame(folder / "out", *ORDER, *options, status=2)
    assert "no losses of these steps" in out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step,lose\n3,2.5\n", 2),
        ("step,loss\n3,2.5\nx,1\n", 3),
        ("step,loss\n3,low\n", 2),
        ("step,loss\n,1\n", 2),
        ("step,row,loss\n3,1.5,1\n", 2),
        ('{"step": 3, "loss": 1}\n{"step": 4}\n', 2),
        ('{"step": 3, "loss": 1}\n[1]\n', 2),
        ('{"step": 3, "loss": 1}\n{\n', 2),
        ("\xff", 1),
    ],
)
def test_what_is_no_loss_is_named_by_its_line(
    spike, tmp_path: pathlib.Path, text: str, line: int
) -> None:
    folder, _ = spike
    path = tmp_path / "losses"
    path.write_text(text, encoding="latin-1")
    options = (folder / "out", *ORDER, "--losses", path, "--steps", "3:4")
    out = blame(*options, status=2)
    assert "the file of losses cannot be read" in out
    assert f"{path}, line {line}\n" in out
