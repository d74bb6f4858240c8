"""Shards of packed rows, and committed datasets of them that tests can change before.

All that stands above a shard is made to fit what was changed: its index, the table of
shards and `dataset.json`. So only a ledger of documents can tell.
"""

import contextlib
import dataclasses
import random
import tempfile
from typing import NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset import (
    PackedCounts,
    RecordsDigest,
    ShardReport,
    ShardTable,
    SourceSpan,
    WriterOptions,
)
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.base.places import Places
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import (
    RowBatch,
    RowFormat,
    decode_rows,
    encode_rows,
)
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms import ChatOptions, PackOptions, TokenizerSpec
from gristmill.transforms.tokens.documents import Documents, counts_of_documents
from gristmill.transforms.tokens.row_packer import RowPacker, described_rows
from gristmill.transforms.tokens.tokenizer import end_to_end
from tests.rows.packed_rows import Said, spans_of

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
    """Commits a dataset of one split of these shards.

    Args:
        output: Its directory.
        shards: The shards.
        name: Of the dataset.
        described: What `dataset.json` says; by default what is true.
    """
    output, reports, writer_options = str(output), [], WriterOptions()
    temporary = layout.temporary_dir(output, name, "train")
    for number, shard in enumerate(shards):
        path = layout.shard_name(name, "train", number, len(shards))
        documents = shard.counts.documents + shard.counts.empty_documents
        span = SourceSpan(
            file_index=number,
            records=documents,
            begin_bytes=0,
            end_bytes=PLACE_BYTES * documents,
            start_bytes=0,
            stop_bytes=PLACE_BYTES * documents,
        )
        rows = encode_rows(shard.form, shard.rows)
        with storage_for(output).temporary(temporary) as local:
            with ShardWriter(local, options=writer_options) as writer:
                writer.write(rows, [google_crc32c.value(row) for row in rows])
                written = writer.finish()
            report = ShardReport(
                path=path,
                shard_index=number,
                job="made by a test",
                file_bytes=written.file_bytes,
                file_crc32c=written.file_crc32c,
                read=RecordsDigest(records=documents),
                written=written.digest,
                spans=(span,),
                packed=shard.counts,
            )
            place = ShardPlace.at(output, path, packed=True)
            segments = shard.index.encode()
            reports.append(place.publish(local, written, report, segments=segments))
    if described is None:
        total = sum((shard.counts for shard in shards), PackedCounts())
        described = dataclasses.replace(shards[0].described, counts=total)
    write = Write(output=output, name=name, split="train", id="made by a test")
    split = write_table(
        write,
        ShardTable.of(reports),
        writer_options=writer_options.described,
        source={"format": "tfrecord"},
    )
    split = dataclasses.replace(split, packed=described.encode())
    commit_dataset(output, name, {write: split})


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
