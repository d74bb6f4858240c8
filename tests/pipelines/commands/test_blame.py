"""`gristmill blame`: files of losses, and the ranking for people and as JSON.

Covers: pipelines/results/losses.py, pipelines/results/suspects.py.
"""

from __future__ import annotations

import csv
import json
import pathlib

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.errors import InputError
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.results.losses import read_losses
from tests.support.conversion import convert, job_of
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


@pytest.mark.parametrize("name", ["losses.csv", "losses.jsonl"])
def test_the_document_of_a_spike(spike, name: str) -> None:
    folder, (path, place) = spike
    options = (folder / "out", *ORDER, "--losses", folder / name)
    found = json.loads(blame(*options, "--steps", "60:120", "--json"))
    assert found["baseline"] == pytest.approx(2.1)
    assert (found["losses"], found["high"]) == (240, found["documents"][0]["high"])
    first = found["documents"][0]
    assert (first["source_path"], first["source_offset_bytes"]) == (path, place)
    out = blame(*options, "--steps", "60:120", "--most", 1).splitlines()
    assert out[0] == (
        f"{found['high']} of 240 losses of these steps are high: 3 deviations or more "
        "above the baseline"
    )
    assert out[1].startswith("baseline 2.1, deviation 0.1483, of the losses of other")
    step, row = first["rows"][0]
    assert out[2].startswith(
        f"   1. score {first['score']:.1f}, high in {first['high']} of {first['seen']} "
        f"losses: step {step} row {row}, "
    )
    assert out[3:] == [
        f"      source   {path}",
        f"               frame at byte offset {place:,}",
        f"      document {first['document']} of {first['shard']}",
    ]
    assert "0 of 40 losses of these steps are high" in blame(
        *options, "--steps", "20:30"
    )


@pytest.mark.parametrize("steps", ["5", "5:5", "7:5", "a:b", "-1:4", "1:2:3", ":"])
def test_what_is_no_range_of_steps(spike, steps: str) -> None:
    folder, _ = spike
    options = (folder / "out", *ORDER, "--losses", folder / "losses.csv")
    out = blame(*options, f"--steps={steps}", status=2)
    assert "not a range of steps" in out


def test_an_order_that_has_no_such_rows(spike) -> None:
    folder, _ = spike
    options = ("--losses", folder / "losses.csv", "--steps", "60:120")
    out = blame(folder / "out", "--batch-size", 2, *options, status=2)
    assert "row of a loss is out of range" in out
    out = blame(folder / "out", *ORDER, "--epochs", 1, *options, status=2)
    assert "there is no such step" in out


def losses_in(tmp_path: pathlib.Path, text: str) -> list[tuple[float, ...]]:
    path = tmp_path / "losses"
    path.write_text(text)
    return list(
        zip(*(column.tolist() for column in read_losses(str(path))), strict=True)
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("step,loss\n3,2.5\n4,nan\n", [(3, -1, -1, -1, 2.5)]),
        ("loss, row, step\n2.5,7,3\n", [(3, 7, -1, -1, 2.5)]),
        ("step,row,token,loss\n3,7,9,2\n", [(3, 7, 9, 10, 2.0)]),
        ("step,row,token,end_token,loss\n3,7,9,30,2\n", [(3, 7, 9, 30, 2.0)]),
        ('{"step": 3, "loss": 2}\n\n{"step": 4, "loss": 1}\n', [(3, -1, -1, -1, 2.0)]),
        ('{"step": 3.0, "row": 7, "token": 9, "loss": 2}', [(3, 7, 9, 10, 2.0)]),
        ("step,loss\n", []),
        ("", []),
    ],
)
def test_columns_of_losses(tmp_path: pathlib.Path, text: str, wanted) -> None:
    assert losses_in(tmp_path, text)[:1] == wanted


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("step,lose\n3,2.5\n", 2),
        ("step,loss\n3,2.5\nx,1\n", 3),
        ("step,loss\n3,low\n", 2),
        ("step,loss\n,1\n", 2),
        ("step,token,loss\n3,4,1\n", 2),
        ("step,row,end_token,loss\n3,4,9,1\n", 2),
        ("step,row,token,end_token,loss\n3,4,9,9,1\n", 2),
        ("step,row,loss\n3,1.5,1\n", 2),
        ('{"step": 3, "loss": 1}\n{"step": 4}\n', 2),
        ('{"step": 3, "loss": 1}\n[1]\n', 2),
        ('{"step": 3, "loss": 1}\n{\n', 2),
    ],
)
def test_what_is_no_loss_is_named_by_its_line(
    tmp_path: pathlib.Path, text: str, line: int
) -> None:
    with pytest.raises(InputError, match="not a loss") as caught:
        losses_in(tmp_path, text)
    assert str(caught.value.where).endswith(f"losses, line {line}")


def test_a_file_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="file of losses cannot be read"):
        read_losses(str(tmp_path / "none"))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="file of losses cannot be read"):
        read_losses(str(tmp_path / "bytes"))
