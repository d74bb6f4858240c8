"""`gristmill trace`, followed to the line of a source file."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.conversion import convert, job_of
from tests.support.line_files import COMPRESS, csv_of, jsonl_of, rows_of

ROWS = rows_of(60, seed=3)
ORDER = ("--batch-size", 10, "--shuffle", "none", "--seed", 0)


def trace(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def made(folder: pathlib.Path, name: str, kind: str = "none") -> bytes:
    """Makes a dataset of rows with a bad line before each twentieth."""
    lines = jsonl_of(ROWS).splitlines(True)
    if name == "csv":
        header, _ = csv_of(ROWS[:1]).split(b"\n", 1)
        lines = [csv_of([row]).split(b"\n", 1)[1] for row in ROWS]
        lines[0] = header + b"\n" + lines[0]
    for number in (20, 40):
        lines[number] = b"bad\n\n" + lines[number]
    data = b"".join(lines)
    (folder / "in").write_bytes(COMPRESS[kind](data))
    job = job_of(
        folder / "in",
        folder / "out",
        plan=("num_shards", 4),
        records=RecordOptions(input_format=name),
        on_corrupt="skip",
        max_corrupt=2,
    )
    convert(job)
    return data


@pytest.mark.parametrize("kind", ["none", "gzip"])
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_the_line_of_a_record_is_named(tmp_path, name, kind):
    data = made(tmp_path, name, kind)
    for record in (0, 19, 20, 45, 59):
        row = ("--step", record // 10, "--row", record % 10)
        found = json.loads(trace(tmp_path / "out", *ORDER, *row, "--json"))
        assert found["record"] == record
        offset = found["source_offset_bytes"]
        assert data.count(b"\n", 0, offset) + 1 == found["source_line"]
        line = data[offset:]
        if name == "jsonl":
            assert json.loads(line.split(b"\n", 1)[0])["id"] == ROWS[record]["id"]
        else:
            assert line.startswith(b"%d," % ROWS[record]["id"])
        assert found["source_note"] is None
    out = trace(tmp_path / "out", *ORDER, "--step", 0, "--row", 0)
    assert "            line " in out
    assert ", byte offset " in out
    assert loader.open(tmp_path / "out")[:]  # The source is not needed.


def test_a_source_that_is_gone_or_changed_is_not_read(tmp_path):
    made(tmp_path, "jsonl")
    place = ("--step", 3, "--row", 3, "--json")
    assert "source_line" in trace(tmp_path / "out", *ORDER, *place)
    data = (tmp_path / "in").read_bytes()
    (tmp_path / "in").write_bytes(data[5:] + data[:5])
    found = json.loads(trace(tmp_path / "out", *ORDER, *place))
    assert "source_line" not in found
    (tmp_path / "in").unlink()
    found = json.loads(trace(tmp_path / "out", *ORDER, *place))
    assert found["source_path"] == f"{tmp_path}/in"
    assert "source_line" not in found


def test_a_relative_path_that_is_not_found_from_here_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(jsonl_of(ROWS))
    convert(job_of("in", "out", records=RecordOptions(input_format="jsonl")))
    assert json.loads(trace("out", "--records", 7, "--json"))["source_line"] == 8
    monkeypatch.chdir("/")
    found = json.loads(trace(tmp_path / "out", "--records", 7, "--json"))
    assert found["source_path"] == "in"
    assert "source_line" not in found
    assert "not found from here" in found["source_note"]


def test_an_element_of_an_array_has_the_offset_after_its_separator(tmp_path):
    rows = [json.loads(line) for line in jsonl_of(ROWS).splitlines()]
    data = json.dumps(rows, indent=1).encode()
    (tmp_path / "in").write_bytes(data)
    convert(job_of(tmp_path / "in", tmp_path / "out"))
    text = trace(tmp_path / "out", "--records", 7)
    at = int(
        text.partition("element at byte offset ")[2].split("\n")[0].replace(",", "")
    )
    rest = data[at:].decode().lstrip()
    assert json.JSONDecoder().raw_decode(rest)[0] == rows[7]
