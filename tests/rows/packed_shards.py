"""Committed datasets of packed rows, of shards that tests can change before.

All that stands above a shard is made to fit what was changed: its index, the table of
shards and `dataset.json`. So only a ledger of documents can tell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import random
import tempfile
from collections.abc import Sequence

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.places import Places
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.row_format import (
    RowBatch,
    RowFormat,
    decode_rows,
    encode_rows,
)
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.pack_options import (
    ChatOptions,
    PackOptions,
    TokenizerSpec,
)
from gristmill.transforms.tokens.best_fit import plan_rows
from gristmill.transforms.tokens.documents import Documents, counts_of_documents
from gristmill.transforms.tokens.row_packer import RowPacker, described_rows
from gristmill.transforms.tokens.tokenizer import end_to_end
from tests.rows.conversation_rows import Said, Token, spans_of

FORMAT = RowFormat(32)
PLACE_BYTES = 100  # From one document to the next.


def sources_at(places: Sequence[int]) -> Places:
    """Returns documents at places of one file."""
    return Places(np.zeros(len(places), np.int64), np.array(places, np.int64))


@dataclasses.dataclass(frozen=True)
class PackedShard:
    """A shard that is not written yet.

    Attributes:
        rows: Its pieces and their tokens.
        index: Of which documents they are.
        counts: What is said of them.
    """

    rows: RowBatch
    index: SegmentIndex
    counts: PackedCounts


def packed_shard(documents: Sequence[Sequence[int]]) -> PackedShard:
    """Packs documents, of which some may be empty: these are in no row."""
    all_documents = len(documents)
    places = [PLACE_BYTES * at for at, tokens in enumerate(documents) if tokens]
    documents = [tokens for tokens in documents if tokens]
    lengths = np.array([len(document) for document in documents], np.uint32)
    plan = plan_rows(lengths, length=FORMAT.length, method="best-fit")
    tokens = [
        documents[document][first : first + length]
        for document, first, length in zip(*plan[1:], strict=True)
    ]
    total = int(lengths.sum())
    return PackedShard(
        RowBatch(
            plan.row_ends,
            plan.lengths,
            plan.firsts,
            np.concatenate([np.zeros(0, np.uint32), *tokens]).astype(np.uint32),
        ),
        SegmentIndex(
            row_ends=plan.row_ends,
            piece_documents=plan.documents,
            piece_firsts=plan.firsts,
            sources=sources_at(places),
        ),
        PackedCounts(
            documents=len(documents),
            empty_documents=all_documents - len(documents),
            tokens=total,
            pieces=len(plan.lengths),
            most_pieces=int(np.diff(plan.row_ends, prepend=0).max(initial=0)),
            padding_tokens=len(plan.row_ends) * FORMAT.length - total,
        ),
    )


def commit_packed(
    output: str,
    shards: Sequence[PackedShard],
    *,
    name: str = "d",
    row_format: RowFormat = FORMAT,
    segments: Sequence[bytes] | None = None,
    described: PackedSplit | None = None,
) -> None:
    """Commits a dataset of one split of these shards.

    Args:
        output: Its directory.
        shards: The shards.
        name: Of the dataset.
        row_format: How its rows are encoded.
        segments: Their segment indexes; by default as the shards have them.
        described: What `dataset.json` says; by default what is true.
    """
    reports = []
    for number, shard in enumerate(shards):
        path = layout.shard_name(name, "train", number, len(shards))
        place = ShardPlace.at(output, path, packed=True)
        documents = shard.counts.documents + shard.counts.empty_documents
        stop = PLACE_BYTES * documents
        span = SourceSpan(
            file_index=number,
            begin_bytes=0,
            end_bytes=stop,
            start_bytes=0,
            stop_bytes=stop,
            records=documents,
        )
        rows = encode_rows(row_format, shard.rows)
        temporary = layout.temporary_dir(output, name, "train")
        with storage_for(output).temporary(temporary) as local:
            with ShardWriter(local, options=WriterOptions()) as writer:
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
            data = shard.index.encode() if segments is None else segments[number]
            reports.append(place.publish(local, written, report, segments=data))
    total = sum((shard.counts for shard in shards), PackedCounts())
    if described is None:
        described = packed_split(total)
    write = Write(output=output, name=name, split="train", id="made by a test")
    split = write_table(
        write,
        ShardTable.of(reports),
        writer_options=WriterOptions().described,
        source={"format": "tfrecord"},
    )
    split = dataclasses.replace(split, packed=described.encode())
    commit_dataset(output, name, {write: split})


def packed_split(counts: PackedCounts) -> PackedSplit:
    """Returns what `dataset.json` says of such rows."""
    return PackedSplit(
        rows=FORMAT.rows,
        length=FORMAT.length,
        id_bytes=FORMAT.id_bytes,
        vocabulary_size=1 << 16,
        method="best-fit",
        counts=counts,
    )


SYSTEM, USER, ASSISTANT = 0, 2, 3
END = 2  # The token at the end of a turn.


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A conversation as tokens.

    Attributes:
        ids: The tokens.
        said: What each is.
    """

    ids: list[int]
    said: list[Token]


def conversations(
    count: int, *, seed: int, vocabulary: int = 320, most: int = 12
) -> list[Conversation]:
    """Returns conversations of one turn or several, with headers and ends of turns."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        ids: list[int] = []
        said: list[Token] = []
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
        found.append(Conversation(ids, said))
    return found


def supervised_dataset(
    output: pathlib.Path | str,
    shards: Sequence[Sequence[Conversation]],
    *,
    length: int = 64,
    vocabulary_size: int = 320,
    name: str = "d",
    told: PackedCounts | None = None,
) -> str:
    """Commits a dataset of rows of conversations; returns its directory.

    Args:
        output: The directory.
        shards: The conversations of each shard.
        length: Tokens of a row.
        vocabulary_size: Above all ids.
        name: Of the dataset.
        told: What the making of the conversations tells, of the first shard.
    """
    spec = TokenizerSpec(
        kind="ids", digest="", library="", vocabulary_size=vocabulary_size
    )
    chat = ChatOptions(template="t")
    given = PackOptions(length=length, tokenizer="t", chat=chat, found=spec)
    row_format = RowFormat(length, spec.id_bytes)
    made, total = [], PackedCounts()
    for number, shard in enumerate(shards):
        encoded = end_to_end([each.ids for each in shard])
        counts = counts_of_documents(encoded)
        if told is not None and number == 0:
            counts += told
        spans = spans_of([each.said for each in shard])
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.closing(RowPacker(given, directory=folder)) as packer,
        ):
            sources = sources_at(range(0, PLACE_BYTES * len(shard), PLACE_BYTES))
            packer.add(Documents(*encoded, counts, spans=spans), sources)
            records = [row for rows in packer.rows() for row in rows]
            index = SegmentIndex.decode(packer.segments().encode(), where=folder)
            rows = decode_rows(row_format, records)
            made.append(PackedShard(rows, index, packer.counts()))
            total += packer.counts()
    described = PackedSplit.parse(described_rows(given, total), where=str(output))
    commit_packed(
        *(str(output), made), name=name, row_format=row_format, described=described
    )
    return str(output)
