"""Documents are not removed from packed rows: their records are, and packed again."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.removal import remove

DOCUMENTS = [[100 * n + i for i in range(n)] for n in range(1, 20)]
PACK = ("--column", "ids", "--vocabulary-size", "5000", "--length", "16")


def said(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"ids": ids}) + "\n" for ids in DOCUMENTS]
    pathlib.Path("ids.jsonl").write_text("".join(lines))
    pathlib.Path("unwanted").write_text("ids.jsonl@line:3\n")
    return tmp_path


def tokens_of(path: str) -> list[int]:
    dataset = loader.open(path)
    arrays = loader.PackedRows.of(dataset)(dataset[:])
    found = arrays["inputs"][arrays["inputs_segmentation"] > 0]
    return sorted(found.tolist())


def test_rows_of_a_dataset(folder: pathlib.Path) -> None:
    said("convert", "ids.jsonl", "records")
    said("pack", "records", "rows", *PACK)
    before = {p: p.read_bytes() for p in (folder / "rows").rglob("*") if p.is_file()}
    for named in (("--records", "unwanted"), ("--where", "n > 1")):
        message = said("remove", "rows", *named, code=2)
        assert "documents cannot be removed from packed rows" in message
        assert "gristmill remove on records" in message
        assert "--overwrite" in message
    assert {p: p.read_bytes() for p in before} == before
    said("remove", "records", "--records", "unwanted", "--erase")
    said("pack", "records", "rows", *PACK, "--overwrite")
    kept = [document for n, document in enumerate(DOCUMENTS) if n != 2]
    assert tokens_of("rows") == sorted(np.concatenate(kept).tolist())
    said("verify", "rows")


def test_rows_of_files(folder: pathlib.Path) -> None:
    said("pack", "ids.jsonl", "rows", *PACK)
    message = said("remove", "rows", "--records", "unwanted", code=2)
    assert "remove the documents from the inputs" in message
    for records in ([0], [[0, 0]]):
        with pytest.raises(InputError, match="cannot be removed from packed rows"):
            remove("rows", {"records": records}, workers=1)
    said("convert", "ids.jsonl", "records")
    with pytest.raises(InputError, match="given by their numbers"):
        remove("records", {"records": [[1, 0]]}, workers=1)
