"""The rows of a packed shard without some of its documents.

Tokens of a removed document become padding where they were: all rows keep their
numbers, and all other tokens their places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest, words_of
from gristmill.dataset.base.errors import CorruptShardError, InputError
from gristmill.dataset.packed.counts import IN_ROWS, PackedCounts
from gristmill.dataset.packed.document_proofs import (
    ID_BYTES,
    crc32cs_of,
    document_counts,
    followed_by,
    role_counts,
    roles_of,
    span_sums,
    spans_digest,
    trained_targets,
)
from gristmill.dataset.packed.example_rows import REMOVED_PIECE
from gristmill.dataset.packed.join_documents import document_place, piece_place
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import (
    RowBatch,
    RowFormat,
    decode_rows,
    encode_rows,
)
from gristmill.dataset.packed.segment_index import SegmentIndex

Int64 = npt.NDArray[np.int64]

_CURE = "check the dataset with gristmill verify, and restore the shard from a copy"


class CutRows(NamedTuple):
    """Rows of a shard that lose documents.

    Attributes:
        rows: int64 [rows], which they are, rising.
        before: The records as they are.
        after: As they are to be.
        words: uint64 [documents], `digest.words_of` each document that is removed.
        counts: Counts of these documents: `documents`, `tokens`, `pieces`,
            `cut_documents`, those in `IN_ROWS` and the digest.
    """

    rows: Int64
    before: Sequence[bytes]
    after: Sequence[bytes]
    words: npt.NDArray[np.uint64]
    counts: PackedCounts

    def left(self, counts: PackedCounts) -> PackedCounts:
        """Returns the new counts of a shard that had `counts`."""
        gone = self.counts
        digest = counts.digest - gone.digest
        fewer = {
            name: getattr(counts, name) - getattr(gone, name)
            for name in ("documents", "tokens", "pieces", "cut_documents", *IN_ROWS)
        }
        fewer["digest_spans"] &= (1 << 64) - 1
        return dataclasses.replace(
            counts,
            **fewer,
            removed_documents=counts.removed_documents + gone.documents,
            removed_tokens=counts.removed_tokens + gone.tokens,
            digest_low=digest.low,
            digest_high=digest.high,
        )


def cut_documents(
    index: SegmentIndex,
    row_format: RowFormat,
    first_rows: Int64,
    first_pieces: Int64,
    read: Callable[[Int64], Sequence[bytes]],
    *,
    where: str,
) -> CutRows:
    """Returns the rows that some documents of a shard are in, without these.

    Args:
        index: The documents of the rows.
        row_format: How they are encoded.
        first_rows: int64 [documents], the row in which each begins.
        first_pieces: int64 [documents], which piece of that row its first one is.
        read: Reads rows, given their numbers.
        where: The shard, for messages.

    Raises:
        InputError: No document begins there, or it was removed before.
        CorruptShardError: The rows are not those of the segment index.
    """
    documents = _documents(index, first_rows, first_pieces, where)
    places = np.flatnonzero(np.isin(index.piece_documents, documents))
    rows = np.unique(np.searchsorted(index.row_ends, places, side="right"))
    later = places[index.piece_firsts[places] > 0]
    before = read(rows)
    batch = decode_rows(row_format, before)
    pieces = _pieces_of(index, rows, batch, where)
    gone = np.isin(index.piece_documents[pieces], documents)
    if (again := pieces[gone & batch.removed]).size:
        raise InputError(
            "the document was removed before",
            where=f"{where}, {piece_place(index, int(again[0]))}",
            cure="leave it out",
        )
    own, lengths, crc32cs = _joined(index, batch, pieces, gone, where)
    at = np.searchsorted(own, documents)
    words = words_of(crc32cs[at], lengths[at] * ID_BYTES)
    digest = RecordsDigest.of_words(words)
    counts = PackedCounts(
        documents=len(own),
        tokens=int(lengths.sum()),
        pieces=int(np.count_nonzero(gone)),
        cut_documents=len(np.unique(index.piece_documents[later])),
        digest_low=digest.low,
        digest_high=digest.high,
    )
    spans = batch.spans
    if spans is not None:
        counts += _supervision(index, spans, pieces, gone, (own, crc32cs, lengths))
        spans = spans.taken(~gone[spans.documents])
    firsts, tokens = batch.firsts.copy(), batch.tokens.copy()
    firsts[gone] |= np.uint32(REMOVED_PIECE)
    tokens[np.repeat(gone, batch.lengths)] = 0
    left = batch._replace(firsts=firsts, tokens=tokens, spans=spans)
    return CutRows(rows, before, encode_rows(row_format, left), words, counts)


def _supervision(
    index: SegmentIndex,
    spans: MessageSpans,
    pieces: Int64,
    gone: npt.NDArray[np.bool_],
    documents: tuple[npt.NDArray[Any], npt.NDArray[np.uint32], Int64],
) -> PackedCounts:
    """Returns the counts of the spans of documents that are removed.

    Args:
        index: The documents of the rows.
        spans: The spans of pieces.
        pieces: int64 [pieces], the places of these in the index.
        gone: bool [pieces], which of them are of these documents.
        documents: Numbers of these documents, their checksums and lengths.
    """
    own, crc32cs, lengths = documents
    lost = spans.taken(gone[spans.documents])
    at = np.searchsorted(own, index.piece_documents[pieces][gone])
    sums, roles = np.zeros(len(own), np.uint64), np.zeros(len(own), np.uint8)
    np.add.at(sums, at, span_sums(lost, index.piece_firsts[pieces])[gone])
    np.bitwise_or.at(roles, at, roles_of(lost)[gone])
    return (
        role_counts(lost)
        + document_counts(roles)
        + PackedCounts(
            trained_targets=trained_targets(lost),
            digest_spans=spans_digest(sums, crc32cs, lengths),
        )
    )


def _documents(
    index: SegmentIndex, rows: Int64, pieces: Int64, where: str
) -> npt.NDArray[Any]:
    """Returns the documents that begin with some pieces of rows."""
    begins = np.append(0, index.row_ends)[rows]
    places = begins + pieces
    bad = (pieces < 0) | (places >= index.row_ends[rows])
    bad |= index.piece_firsts[np.where(bad, 0, places)] > 0
    if (wrong := np.flatnonzero(bad)).size:
        row, piece = int(rows[wrong[0]]), int(pieces[wrong[0]])
        raise InputError(
            "no document begins there",
            where=f"{where}, row {row:,}",
            expected="the number of a piece that begins its document",
            got=f"piece {piece:,}",
            cure="give the row and the piece with which each document begins",
        )
    return index.piece_documents[places]


def _pieces_of(index: SegmentIndex, rows: Int64, batch: RowBatch, where: str) -> Int64:
    """Returns the places of the pieces of rows in the index: int64 [pieces]."""
    begins = np.append(0, index.row_ends)[rows]
    counts = index.row_ends[rows] - begins
    ends = np.cumsum(counts)
    pieces = np.repeat(begins - (ends - counts), counts) + np.arange(counts.sum())
    if not np.array_equal(ends, batch.row_ends) or not np.array_equal(
        index.piece_firsts[pieces], batch.positions
    ):
        raise CorruptShardError(
            "rows do not have the pieces that the segment index has",
            where=where,
            cure=_CURE,
        )
    return pieces


def _joined(
    index: SegmentIndex,
    batch: RowBatch,
    pieces: Int64,
    gone: npt.NDArray[np.bool_],
    where: str,
) -> tuple[npt.NDArray[Any], Int64, npt.NDArray[np.uint32]]:
    """Returns documents that are in rows as a whole: numbers, lengths and checksums."""
    documents = index.piece_documents[pieces][gone]
    firsts = batch.positions[gone].astype(np.int64)
    order = np.lexsort((firsts, documents))
    documents, firsts = documents[order], firsts[order]
    lengths = batch.lengths[gone][order].astype(np.int64)
    begins = np.append(True, documents[1:] != documents[:-1])
    expected = np.append(0, firsts + lengths)[:-1]
    expected[begins] = 0
    if (wrong := np.flatnonzero(firsts != expected)).size:
        raise CorruptShardError(
            "pieces of a document do not follow one another",
            where=f"{where}, {document_place(index, int(documents[wrong[0]]))}",
            expected=f"a piece from token {int(expected[wrong[0]]):,} on",
            got=f"from token {int(firsts[wrong[0]]):,} on",
            cure=_CURE,
        )
    starts = np.flatnonzero(begins)
    sizes = np.add.reduceat(lengths, starts)
    following = np.repeat(sizes, np.diff(starts, append=len(lengths)))
    following -= firsts + lengths
    parts = crc32cs_of(batch.tokens, batch.lengths)[gone][order]
    shares = followed_by(parts, following * ID_BYTES)
    return documents[starts], sizes, np.bitwise_xor.reduceat(shares, starts)
