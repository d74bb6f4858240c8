"""Shards of packed rows, and committed datasets of them that tests can change before.

All that stands above a shard is made to fit what was changed: its index, the table of
shards and `dataset.json`. So only a ledger of documents can tell.
"""

import contextlib
import dataclasses
import pathlib
import random
import tempfile
from typing import NamedTuple
from unittest import mock

import numpy as np

from gristmill.dataset import PackedCounts, encode_example
from gristmill.dataset.base.places import Places
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import (
    RowBatch,
    RowFormat,
    decode_rows,
    encode_rows,
)
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.transforms import ChatOptions, PackOptions, TokenizerSpec
from gristmill.transforms.conversion import shard_records
from gristmill.transforms.tokens.documents import Documents, counts_of_documents
from gristmill.transforms.tokens.row_packer import RowPacker, described_rows
from gristmill.transforms.tokens.tokenizer import end_to_end
from tests.rows.packed_rows import Said, spans_of
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of

PLACE_BYTES = 100  # From one document to the next.
CHAT = {"chat": ChatOptions(template="t"), "tokenizer": "t"}


def places_of(count):
    """Returns the places of documents in one file."""
    places = PLACE_BYTES * np.arange(count)
    return Places(np.zeros(count, np.int64), places)


class PackedShard(NamedTuple):
    """A shard that is not written yet."""

    rows: RowBatch
    index: SegmentIndex
    counts: PackedCounts
    described: PackedSplit
    records: list[bytes]

    @property
    def form(self):
        packed = self.described
        return RowFormat(packed.length, packed.id_bytes, packed.rows)


def packed_shard(*parts, vocabulary_size=60_000, **options):
    """Packs documents that are added in parts.

    A document is its tokens, and what each of them is (None, but in conversations).
    """
    spec = TokenizerSpec(
        kind="ids", digest="", library="", vocabulary_size=vocabulary_size
    )
    given = PackOptions(found=spec, **{"length": 32} | options)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(RowPacker(given, directory=folder)) as packer,
    ):
        for part in parts:
            encoded = end_to_end([ids for ids, _ in part])
            spans = spans_of([said for _, said in part]) if given.chat else None
            documents = Documents(*encoded, counts_of_documents(encoded), spans=spans)
            packer.add(documents, places_of(len(part)))
        records = [row for rows in packer.rows() for row in rows]
        index = SegmentIndex.decode(packer.segments().encode(), where=folder)
        counts = packer.counts()
    described = PackedSplit.parse(described_rows(given, counts), where=folder)
    made = PackedShard(None, index, counts, described, records)
    return made._replace(rows=decode_rows(made.form, records))


def commit_packed(output, shards, *, name="d", described=None):
    """Commits a dataset of one split of these shards: the packer of its job gives them.

    Args:
        output: Its directory; its inputs are beside it.
        shards: The shards.
        name: Of the dataset.
        described: What `dataset.json` says; by default what is true.
    """
    inputs = pathlib.Path(f"{output}-in")
    inputs.mkdir(parents=True)
    packers = []
    for number, shard in enumerate(shards):
        documents = shard.counts.documents + shard.counts.empty_documents
        records = [encode_example({"ids": [1]})] * documents
        (inputs / f"{number}.tfrecord").write_bytes(frames_of(records))
        packer = mock.Mock()
        packer.rows.return_value = [encode_rows(shard.form, shard.rows)]
        packer.segments.return_value = shard.index
        packer.counts.return_value = shard.counts
        packers.append(packer)
    packed = shards[0].described
    sizes = {"length": packed.length, "vocabulary_size": packed.vocabulary_size}
    pack = PackOptions(column="ids", **sizes)
    job = job_of(inputs, output, name=name, plan=("match_shards", None), pack=pack)
    with mock.patch.object(shard_records, "RowPacker", side_effect=packers):
        manifest = convert(job).manifest
    if described is not None:
        split = manifest.splits["train"]
        split = dataclasses.replace(split, packed=described.encode())
        changed = dataclasses.replace(manifest, splits={"train": split}).encode()
        pathlib.Path(output, "dataset.json").write_bytes(changed)


SYSTEM, USER, ASSISTANT = 0, 2, 3
END = 2  # The token at the end of a turn.


def conversations(count, *, seed, vocabulary=320, most=12):
    """Returns conversations of one turn or several, with headers and ends of turns.

    Each is its tokens, and what each of them is.
    """
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        ids, said = [], []
        roles = [SYSTEM] * (chance.random() < 0.3)
        roles += [USER, ASSISTANT] * chance.randint(1, 3)
        for message, role in enumerate(roles):
            content = chance.randint(1, most)
            ids += [3 + role, 9]  # A header.
            said += [None, None]
            ids += [chance.randrange(10, vocabulary) for _ in range(content)]
            trained = role == ASSISTANT
            said += [Said(role, message, trained, 1.0)] * (content + trained)
            ids.append(END)
            said += [None] * (not trained)
        found.append((ids, said))
    return found


def supervised_dataset(output, shards, *, length=64, vocabulary_size=320, name="d"):
    """Commits a dataset of rows of conversations, given by shard; returns its place."""
    options = {"length": length, "vocabulary_size": vocabulary_size, **CHAT}
    commit_packed(output, [packed_shard(each, **options) for each in shards], name=name)
    return str(output)
