"""Verifying packed rows: no token of a document is lost, doubled or another's."""

import dataclasses
import json
import random

import numpy as np
import pytest

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import IN_ROWS, OPTIONAL, PackedCounts
from gristmill.dataset.packed.row_format import decode_rows
from gristmill.pipelines.anywhere import verify as verify_all
from gristmill.pipelines.text.printer import json_text, text_of
from gristmill.transforms.beam.job_transforms import VerifyDataset
from gristmill.transforms.jobs.pack_options import ChatOptions
from tests.rows.packed_rows import batch_of, rows_of
from tests.rows.packed_shards import (
    FORMAT,
    PackedShard,
    commit_packed,
    conversations,
    packed_shard,
    packed_split,
    sources_at,
)
from tests.rows.test_pack import packed_documents
from tests.support.pipelines import run

SHARD = layout.shard_name("d", "train", 1, 2)
SEGMENTS = layout.segments_path(SHARD)


def documents(seed):
    """Some are longer than rows, some are empty."""
    chance = random.Random(seed)
    lengths = [chance.choice((0, 3, 7, 11, 20, 32, 75, 140)) for _ in range(60)]
    return [[chance.randrange(1 << 16) for _ in range(n)] for n in lengths]


GOOD, BAD = packed_shard(documents(0)), packed_shard(documents(1))


def verify(output, *, quick=False):
    return verify_all(str(output), workers=1, quick=quick)


def shorter(rows):
    """A piece that another follows has lost its last token."""
    at = next(
        n for n, row in enumerate(rows) if row[0][0] == 0 and len(row[0][1]) == 32
    )
    return [*rows[:at], [(0, rows[at][0][1][:-1])], *rows[at + 1 :]]


def later(rows):
    (first, ids), *others = rows[0]
    return [[(first + 5, ids), *others], *rows[1:]]


CHANGES = {
    "the last row is there twice": lambda rows: [*rows, rows[-1]],
    "a piece is shorter": shorter,
    "a piece is later in its document": later,
    "a row is lost": lambda rows: rows[:3] + rows[4:],
    "the last row is lost": lambda rows: rows[:-1],
}


def changed(change):
    return dataclasses.replace(BAD, rows=batch_of(CHANGES[change](rows_of(BAD.rows))))


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_are_changed_with_all_above_them(tmp_path, change):
    """Shard, index, table and dataset.json fit one another: documents do not."""
    commit_packed(str(tmp_path), [GOOD, changed(change)])
    assert not verify(tmp_path, quick=True).findings
    (finding,) = verify(tmp_path).findings
    assert finding.path == SHARD
    assert "row " in finding.what
    assert finding.expected
    assert finding.expected != finding.got


def test_whole_rows(tmp_path):
    commit_packed(str(tmp_path), [GOOD, BAD])
    found = verify(tmp_path)
    assert not found.findings
    counts = GOOD.counts + BAD.counts
    assert found.packed == verify(tmp_path, quick=True).packed == counts
    padding = counts.padding_tokens / (found.records * FORMAT.length)
    pieces = f"tokens - {counts.pieces:,} pieces; "
    cuts = counts.pieces - counts.documents
    for part in (
        f"targets {counts.tokens - counts.pieces:,} = {pieces}",
        f"; {100 * padding:.2f} % padding\n",
        f"  documents {counts.documents:,}, cut at {cuts:,} places",
        f"{counts.empty_documents} documents without a token",
    ):
        assert part in text_of(found)
    fields = json.loads(json_text(found))
    assert fields["targets"] == counts.tokens - counts.pieces
    assert PackedCounts.of_dict(fields["packed"] | {"other": 1}) == counts


@pytest.mark.slow
def test_through_beam(tmp_path):
    for name, shard in (("good", BAD), ("bad", changed("a row is lost"))):
        commit_packed(str(tmp_path / name), [GOOD, shard])
        (found,) = run(VerifyDataset(tmp_path / name))
        here = verify(tmp_path / name)
        assert list(found.findings) == list(here.findings)
        assert bool(found.findings) == (name == "bad")
        assert found.packed == here.packed


def test_a_segment_index_that_is_missing_cut_or_changed(tmp_path):
    commit_packed(str(tmp_path), [GOOD, BAD])
    place = tmp_path / SEGMENTS
    data = place.read_bytes()
    places = BAD.index.sources.places.copy()
    places[-1] += 1
    sources = BAD.index.sources._replace(places=places)
    # Another that is whole: only the table's checksum tells.
    other = dataclasses.replace(BAD.index, sources=sources).encode()
    ats = (3, 9, 20, 70, len(data) // 2, len(data) - 1)
    flips = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in ats]
    for content, quick, what in (
        (data[:-1], True, "wrong size"),
        (data[:-1], False, "wrong size"),
        (other, False, "not the file that was written"),
        *((flip, False, "") for flip in flips),
    ):
        place.write_bytes(content)
        found = verify(tmp_path, quick=quick).findings
        assert {finding.path for finding in found} == {SEGMENTS}
        assert what in str(found)
    place.unlink()
    for quick in (True, False):
        (finding,) = verify(tmp_path, quick=quick).findings
        assert str(finding) == f"{SEGMENTS}: segment index is missing"


def test_a_segment_index_of_more_documents_with_all_above_it(tmp_path):
    sources = Places.joined([BAD.index.sources, sources_at([9_000])])
    other = dataclasses.replace(BAD.index, sources=sources)
    segments = [GOOD.index.encode(), other.encode()]
    commit_packed(str(tmp_path), [GOOD, BAD], segments=segments)
    assert {f.path for f in verify(tmp_path).findings} in ({SHARD}, {SEGMENTS})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", IN_ROWS)
def test_counts_that_are_not_those_of_the_rows(tmp_path, name):
    wrong = dataclasses.replace(BAD.counts, **{name: getattr(BAD.counts, name) + 1})
    commit_packed(str(tmp_path), [GOOD, dataclasses.replace(BAD, counts=wrong)])
    found = verify(tmp_path).findings
    assert found
    assert {finding.path for finding in found} <= {SHARD, SEGMENTS}
    assert name.replace("_", " ") in str(found) or name == "documents"


@pytest.mark.parametrize(
    ("change", "only"),
    [
        ({"counts": GOOD.counts}, True),
        ({"rows": "other"}, True),
        ({"id_bytes": 9}, True),
        ({"length": FORMAT.length - 1}, False),
        ({"id_bytes": 3}, False),
        ({"rows": "example"}, False),
    ],
)
def test_dataset_json_that_says_other_things(tmp_path, change, only):
    whole = packed_split(GOOD.counts + BAD.counts)
    described = dataclasses.replace(whole, **change)
    commit_packed(str(tmp_path), [GOOD, BAD], described=described)
    found = [finding.path for finding in verify(tmp_path).findings]
    assert found == ["dataset.json"] if only else found


def test_rows_that_dataset_json_does_not_know(tmp_path):
    commit_packed(str(tmp_path), [GOOD, BAD])
    fields = json.loads((tmp_path / "dataset.json").read_text())
    del fields["splits"]["train"]["packed"]
    (tmp_path / "dataset.json").write_text(json.dumps(fields))
    (finding,) = verify(tmp_path).findings
    assert finding.path == "dataset.json"
    assert "disagree about packed rows" in finding.what


def test_a_table_without_counts_or_with_impossible_ones(tmp_path):
    commit_packed(str(tmp_path), [GOOD, BAD])
    split = open_manifest(str(tmp_path)).splits["train"]
    whole = read_table(str(tmp_path), split)
    assert list(whole.packed(0, 2)) == [GOOD.counts, BAD.counts]
    packed = [n for n in whole.columns if n.startswith(("packed_", "segments_"))]
    assert len(packed) > 15
    for name in packed:
        column = whole.columns[name]
        others = {n: c for n, c in whole.columns.items() if n != name}
        wrong = []
        if name.removeprefix("packed_") not in OPTIONAL:
            wrong.append((others, "lacks"))
        if column.dtype.kind == "i":
            wrong.append((others | {name: column * 0 - 1}, "impossible"))
        for columns, message in wrong:
            table = ShardTable(paths=whole.paths, columns=columns)
            with pytest.raises(InvalidDatasetError, match=f"{message}.*{name}"):
                ShardTable.decode(table.encode(), where="here")


def test_damage_that_leaves_rows_unread(tmp_path):
    """Documents are not joined over a gap: there is a finding for it already."""
    commit_packed(str(tmp_path), [GOOD, BAD])
    data = bytearray((tmp_path / SHARD).read_bytes())
    data[90:96] = b"\xff" * 6  # How many records the first chunk has.
    (tmp_path / SHARD).write_bytes(data)
    found = verify(tmp_path)
    (finding,) = found.findings
    assert "cannot be decoded" in finding.what
    assert found.packed == GOOD.counts


@pytest.mark.parametrize(("bos", "eos"), [(7, None), (None, 8), (7, 8)])
def test_the_tokens_that_begin_and_end_documents(tmp_path, bos, eos):
    """What the options of the dataset promise, verify counts."""
    # Later pieces begin and end with these tokens, too.
    sizes = [len(tokens) for tokens in documents(0) if tokens]
    whole = [[7, *([8, 7] * n)[:n], 8] for n in sizes]
    for name, lost in (("whole", 0), ("less", 3)):
        for tokens in whole[:lost]:
            tokens[0] = tokens[-1] = 9
        shard = packed_shard(whole)
        counts = dataclasses.replace(
            shard.counts,
            begun_documents=(len(whole) - lost) * (bos is not None),
            ended_documents=(len(whole) - lost) * (eos is not None),
        )
        described = dataclasses.replace(packed_split(counts), bos_id=bos, eos_id=eos)
        made = dataclasses.replace(shard, counts=counts)
        commit_packed(str(tmp_path / name), [made], described=described)
        found = verify(tmp_path / name)
        if lost:
            (finding,) = found.findings
            assert "with the token of the dataset's options" in finding.what
        else:
            assert not found.findings
            text = text_of(found)
            assert ("100.00 % begin with the token of --bos" in text) == bool(bos)
            assert ("100.00 % end with the token of --eos" in text) == bool(eos)


def test_rows_of_conversations(tmp_path):
    talks = [(each.ids, each.said) for each in conversations(30, seed=1)]
    chat = {"chat": ChatOptions(template="t"), "tokenizer": "t"}
    options = {"length": FORMAT.length, **chat}
    records, counts, index, described = packed_documents([talks], **options)
    batch = decode_rows(FORMAT, records)
    at = int(np.argmax(batch.spans.trained))
    trained = batch.spans.trained.copy()
    trained[at] = False
    fewer = counts.trained_tokens - batch.spans.lengths[at]
    for number, (spans, message) in enumerate(
        (
            (batch.spans, None),
            (batch.spans._replace(trained=trained), f"got {fewer} trained tokens"),
            (None, "got 0 trained tokens"),
        )
    ):
        shard = PackedShard(batch._replace(spans=spans), index, counts)
        commit_packed(str(tmp_path / f"{number}"), [shard], described=described)
        found = verify(tmp_path / f"{number}").findings
        assert bool(found) == (message is not None)
        assert not found or message in str(found[0])
