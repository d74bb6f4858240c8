"""Documents joined from their pieces in rows, to check that no token is lost.

It needs the rows and the segment index alone. A document's crc32c follows from those of
its pieces in any order, so no token is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError, DecodeError
from gristmill.dataset.packed.counts import (
    IN_ROWS,
    MOST_PIECES,
    PackedCounts,
)
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
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex

RECOUNTED = (
    "documents",
    "tokens",
    "pieces",
    "padding_tokens",
    "cut_documents",
    MOST_PIECES,
    "digest_low",
    "digest_high",
    *IN_ROWS,
)
"""Fields of `PackedCounts` that rows and their segment index tell."""

_BATCH_BYTES = 1 << 20
_CURE = "restore the shard and its indexes from a copy, or pack the documents again"
_CHUNK = 1 << 16

Uint32 = npt.NDArray[np.uint32]


class JoinedDocuments(NamedTuple):
    """The documents of a shard, as found in its rows.

    Attributes:
        lengths: uint32 [documents], in tokens; 0 for a document without a row.
        crc32cs: uint32 [documents], of the ids as little-endian uint32.
        counts: Counts of the rows: the fields in `RECOUNTED`; the others are 0.
        span_sums: uint64 [documents], as `span_sums`; 0 of documents without spans.
    """

    lengths: Uint32
    crc32cs: Uint32
    counts: PackedCounts
    span_sums: npt.NDArray[np.uint64]


def join_documents(
    records: Iterable[Sequence[bytes]],
    *,
    row_format: RowFormat,
    index: SegmentIndex,
    batch_bytes: int = _BATCH_BYTES,
) -> JoinedDocuments:
    """Joins the pieces of every document of a shard.

    Memory: 19 bytes a document, 20 for each piece of a cut document, and a few times a
    batch.

    Args:
        records: The rows of the shard in their order, in batches of any size.
        row_format: The encoding of the rows.
        index: The segment index of the shard.
        batch_bytes: Size of the rows that are joined at a time.

    Returns:
        Lengths and checksums of all documents, and their totals.

    Raises:
        CorruptShardError: Rows and index contradict each other, or the pieces of a
            document do not follow one another. `where` names the row, the document and
            its place.
    """
    joiner = DocumentJoiner(row_format, index, batch_bytes=batch_bytes)
    for batch in records:
        joiner.add(batch)
    return joiner.finish()


class DocumentJoiner:
    """Joins documents while the rows of a shard come: see `join_documents`."""

    def __init__(
        self,
        row_format: RowFormat,
        index: SegmentIndex,
        *,
        batch_bytes: int = _BATCH_BYTES,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._format, self._index = row_format, index
        self._lengths = np.zeros(index.documents, np.uint32)
        self._crc32cs = np.zeros(index.documents, np.uint32)
        # Documents whose pieces do not all begin with token 0.
        self._is_cut = np.zeros(index.documents, bool)
        for begin in range(0, index.pieces, _CHUNK):
            chunk = slice(begin, begin + _CHUNK)
            later = index.piece_firsts[chunk] > 0
            self._is_cut[index.piece_documents[chunk][later]] = True
        # Places in the index, lengths and checksums of their pieces.
        none = np.zeros(0, np.uint32)
        self._cut = [(np.zeros(0, np.int64), none, none)]
        self._span_sums = np.zeros(index.documents, np.uint64)
        self._roles = np.zeros(index.documents, np.uint8)
        self._supervision = PackedCounts()
        self._rows = self._pieces = self._tokens = self._whole = 0
        # A chunk of a shard can be a single row: this many together cost much less.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def add(self, records: Sequence[bytes]) -> None:
        """Adds the next rows; after a CorruptShardError, it cannot be used again."""
        self._waiting += records
        self._waiting_bytes += sum(map(len, records))
        if self._waiting_bytes >= self._batch_bytes:
            self._join_waiting()

    def _join_waiting(self) -> None:
        records, self._waiting, self._waiting_bytes = self._waiting, [], 0
        index = self._index
        try:
            rows = decode_rows(self._format, records)
        except DecodeError as e:
            facts = e.facts() | {"where": f"row {self._rows + e.row:,}"}
            raise CorruptShardError(**facts) from e
        self._check(rows)
        begin = self._pieces
        end = begin + len(rows.lengths)
        documents = index.piece_documents[begin:end]
        crc32cs = crc32cs_of(rows.tokens, rows.lengths)
        if rows.spans is not None:
            np.add.at(self._span_sums, documents, span_sums(rows.spans, rows.firsts))
            np.bitwise_or.at(self._roles, documents, roles_of(rows.spans))
            self._supervision += role_counts(rows.spans)
            trained = trained_targets(rows.spans)
            self._supervision += PackedCounts(trained_targets=trained)
        is_cut = self._is_cut[documents]
        whole = ~is_cut
        self._lengths[documents[whole]] = rows.lengths[whole]
        self._crc32cs[documents[whole]] = crc32cs[whole]
        self._whole += int(whole.sum())
        places = begin + np.flatnonzero(is_cut)
        self._cut.append((places, rows.lengths[is_cut], crc32cs[is_cut]))
        self._rows += len(records)
        self._pieces = end
        self._tokens += len(rows.tokens)

    def _check(self, rows: RowBatch) -> None:
        """Checks that a batch has the pieces of the index."""
        index, begin = self._index, self._pieces
        expected = index.row_ends[self._rows : self._rows + len(rows.row_ends)] - begin
        if len(expected) < len(rows.row_ends):
            raise CorruptShardError(
                "there are more rows than the segment index has",
                where=f"row {index.rows:,}",
                expected=f"{index.rows:,} rows",
                got=f"{self._rows + len(rows.row_ends):,} or more",
                cure=_CURE,
            )
        wrong_rows = np.flatnonzero(expected != rows.row_ends)
        row = int(wrong_rows[0]) if wrong_rows.size else len(expected)
        before = int(expected[row - 1]) if row else 0
        firsts = index.piece_firsts[begin : begin + before]
        positions = rows.firsts[:before]
        if (wrong := np.flatnonzero(firsts != positions)).size:
            piece = int(wrong[0])
            raise CorruptShardError(
                "a piece is not the part of its document that the segment index has",
                where=piece_place(index, begin + piece),
                expected=f"from token {int(firsts[piece]):,} of the document on",
                got=f"from token {int(positions[piece]):,} on",
                cure=_CURE,
            )
        if wrong_rows.size:
            raise CorruptShardError(
                "a row does not have the pieces that the segment index has",
                where=f"row {self._rows + row:,}",
                expected=f"{int(expected[row]) - before:,} pieces",
                got=f"{int(rows.row_ends[row]) - before:,}",
                cure=_CURE,
            )

    def finish(self) -> JoinedDocuments:
        """Returns the documents after all rows; raises CorruptShardError."""
        self._join_waiting()
        index = self._index
        if self._rows < index.rows:
            raise CorruptShardError(
                "there are fewer rows than the segment index has",
                where=f"row {self._rows:,}",
                expected=f"{index.rows:,} rows",
                got=f"{self._rows:,}",
                cure=_CURE,
            )
        uncut = int(np.count_nonzero(self._lengths))
        if uncut < self._whole:
            begins = np.flatnonzero(index.piece_firsts == 0)
            documents = index.piece_documents[begins]
            order = np.argsort(documents, kind="stable")
            again = np.flatnonzero(np.diff(documents[order]) == 0)[0] + 1
            raise CorruptShardError(
                "a document is in rows twice",
                where=piece_place(index, int(begins[order[again]])),
                cure=_CURE,
            )
        cut_documents = self._join_cut()
        counts = PackedCounts(
            documents=uncut + cut_documents,
            tokens=self._tokens,
            pieces=self._pieces,
            padding_tokens=self._rows * self._format.length - self._tokens,
            cut_documents=cut_documents,
            most_pieces=int(np.diff(index.row_ends, prepend=0).max(initial=0)),
        )
        digest = digest_of(self._lengths, self._crc32cs)
        counts += self._supervision + document_counts(self._roles)
        counts += PackedCounts(
            digest_low=digest.low,
            digest_high=digest.high,
            digest_spans=spans_digest(self._span_sums, self._crc32cs, self._lengths),
        )
        return JoinedDocuments(self._lengths, self._crc32cs, counts, self._span_sums)

    def _join_cut(self) -> int:
        """Joins documents of several pieces, and returns their number."""
        index = self._index
        columns = zip(*self._cut, strict=True)
        places, lengths, crc32cs = (np.concatenate(column) for column in columns)
        self._cut.clear()
        keys = index.piece_documents[places].astype(np.uint64) << np.uint64(32)
        keys |= index.piece_firsts[places]
        order = np.argsort(keys)
        places, lengths, crc32cs = places[order], lengths[order], crc32cs[order]
        documents = index.piece_documents[places]
        firsts = index.piece_firsts[places].astype(np.int64)
        begins = np.append(True, documents[1:] != documents[:-1])[: len(documents)]
        expected = np.append(0, firsts + lengths)[:-1]
        expected[begins] = 0
        if (wrong := np.flatnonzero(firsts != expected)).size:
            at = int(wrong[0])
            raise CorruptShardError(
                "pieces of a document do not follow one another",
                where=piece_place(index, int(places[at])),
                expected=f"a piece from token {int(expected[at]):,} on",
                got=f"from token {int(firsts[at]):,} on",
                cure=_CURE,
            )
        starts = np.flatnonzero(begins)
        if not len(starts):
            return 0
        sizes = np.add.reduceat(lengths, starts, dtype=np.int64)
        counts = np.diff(starts, append=len(places))
        following = np.repeat(sizes, counts) - (firsts + lengths)
        shares = followed_by(crc32cs, following * ID_BYTES)
        self._lengths[documents[starts]] = sizes
        self._crc32cs[documents[starts]] = np.bitwise_xor.reduceat(shares, starts)
        return len(starts)


def piece_place(index: SegmentIndex, piece: int) -> str:
    """Returns the place of a piece of a shard and its document, for messages."""
    row = int(np.searchsorted(index.row_ends, piece, side="right"))
    return f"row {row:,}, {document_place(index, int(index.piece_documents[piece]))}"


def document_place(index: SegmentIndex, document: int) -> str:
    """Returns the name of a document of a shard, for messages."""
    file, place = (int(column[document]) for column in index.sources)
    return f"document {document:,} (place {place:,} of source {file:,})"


def digest_of(lengths: Uint32, crc32cs: Uint32) -> RecordsDigest:
    """Returns the digest of documents; those without a token do not count."""
    digest = RecordsDigest()
    for begin in range(0, len(lengths), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        found = lengths[chunk] > 0
        sizes = lengths[chunk][found].astype(np.int64) * ID_BYTES
        digest += RecordsDigest.of(crc32cs[chunk][found], sizes)
    return digest
