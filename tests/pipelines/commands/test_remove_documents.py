"""What commands say of documents that were removed from packed rows."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.loader.data.dataset import shards_of
from gristmill.loader.provenance.locate import locate_record
from gristmill.loader.provenance.source_fields import Piece
from gristmill.pipelines.commands.main import cli
from tests.support.packed import pack

DOCUMENTS = [[*range(1, 30)], [*range(100, 112)], [*range(200, 205)], [7, 8, 9]]
ORDER = ("--batch-size", "1", "--shuffle", "none")


def said(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents in rows of 16 tokens, of which the first was removed by its source."""
    folder = tmp_path_factory.mktemp("packed")
    output = pack(folder, [DOCUMENTS], length=16, method="concat")
    piece = first_piece(output)
    lines = folder / "lines.txt"
    lines.write_text(f"{piece.source_path}@{piece.source_offset_bytes}\n")
    text = said("remove", output, "--records", lines)
    assert "1 document removed, in 4 rows as before, committed as edition 2" in text
    assert "29 tokens, padding now" in text
    assert "these documents were removed before" in said(
        "remove", output, "--records", lines
    )
    return output


def first_piece(output: str) -> Piece:
    return locate_record(loader.open(output), 0).pieces[0]


def test_what_inspect_and_verify_count(packed):
    text = said("inspect", packed)
    assert "1 document of 29 tokens, which are padding now" in text
    assert "remove, of 1 document of edition 1" in text
    text = said("verify", packed)
    assert "places of rows 64 = tokens 20 + removed 29 + padding 15" in text
    fields = json.loads(said("verify", packed, "--json"))
    assert fields["packed"]["removed_tokens"] == 29


def test_trace_says_where_it_was(packed):
    assert "document 0 of the shard, removed: padding now" in said(
        "trace", packed, *ORDER, "--step", 0, "--row", 0
    )
    piece = first_piece(packed)
    place = f"{piece.source_path}@{piece.source_offset_bytes}"
    text = said("trace", packed, *ORDER, "--document", place)
    assert "document 0 of the shard, removed: it was" in text
    assert "step 0, row 0: epoch 0" in text
    assert "step 1, row 0: epoch 0" in text
    fields = json.loads(
        said("trace", packed, *ORDER, "--step", 1, "--row", 0, "--json")
    )
    assert [one["removed"] for one in fields["pieces"]] == [True, False]


def test_head_shows_padding(packed):
    text = said("head", packed, "-n", 2)
    assert "a document that was removed: 16 places of padding" in text
    assert "0 tokens in 1 piece" in text
    rows = [json.loads(line) for line in said("head", packed, "--json").splitlines()]
    assert rows[0]["pieces"] == [{"first": 0, "ids": [0] * 16, "removed": True}]
    assert "removed" not in rows[1]["pieces"][1]


def test_a_shard_and_the_number_of_a_document(packed, tmp_path):
    lines = tmp_path / "lines.txt"
    (shard,) = shards_of(loader.open(packed)).paths
    lines.write_text(f"{shard}@2\n{shard}@0\n{shard}@9\n")
    assert "2 lines name nothing" in said("remove", packed, "--records", lines, code=2)
    lines.write_text("3\n")
    assert "FILE@PLACE" in said("remove", packed, "--records", lines, code=2)
