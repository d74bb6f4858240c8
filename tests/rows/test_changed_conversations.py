"""Rows of conversations that were changed, or are of an unknown format."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import FormatVersionError
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import decode_rows
from gristmill.pipelines.verify import verify
from gristmill.transforms.tokens.row_packer import described_rows
from tests.rows.test_supervised_packer import options, packed
from tests.support.document_rows import sources_at
from tests.support.packed_shards import FORMAT, PackedShard, commit_packed
from tests.support.supervised import conversations, supervised_dataset

MADE = [conversations(30, seed=1), conversations(20, seed=2)]


def test_rows_that_are_changed_with_all_above_them(tmp_path: pathlib.Path) -> None:
    documents = [each.said for each in MADE[0]]
    given = options(length=FORMAT.length)
    packer, records = packed(tmp_path, documents, given)
    with packer:
        counts, index = packer.counts(), packer.segments()
    index = dataclasses.replace(
        index,
        sources=sources_at(range(0, 100 * index.documents, 100)),
    )
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
        output = str(tmp_path / name)
        commit_packed(output, [shard], described=described)
        found[name] = [str(each) for each in verify(output, workers=1).findings]
    assert not found.pop("whole")
    assert "got 470 trained tokens" in found["not trained"][0]
    assert "got 0 trained tokens" in found["none"][0]


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
