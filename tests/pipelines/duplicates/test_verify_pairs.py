"""Pairs of a certificate read again: of all formats, and after a change of an input."""

from __future__ import annotations

import json
import pathlib
import random

import pytest
from click.testing import CliRunner, Result

from gristmill.dataset.base.errors import InvalidDatasetError, StorageChangedError
from gristmill.dataset.duplicates.certificate import open_certificate
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.duplicates.search import search
from gristmill.pipelines.duplicates.verify_pairs import verify_certificate
from gristmill.pipelines.options.conversions import ConvertOptions
from tests.support.duplicates import FORMATS, options_of, write_inputs


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def made(folder: pathlib.Path, kind: str, by: str, seed: int = 3) -> str:
    pattern = write_inputs(folder / "in", random.Random(seed), kind, [200])
    options = ConvertOptions(
        input=(pattern,),
        output=str(folder / "c"),
        input_format=options_of(kind).input_format,
    )
    search(options, by, workers=1)
    return str(folder / "c")


@pytest.mark.parametrize("by", ["record", "text", "normalised"])
@pytest.mark.parametrize("kind", [*FORMATS, "parquet"])
def test_pairs_of_all_formats_are_the_same(tmp_path, kind, by) -> None:
    path = made(tmp_path, kind, by)
    found = verify_certificate(path)
    assert found.pairs == found.removed == open_certificate(path).removed
    assert found.removed > 20 or (kind, by) == ("tar", "record")  # Keys differ.
    assert found.records == found.kept + found.removed
    assert verify_certificate(path, pairs=7).pairs == min(found.removed, 7)
    assert "byte by byte: the same" in found.text()
    assert json.loads(found.json())["pairs"] == found.pairs


def test_other_records_are_found(tmp_path: pathlib.Path) -> None:
    path = made(tmp_path, "jsonl", "text")
    source = sorted((tmp_path / "in").iterdir())[0]
    data = source.read_bytes()
    lines = data.splitlines(keepends=True)
    at = max(n for n, line in enumerate(lines) if b"A  a1" in line)
    lines[at] = lines[at].replace(b"A  a1", b"A  a9")
    source.write_bytes(b"".join(lines))
    with pytest.raises(InvalidDatasetError, match="not the same") as error:
        verify_certificate(path)
    place = sum(map(len, lines[:at]))
    assert f"{source}, byte offset {place:,}, removed for " in str(error.value.where)
    result = run("verify", "--certificate", path, "--pairs", 0)
    assert result.exit_code == 3
    assert "removed for" in result.output
    source.write_bytes(data + b" ")
    with pytest.raises(StorageChangedError, match="not the one"):
        verify_certificate(path)
    source.unlink()
    with pytest.raises(StorageChangedError, match="not the one"):
        verify_certificate(path)


def test_the_command_needs_no_runner(tmp_path: pathlib.Path) -> None:
    path = made(tmp_path, "csv", "record")
    result = run("verify", "--certificate", path)
    assert result.exit_code == 0, result.output
    assert "= " in result.output
    shown = run("verify", path, "--certificate", "--json")
    assert json.loads(shown.stdout)["by"] == "record"
    refused = run("verify", path, "--certificate", "--runner", "FnApiRunner")
    assert "leave --runner out" in refused.output
    missing = run("verify", "--certificate", tmp_path / "other")
    assert "no such certificate" in missing.output
