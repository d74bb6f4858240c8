"""Committed datasets of packed rows, of shards that tests can change before.

All that stands above a shard is made to fit what was changed: its index, the table of
shards and `dataset.json`. So only a ledger of documents can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.tokens.best_fit import plan_rows
from tests.support.document_rows import sources_at

FORMAT = RowFormat(32)
PLACE_BYTES = 100  # From one document to the next.


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
    segments: Sequence[bytes] | None = None,
    described: PackedSplit | None = None,
) -> None:
    """Commits a dataset `d` of one split of these shards.

    Args:
        output: Its directory.
        shards: The shards.
        segments: Their segment indexes; by default as the shards have them.
        described: What `dataset.json` says; by default what is true.
    """
    reports = []
    for number, shard in enumerate(shards):
        path = layout.shard_name("d", "train", number, len(shards))
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
        rows = encode_rows(FORMAT, shard.rows)
        temporary = layout.temporary_dir(output, "d", "train")
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
    write = Write(output=output, name="d", split="train", id="made by a test")
    split = write_table(
        write,
        ShardTable.of(reports),
        writer_options=WriterOptions().described,
        source={"format": "tfrecord"},
    )
    split = dataclasses.replace(split, packed=described.encode())
    commit_dataset(output, "d", {write: split})


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
