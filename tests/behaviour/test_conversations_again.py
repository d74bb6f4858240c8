"""Rows of conversations that are packed again, or are changed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import FormatVersionError
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.verify import verify
from gristmill.transforms.tokens.packed_documents import described_rows
from tests.support.conversation_rows import Token, tokens_of
from tests.support.packed_shards import FORMAT, PackedShard, commit_packed
from tests.support.supervised import Conversation, conversations, supervised_dataset
from tests.transforms.tokens.test_supervised_packer import options, packed

MADE = [conversations(30, seed=1), conversations(20, seed=2)]


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def pieces(dataset: str) -> Iterator[tuple[tuple[int, ...], tuple[Token, ...]]]:
    """Yields the tokens of each piece of a dataset, and what they are."""
    opened = loader.open(dataset)
    described = PackedSplit.parse(opened.committed.packed, where=dataset)
    row_format = RowFormat(described.length, described.id_bytes, described.rows)
    batch = decode_rows(row_format, [bytes(row) for row in opened[:]])
    assert batch.spans is not None
    said = tokens_of(batch.spans, batch.lengths.tolist())
    ids = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    for own, tokens in zip(ids, said, strict=True):
        yield tuple(own.tolist()), tuple(tokens)


def as_pieces(made: list[Conversation]) -> list:
    return sorted(
        ((tuple(each.ids), tuple(each.said)) for each in made), key=lambda p: p[0]
    )


@pytest.mark.parametrize("rows", ["packed", "example"])
def test_rows_of_another_length_have_the_same_messages(
    tmp_path: pathlib.Path, rows: str
) -> None:
    first = supervised_dataset(tmp_path / "first", MADE, length=16)
    again = str(tmp_path / "again")
    out = run("repack", first, again, "--length", 256, "--rows", rows, "--json")
    assert out
    assert sorted(pieces(again), key=lambda p: p[0]) == as_pieces(MADE[0] + MADE[1])
    counts, before = (loader.open(each).packed_counts() for each in (again, first))
    assert counts is not None
    assert before is not None
    assert counts.digest_spans == before.digest_spans
    assert counts.role_trained == before.role_trained
    assert counts.role_documents == before.role_documents
    # Fewer pieces begin with a trained token, which is no target.
    assert counts.trained_targets >= before.trained_targets
    assert loader.open(again).committed.packed["format"] == 2
    result = verify(again, workers=1)
    assert not result.findings
    # What is cut off is not trained, and counted.
    short = str(tmp_path / "short")
    run("repack", again, short, "--length", 8, "--pack", "none")
    cut = [(ids[:8], said[:8]) for ids, said in as_pieces(MADE[0] + MADE[1])]
    assert sorted(pieces(short), key=str) == sorted(cut, key=str)
    lost = loader.open(short).packed_counts()
    assert lost is not None
    assert lost.tokens + lost.truncated_tokens == counts.tokens
    assert not verify(short, workers=1).findings


def test_rows_that_are_changed_with_all_above_them(tmp_path: pathlib.Path) -> None:
    documents = [each.said for each in MADE[0]]
    given = options(length=FORMAT.length)
    packer, records = packed(tmp_path, documents, given)
    with packer:
        counts, index = packer.counts(), packer.segments()
    index = dataclasses.replace(
        index,
        document_places=100 * np.arange(index.documents),
        span_documents=np.array([index.documents]),
    )
    batch = decode_rows(FORMAT, records)
    assert batch.spans is not None
    described = PackedSplit.parse(described_rows(given, counts), where="here")
    described = dataclasses.replace(described, vocabulary_size=1 << 16)
    trained = batch.spans.trained.copy()
    at = int(np.argmax(trained))
    trained[at] = False
    messages = batch.spans.messages.copy()
    messages[at] += 1
    spans = {
        "whole": batch.spans,
        "not trained": batch.spans._replace(trained=trained),
        "another message": batch.spans._replace(messages=messages),
        "none": None,
    }
    found = {}
    for name, each in spans.items():
        shard = PackedShard(batch._replace(spans=each), index, counts)
        output = str(tmp_path / name)
        commit_packed(output, [shard], described=described)
        found[name] = [str(each) for each in verify(output, workers=1).findings]
    assert not found.pop("whole")
    assert "messages are not where they were packed" in found["another message"][0]
    assert "assistant trained" in found["not trained"][0]
    assert "assistant tokens" in found["none"][0]


def test_readers_of_another_format_refuse_the_rows(tmp_path: pathlib.Path) -> None:
    path = supervised_dataset(tmp_path / "rows", MADE[:1])
    fields = json.loads((tmp_path / "rows" / "dataset.json").read_text())
    packed_fields = fields["splits"]["train"]["packed"]
    # Readers before this one know format 1 alone.
    assert packed_fields["format"] == 2
    packed_fields["format"] = 3
    (tmp_path / "rows" / "dataset.json").write_text(json.dumps(fields))
    with pytest.raises(FormatVersionError, match="packed rows"):
        loader.PackedRows.of(loader.open(path))
