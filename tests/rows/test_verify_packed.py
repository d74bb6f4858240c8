"""Verifying packed rows: no token of a document is lost, doubled or another's."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from collections.abc import Callable

import numpy as np
import pytest

from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.dataset.packed.counts import IN_ROWS, PackedCounts, PackedSplit
from gristmill.dataset.packed.row_format import RowBatch, decode_rows
from gristmill.pipelines.text.printer import json_text, text_of
from gristmill.pipelines.verify import verify as verify_all
from gristmill.transforms.beam.verify_dataset import VerifyDataset
from gristmill.transforms.tokens.row_packer import described_rows
from tests.rows.test_row_packer import CHAT, options, packed, said_documents
from tests.support.packed_shards import (
    FORMAT,
    PackedShard,
    commit_packed,
    conversations,
    packed_shard,
    packed_split,
    sources_at,
)
from tests.support.pipelines import run

SHARDS = 2
BAD = 1


def documents(shard: int) -> list[list[int]]:
    """Some are longer than rows, some are empty."""
    chance = random.Random(shard)
    lengths = [chance.choice((0, 3, 7, 11, 20, 32, 75, 140)) for _ in range(60)]
    return [[chance.randrange(1 << 16) for _ in range(n)] for n in lengths]


WHOLE = [packed_shard(documents(shard)) for shard in range(SHARDS)]


def verify(output: pathlib.Path, *, quick: bool = False):
    return verify_all(str(output), workers=1, quick=quick)


def without_row(shard: PackedShard, row: int) -> RowBatch:
    """Returns the rows without one of them."""
    ends, lengths, firsts, tokens = shard.rows[:4]
    counts = np.diff(ends, prepend=0)
    row_of = np.repeat(np.arange(len(ends)), counts)
    kept = row_of != row
    return RowBatch(
        np.cumsum(np.delete(counts, row)),
        lengths[kept],
        firsts[kept],
        tokens[np.repeat(kept, lengths)],
    )


def twice(shard: PackedShard) -> RowBatch:
    """Returns the rows, the last of them once more."""
    ends, lengths, firsts, tokens = shard.rows[:4]
    own = slice(int(ends[-2]), None)
    size = int(lengths[own].sum())
    return RowBatch(
        np.append(ends, ends[-1] + len(lengths[own])),
        np.append(lengths, lengths[own]),
        np.append(firsts, firsts[own]),
        np.append(tokens, tokens[-size:]),
    )


def shorter(shard: PackedShard) -> RowBatch:
    """Returns the rows; a piece that another follows has lost its last token."""
    ends, lengths, firsts, tokens = shard.rows[:4]
    whole = int(np.argmax((lengths == FORMAT.length) & (firsts == 0)))
    stop = int(lengths[: whole + 1].sum())
    less = lengths.copy()
    less[whole] -= 1
    return RowBatch(ends, less, firsts, np.delete(tokens, stop - 1))


def later(shard: PackedShard) -> RowBatch:
    """Returns the rows; a piece says that it begins later in its document."""
    firsts = shard.rows.firsts.copy()
    firsts[0] += 5
    return shard.rows._replace(firsts=firsts)


ROWS: dict[str, Callable[[PackedShard], RowBatch]] = {
    "the last row is there twice": twice,
    "a piece is shorter": shorter,
    "a piece is later": later,
    "a row is lost": lambda shard: without_row(shard, 3),
    "the last row is lost": lambda shard: without_row(shard, len(shard.rows[0]) - 1),
}


@pytest.mark.parametrize("fault", ROWS)
def test_rows_that_are_changed_with_all_above_them(tmp_path, fault: str) -> None:
    """Shard, index, table and dataset.json fit one another: documents do not."""
    shards = [*WHOLE]
    shards[BAD] = dataclasses.replace(WHOLE[BAD], rows=ROWS[fault](WHOLE[BAD]))
    commit_packed(str(tmp_path), shards)
    assert not verify(tmp_path, quick=True).findings
    found = verify(tmp_path)
    shard = layout.shard_name("d", "train", BAD, SHARDS)
    assert {finding.path for finding in found.findings} == {shard}
    (finding,) = found.findings
    assert "row " in finding.what
    assert finding.expected
    assert finding.expected != finding.got


def test_whole_rows(tmp_path) -> None:
    commit_packed(str(tmp_path), WHOLE)
    found = verify(tmp_path)
    assert not found.findings
    counts = WHOLE[0].counts + WHOLE[1].counts
    assert found.packed == verify(tmp_path, quick=True).packed == counts
    assert counts.empty_documents
    text = text_of(found)
    assert (
        f"targets {counts.tokens - counts.pieces:,} = tokens - "
        f"{counts.pieces:,} pieces; " in text
    )
    padding = counts.padding_tokens / (found.records * FORMAT.length)
    assert f"; {100 * padding:.2f} % padding\n" in text
    cuts = counts.pieces - counts.documents
    assert f"  documents {counts.documents:,}, cut at {cuts:,} places" in text
    assert f"{counts.empty_documents} documents without a token" in text
    fields = json.loads(json_text(found))
    assert fields["targets"] == counts.targets
    assert PackedCounts.of_dict(fields["packed"]) == counts


@pytest.mark.slow
def test_through_beam(tmp_path) -> None:
    shards = [*WHOLE]
    shards[BAD] = dataclasses.replace(WHOLE[BAD], rows=without_row(WHOLE[BAD], 3))
    for name, made in (("good", WHOLE), ("bad", shards)):
        commit_packed(str(tmp_path / name), made)
        (found,) = run(VerifyDataset(tmp_path / name))
        here = verify(tmp_path / name)
        assert list(found.findings) == list(here.findings)
        assert bool(found.findings) == (name == "bad")
        assert found.packed == here.packed


class TestSegmentIndex:
    """A segment index that is not the one of its shard."""

    PATH = layout.segments_path(layout.shard_name("d", "train", BAD, SHARDS))

    def test_missing_or_cut(self, tmp_path) -> None:
        commit_packed(str(tmp_path), WHOLE)
        place = tmp_path / self.PATH
        data = place.read_bytes()
        place.write_bytes(data[:-1])
        for quick in (True, False):
            found = verify(tmp_path, quick=quick).findings
            assert {finding.path for finding in found} == {self.PATH}
            assert "segment index has the wrong size" in str(found)
        place.unlink()
        for quick in (True, False):
            (finding,) = verify(tmp_path, quick=quick).findings
            assert str(finding) == f"{self.PATH}: segment index is missing"

    def test_every_byte_of_it_is_compared(self, tmp_path) -> None:
        commit_packed(str(tmp_path), WHOLE)
        place = tmp_path / self.PATH
        data = place.read_bytes()
        for at in (3, 9, 20, 70, len(data) // 2, len(data) - 1):
            place.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            found = verify(tmp_path).findings
            assert {finding.path for finding in found} == {self.PATH}

    def test_another_that_is_whole(self, tmp_path) -> None:
        """Two documents have changed places: only the table's checksum tells."""
        commit_packed(str(tmp_path), WHOLE)
        index = WHOLE[BAD].index
        places = index.sources.places.copy()
        places[-1] += 1
        sources = index.sources._replace(places=places)
        other = dataclasses.replace(index, sources=sources).encode()
        (tmp_path / self.PATH).write_bytes(other)
        (finding,) = verify(tmp_path).findings
        assert finding.path == self.PATH
        assert "not the file that was written" in finding.what

    def test_more_documents_with_all_above_it(self, tmp_path) -> None:
        index = WHOLE[BAD].index
        sources = Places.joined([index.sources, sources_at([9_000])])
        other = dataclasses.replace(index, sources=sources)
        segments = [WHOLE[0].index.encode(), other.encode()]
        commit_packed(str(tmp_path), WHOLE, segments=segments)
        found = verify(tmp_path).findings
        assert found
        assert {f.path.removeprefix("index/").partition(".seg")[0] for f in found} == {
            layout.shard_name("d", "train", BAD, SHARDS)
        }


class TestCounts:
    """Counts that are not those of the rows."""

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("name", IN_ROWS)
    def test_in_table_and_dataset_json(self, tmp_path, name: str) -> None:
        counts = WHOLE[BAD].counts
        wrong = dataclasses.replace(counts, **{name: getattr(counts, name) + 1})
        shards = [WHOLE[0], dataclasses.replace(WHOLE[BAD], counts=wrong)]
        commit_packed(str(tmp_path), shards)
        found = verify(tmp_path).findings
        assert found
        shard = layout.shard_name("d", "train", BAD, SHARDS)
        assert {finding.path for finding in found} <= {
            shard,
            layout.segments_path(shard),
        }
        assert name.replace("_", " ") in str(found) or name == "documents"

    @pytest.mark.parametrize(
        "change",
        [
            {"counts": WHOLE[0].counts},
            {"rows": "other"},
            {"id_bytes": 9},
            {"length": FORMAT.length - 1},
            {"id_bytes": 3},
            {"rows": "example"},
        ],
    )
    def test_in_dataset_json(self, tmp_path, change) -> None:
        counts = WHOLE[0].counts + WHOLE[1].counts
        described = dataclasses.replace(packed_split(counts), **change)
        commit_packed(str(tmp_path), WHOLE, described=described)
        found = verify(tmp_path).findings
        assert found
        if {*change} & {"counts"} or change in ({"rows": "other"}, {"id_bytes": 9}):
            assert [finding.path for finding in found] == ["dataset.json"]

    def test_rows_that_dataset_json_does_not_know(self, tmp_path) -> None:
        commit_packed(str(tmp_path), WHOLE)
        manifest = open_manifest(str(tmp_path))
        split = dataclasses.replace(manifest.splits["train"], packed=None)
        data = dataclasses.replace(manifest, splits={"train": split}).encode()
        (tmp_path / "dataset.json").write_bytes(data)
        (finding,) = verify(tmp_path).findings
        assert finding.path == "dataset.json"
        assert "disagree about packed rows" in finding.what
        assert read_table(str(tmp_path), split).is_packed


def test_damage_that_leaves_rows_unread(tmp_path) -> None:
    """Documents are not joined over a gap: there is a finding for it already."""
    commit_packed(str(tmp_path), WHOLE)
    shard = tmp_path / layout.shard_name("d", "train", BAD, SHARDS)
    data = bytearray(shard.read_bytes())
    data[90:96] = b"\xff" * 6  # How many records the first chunk has.
    shard.write_bytes(data)
    found = verify(tmp_path)
    (finding,) = found.findings
    assert "cannot be decoded" in finding.what
    assert found.packed == WHOLE[0].counts


@pytest.mark.parametrize("ends", [(7, None), (None, 8), (7, 8)])
def test_the_tokens_that_begin_and_end_documents(tmp_path, ends) -> None:
    """What the options of the dataset promise, verify counts."""
    bos, eos = ends
    whole = [[7, *tokens, 8] for tokens in documents(0) if tokens]
    shard = packed_shard(whole)
    counts = dataclasses.replace(
        shard.counts,
        begun_documents=len(whole) * (bos is not None),
        ended_documents=len(whole) * (eos is not None),
    )
    described = dataclasses.replace(packed_split(counts), bos_id=bos, eos_id=eos)
    made = dataclasses.replace(shard, counts=counts)
    commit_packed(str(tmp_path / "a"), [made], described=described)
    found = verify(tmp_path / "a")
    assert not found.findings
    assert ("100.00 % begin with the token of --bos" in text_of(found)) == bool(bos)
    assert ("100.00 % end with the token of --eos" in text_of(found)) == bool(eos)
    tokens = shard.rows.tokens.copy()
    tokens[np.isin(tokens, [7, 8]) & (np.arange(len(tokens)) < 200)] = 9
    less = {
        f"{name}_documents": int((tokens[places] == token).sum())
        for name, token, places in ends_at(shard, ends)
    }
    counts = dataclasses.replace(counts, **less)
    described = dataclasses.replace(described, counts=counts)
    rows = shard.rows._replace(tokens=tokens)
    made = dataclasses.replace(shard, rows=rows, counts=counts)
    commit_packed(str(tmp_path / "b"), [made], described=described)
    (finding,) = verify(tmp_path / "b").findings
    assert "with the token of the dataset's options" in finding.what


def ends_at(shard: PackedShard, ends):
    """Yields name, token and places of the first and the last tokens of documents."""
    stops = np.cumsum(shard.rows.lengths)
    starts = stops - shard.rows.lengths
    lengths = np.bincount(shard.index.piece_documents, weights=shard.rows.lengths)
    last = shard.rows.firsts + shard.rows.lengths
    is_last = last == lengths[shard.index.piece_documents]
    for name, token, places in (
        ("begun", ends[0], starts[shard.rows.firsts == 0]),
        ("ended", ends[1], stops[is_last] - 1),
    ):
        if token is not None:
            yield name, token, places


def test_rows_of_conversations(tmp_path: pathlib.Path) -> None:
    given = options(length=FORMAT.length, **CHAT)
    documents = said_documents([each.said for each in conversations(30, seed=1)])
    records, counts, index = packed([documents], tmp_path, given)
    batch = decode_rows(FORMAT, records)
    assert batch.spans is not None
    described = PackedSplit.parse(described_rows(given, counts), where="here")
    described = dataclasses.replace(described, vocabulary_size=1 << 16)
    trained = batch.spans.trained.copy()
    at = int(np.argmax(trained))
    trained[at] = False
    spans = {
        "whole": batch.spans,
        "not trained": batch.spans._replace(trained=trained),
        "none": None,
    }
    found = {}
    for name, each in spans.items():
        shard = PackedShard(batch._replace(spans=each), index, counts)
        commit_packed(str(tmp_path / name), [shard], described=described)
        found[name] = [str(each) for each in verify(tmp_path / name).findings]
    assert not found.pop("whole")
    assert "got 470 trained tokens" in found["not trained"][0]
    assert "got 0 trained tokens" in found["none"][0]
