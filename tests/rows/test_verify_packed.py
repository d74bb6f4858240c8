"""Verifying packed rows: no token of a document is lost, doubled or another's."""

import dataclasses
import json
import random

import numpy as np
import pytest

from gristmill.dataset import PackedCounts
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata import layout
from gristmill.dataset.packed.counts import IN_ROWS
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.text.printer import json_text, text_of
from gristmill.transforms import VerifyDataset
from tests.rows.packed_rows import batch_of, rows_of
from tests.rows.packed_shards import CHAT, commit_packed, conversations, packed_shard
from tests.support.pipelines import run

SHARD = layout.shard_name("d", "train", 1, 2)
SEGMENTS = layout.segments_path(SHARD)


def documents(seed):
    """Some are longer than rows, some are empty."""
    chance = random.Random(seed)
    lengths = [chance.choice((0, 3, 7, 11, 20, 32, 75, 140)) for _ in range(60)]
    return [([chance.randrange(1 << 16) for _ in range(n)], None) for n in lengths]


GOOD, BAD = (packed_shard(documents(n), vocabulary_size=1 << 16) for n in range(2))


def findings(output, *shards, **said):
    """Commits shards, where there are some, and verifies the dataset."""
    if shards:
        commit_packed(output, shards, **said)
    return verify(str(output), workers=1).findings


def paths(found):
    return {finding.path for finding in found}


def with_piece(rows, at, first, ids):
    return [*rows[:at], [(first, ids), *rows[at][1:]], *rows[at + 1 :]]


def shorter(rows):
    """A piece that another follows has lost its last token."""
    whole = [row[0][0] == 0 and len(row[0][1]) == 32 for row in rows]
    at = whole.index(True)
    return with_piece(rows, at, 0, rows[at][0][1][:-1])


CHANGES = {
    "the last row is there twice": lambda rows: [*rows, rows[-1]],
    "a piece is shorter": shorter,
    "a piece is later in its document": lambda rows: with_piece(
        rows, 0, rows[0][0][0] + 5, rows[0][0][1]
    ),
    "a row is lost": lambda rows: rows[:3] + rows[4:],
    "the last row is lost": lambda rows: rows[:-1],
}


def changed(change):
    return BAD._replace(rows=batch_of(CHANGES[change](rows_of(BAD.rows))))


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_are_changed_with_all_above_them(tmp_path, change):
    """Shard, index, table and dataset.json fit one another: documents do not."""
    (finding,) = findings(tmp_path, GOOD, changed(change))
    assert finding.path == SHARD
    assert "row " in finding.what
    assert finding.expected
    assert finding.expected != finding.got
    assert not verify(str(tmp_path), workers=1, quick=True).findings


def test_pieces_that_overlap_in_rows_and_index(tmp_path):
    firsts = BAD.rows.firsts.copy()
    firsts[np.argmax(firsts == 32)] = 31
    index = dataclasses.replace(BAD.index, piece_firsts=firsts)
    rows = BAD.rows._replace(firsts=firsts)
    (finding,) = findings(tmp_path, GOOD, BAD._replace(rows=rows, index=index))
    assert (finding.path, finding.got) == (SHARD, "from token 31 on")


def test_whole_rows(tmp_path):
    assert not findings(tmp_path, GOOD, BAD)
    found, quick = (verify(str(tmp_path), workers=1, quick=q) for q in (False, True))
    counts = GOOD.counts + BAD.counts
    assert found.packed == quick.packed == counts
    padding = counts.padding_tokens / (found.records * 32)
    cuts = counts.pieces - counts.documents
    for part in (
        f"targets {counts.targets:,} = tokens - {counts.pieces:,} pieces; ",
        f"; {100 * padding:.2f} % padding\n",
        f"  documents {counts.documents:,}, cut at {cuts:,} places",
        f"{counts.empty_documents} documents without a token",
    ):
        assert part in text_of(found)
    fields = json.loads(json_text(found))
    assert fields["targets"] == counts.targets == counts.tokens - counts.pieces
    assert PackedCounts.of_dict(fields["packed"] | {"other": 1}) == counts


@pytest.mark.slow
def test_through_beam(tmp_path):
    for name, shard in (("good", BAD), ("bad", changed("a row is lost"))):
        here = findings(tmp_path / name, GOOD, shard)
        (found,) = run(VerifyDataset(tmp_path / name))
        assert [*found.findings] == [*here]
        assert bool(here) == (name == "bad")
        assert found.packed.documents


def test_a_segment_index_that_is_missing_cut_or_changed(tmp_path):
    commit_packed(tmp_path, [GOOD, BAD])
    place = tmp_path / SEGMENTS
    data = place.read_bytes()
    sources = Places(BAD.index.sources.files, BAD.index.sources.places + 1)
    # Another that is whole: only the table's checksum tells.
    other = dataclasses.replace(BAD.index, sources=sources).encode()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    for content, what in (
        (other, "not the file that was written"),
        (flipped, ""),
        (data[:-1], "wrong size"),
    ):
        place.write_bytes(content)
        found = findings(tmp_path)
        assert paths(found) == {SEGMENTS}
        assert what in str(found)
    assert paths(verify(str(tmp_path), workers=1, quick=True).findings) == {SEGMENTS}
    place.unlink()
    assert [*map(str, findings(tmp_path))] == [f"{SEGMENTS}: segment index is missing"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", IN_ROWS)
def test_counts_that_are_not_those_of_the_rows(tmp_path, name):
    wrong = dataclasses.replace(BAD.counts, **{name: getattr(BAD.counts, name) + 1})
    found = findings(tmp_path, GOOD, BAD._replace(counts=wrong))
    assert found
    assert paths(found) <= {SHARD, SEGMENTS}
    assert name.replace("_", " ") in str(found) or name == "documents"


@pytest.mark.parametrize(
    ("change", "only"),
    [
        ({"counts": GOOD.counts}, True),
        ({"rows": "other"}, True),
        ({"id_bytes": 9}, True),
        ({"length": 31}, False),
        ({"id_bytes": 3}, False),
        ({"rows": "example"}, False),
    ],
)
def test_dataset_json_that_says_other_things(tmp_path, change, only):
    told = {"counts": GOOD.counts + BAD.counts} | change
    described = dataclasses.replace(GOOD.described, **told)
    found = findings(tmp_path, GOOD, BAD, described=described)
    assert paths(found) == {"dataset.json"} if only else found


def test_rows_that_dataset_json_does_not_know(tmp_path):
    commit_packed(tmp_path, [GOOD, BAD])
    place = tmp_path / "dataset.json"
    fields = json.loads(place.read_text())
    del fields["splits"]["train"]["packed"]
    place.write_text(json.dumps(fields))
    (finding,) = findings(tmp_path)
    assert finding.path == "dataset.json"
    assert "disagree about packed rows" in finding.what


def test_damage_that_leaves_rows_unread(tmp_path):
    """Documents are not joined over a gap: there is a finding for it already."""
    commit_packed(tmp_path, [GOOD, BAD])
    data = bytearray((tmp_path / SHARD).read_bytes())
    data[90:96] = b"\xff" * 6  # How many records the first chunk has.
    (tmp_path / SHARD).write_bytes(data)
    found = verify(str(tmp_path), workers=1)
    (finding,) = found.findings
    assert "cannot be decoded" in finding.what
    assert found.packed == GOOD.counts


@pytest.mark.parametrize(
    ("end", "option", "verb"), [("begun", "bos", "begin"), ("ended", "eos", "end")]
)
@pytest.mark.parametrize("lost", [0, 3])
def test_the_tokens_that_begin_and_end_documents(tmp_path, end, option, verb, lost):
    """What the options of the dataset promise, verify counts."""
    # Later pieces begin and end with these tokens, too.
    whole = [[7] * n for n in (5, 9, 13, 22, 34, 77, 142)]
    for tokens in whole[:lost]:
        tokens[0] = tokens[-1] = 9
    shard = packed_shard([(tokens, None) for tokens in whole])
    counted = {f"{end}_documents": len(whole) - lost}
    counts = dataclasses.replace(shard.counts, **counted)
    said = {f"{option}_id": 7, "counts": counts}
    described = dataclasses.replace(shard.described, **said)
    found = findings(tmp_path, shard._replace(counts=counts), described=described)
    assert len(found) == bool(lost)
    if lost:
        assert "with the token of the dataset's options" in found[0].what
    else:
        text = text_of(verify(str(tmp_path), workers=1))
        assert f"100.00 % {verb} with the token of --{option}" in text


def test_rows_of_conversations(tmp_path):
    shard = packed_shard(conversations(30, seed=1), **CHAT)
    spans = shard.rows.spans
    at, trained = int(np.argmax(spans.trained)), spans.trained.copy()
    trained[at] = False
    fewer = shard.counts.trained_tokens - spans.lengths[at]
    assert not findings(tmp_path / "whole", shard)
    for number, found in ((fewer, spans._replace(trained=trained)), (0, None)):
        changed = shard._replace(rows=shard.rows._replace(spans=found))
        (told, *_) = findings(tmp_path / f"{number}", changed)
        assert f"got {number} trained tokens" in str(told)
