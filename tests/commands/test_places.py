"""`gristmill trace`, followed to the line of a source file."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tests.commands.conftest import json_of, run
from tests.conversion.line_files import COMPRESS, csv_of, jsonl_of, rows_of

ROWS = rows_of(60, seed=3)


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
    options = ("--num-shards", 4, "--input-format", name, "--on-corrupt", "skip")
    run("convert", folder / "in", folder / "out", *options, "--workers", 1)
    return data


@pytest.mark.parametrize("kind", ["none", "gzip"])
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_the_line_of_a_record_is_named(tmp_path, name, kind):
    data = made(tmp_path, name, kind)
    order = ("--batch-size", 10, "--shuffle", "none")
    for record in (0, 19, 20, 45, 59):
        row = (*order, "--step", record // 10, "--row", record % 10)
        found = json_of("trace", tmp_path / "out", *row)
        assert found["record"] == record
        offset = found["source_offset_bytes"]
        assert data.count(b"\n", 0, offset) + 1 == found["source_line"]
        line = data[offset:]
        if name == "jsonl":
            assert json.loads(line.split(b"\n", 1)[0])["id"] == ROWS[record]["id"]
        else:
            assert line.startswith(b"%d," % ROWS[record]["id"])
        assert found["source_note"] is None
    said = run("trace", tmp_path / "out", "--records", 0).stdout
    assert re.search(r"^ {12}line \d, byte offset ", said, re.MULTILINE)


def test_a_source_that_is_gone_or_changed_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(pathlib.Path(), "jsonl")
    assert json_of("trace", "out", "--records", 7)["source_line"] == 8
    data = (tmp_path / "in").read_bytes()
    for change in (
        lambda: (tmp_path / "in").write_bytes(data[5:] + data[:5]),
        (tmp_path / "in").unlink,
        lambda: monkeypatch.chdir("/"),
    ):
        change()
        found = json_of("trace", tmp_path / "out", "--records", 33)
        assert found["source_path"] == "in"
        assert "source_line" not in found
    assert "not found from here" in found["source_note"]


def test_an_element_of_an_array_has_the_offset_after_its_separator(tmp_path):
    rows = [json.loads(line) for line in jsonl_of(ROWS).splitlines()]
    data = json.dumps(rows, indent=1).encode()
    (tmp_path / "in").write_bytes(data)
    run("convert", tmp_path / "in", tmp_path / "out", "--workers", 1)
    text = run("trace", tmp_path / "out", "--records", 7).stdout
    (at,) = re.findall(r"element at byte offset ([\d,]+)", text)
    rest = data[int(at.replace(",", "")) :].decode().lstrip()
    assert json.JSONDecoder().raw_decode(rest)[0] == rows[7]
