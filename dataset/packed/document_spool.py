"""The documents of a packed shard in their order, with their tokens.

Rows come in order, and a document's pieces can be in any of them. So the tokens of all
rows wait in an unnamed file until the last row is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.packed.join_documents import piece_place
from gristmill.dataset.packed.message_spans import STORED, MessageSpans
from gristmill.dataset.packed.row_format import RowBatch, RowFormat
from gristmill.dataset.packed.segment_index import SegmentIndex

_BATCH_TOKENS = 1 << 18  # Handed out together, apart from a longer document.

_CURE = (
    "check the dataset with `gristmill verify`, then restore shard and segment index "
    "from a copy, or pack it again"
)

Int64 = npt.NDArray[np.int64]


class SpooledDocuments(NamedTuple):
    """Consecutive documents of a shard.

    Attributes:
        numbers: int64 [documents], their numbers in the shard.
        lengths: int64 [documents], tokens of each.
        ids: uint32 [tokens], all tokens end to end.
        spans: The spans of their messages, None if the rows have none.
    """

    numbers: Int64
    lengths: Int64
    ids: npt.NDArray[np.uint32]
    spans: MessageSpans | None = None


class DocumentSpool:
    """Joins the documents of one shard from its rows.

    Memory: about 30 bytes a piece, 12 more of conversations, and a few mebibytes. Disk:
    the tokens of the shard, and 18 bytes a span of a message.

    Args:
        segments: The documents of the rows.
        row_format: The encoding of the rows.
        where: The shard, for messages.
        batch_tokens: How many are given back together, apart from a longer document.

    Raises:
        StorageError: The directory for temporary files is missing or full.
    """

    def __init__(
        self,
        segments: SegmentIndex,
        row_format: RowFormat,
        *,
        where: str,
        batch_tokens: int = _BATCH_TOKENS,
    ):
        self._segments, self._where = segments, where
        self._batch_tokens = batch_tokens
        self._lengths = np.zeros(segments.pieces, np.uint32)
        self._starts = np.zeros(segments.pieces, np.int64)
        self._removed = np.zeros(segments.documents, bool)
        dtype = "<u2" if row_format.id_bytes == 2 else "<u4"
        self._tokens = ArraySpool(None, dtype, kept="documents")
        self._spans: ArraySpool | None = None
        self._span_starts = np.zeros(0, np.int64)
        self._span_counts = np.zeros(0, np.uint32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def removed_documents(self) -> int:
        """Removed documents of the rows that were added."""
        return int(np.count_nonzero(self._removed))

    def close(self) -> None:
        """Releases the files."""
        self._tokens.close()
        if self._spans is not None:
            self._spans.close()

    def add(self, first_row: int, rows: RowBatch) -> None:
        """Adds consecutive rows; those never added are lost.

        Args:
            first_row: Number of the first row in the shard.
            rows: The rows.

        Raises:
            CorruptShardError: They do not match the segment index.
            StorageError: The disk is full.
        """
        index = self._segments
        begin = int(index.row_ends[first_row - 1]) if first_row else 0
        expected = index.row_ends[first_row : first_row + len(rows.row_ends)] - begin
        pieces = slice(begin, begin + len(rows.lengths))
        if not np.array_equal(expected, rows.row_ends) or not np.array_equal(
            index.piece_firsts[pieces], rows.positions
        ):
            raise CorruptShardError(
                "rows do not have the pieces that the segment index has",
                where=f"{self._where}, rows {first_row:,} to "
                f"{first_row + len(rows.row_ends) - 1:,}",
                cure=_CURE,
            )
        lengths = rows.lengths.astype(np.int64)
        removed = rows.removed
        # Treated as rows that were not added: their documents are left out.
        self._lengths[pieces] = np.where(removed, 0, rows.lengths)
        self._removed[index.piece_documents[pieces][removed]] = True
        self._starts[pieces] = len(self._tokens) + np.cumsum(lengths) - lengths
        self._tokens.append(rows.tokens)
        if rows.spans is not None:
            self._add_spans(pieces, rows.spans, rows.positions)

    def _add_spans(
        self, pieces: slice, spans: MessageSpans, firsts: npt.NDArray[np.uint32]
    ) -> None:
        """Adds the spans of pieces, from the first token of their documents."""
        if self._spans is None:
            self._spans = ArraySpool(None, STORED, kept="documents")
            self._span_starts = np.zeros(self._segments.pieces, np.int64)
            self._span_counts = np.zeros(self._segments.pieces, np.uint32)
        counts = np.diff(spans.ends, prepend=0)
        self._span_starts[pieces] = len(self._spans) + spans.ends - counts
        self._span_counts[pieces] = counts
        begins = spans.begins + firsts[spans.documents]
        self._spans.append(spans._replace(begins=begins).stored())

    def batches(self) -> Iterator[SpooledDocuments]:
        """Yields the documents in their order, about a mebibyte at a time.

        These include documents without a token, but not removed documents, nor those
        with a piece in a row that was not added.

        Raises:
            CorruptShardError: Pieces of a document do not follow one another.
        """
        segments = self._segments
        keys = segments.piece_documents.astype(np.uint64) << np.uint64(32)
        keys |= segments.piece_firsts
        order = np.argsort(keys)
        del keys
        owners = segments.piece_documents[order]
        pieces = np.bincount(owners, minlength=segments.documents)
        piece_ends = np.cumsum(pieces)
        lengths, starts = self._lengths[order].astype(np.int64), self._starts[order]
        there = np.ones(segments.documents, bool)
        there[owners[lengths == 0]] = False  # No piece is empty.
        self._check(order, lengths, there)
        sums = np.concatenate(([0], np.cumsum(lengths)))
        token_ends = sums[piece_ends]
        document, documents = 0, segments.documents
        while document < documents:
            done = int(token_ends[document - 1]) if document else 0
            stop = int(np.searchsorted(token_ends, done + self._batch_tokens, "right"))
            # Empty ones count too.
            stop = min(
                max(stop, document + 1), document + self._batch_tokens, documents
            )
            numbers = document + np.flatnonzero(there[document:stop])
            own = slice(
                int(piece_ends[document - 1]) if document else 0,
                int(piece_ends[stop - 1]),
            )
            good = there[owners[own]]
            begins = starts[own][good]
            ids = self._tokens.gather(begins, begins + lengths[own][good])
            before = np.where(numbers > 0, token_ends[numbers - 1], 0)
            yield SpooledDocuments(
                numbers,
                token_ends[numbers] - before,
                ids.astype(np.uint32),
                self._spans_of(numbers, owners[own][good], order[own][good]),
            )
            document = stop

    def _spans_of(
        self, numbers: Int64, owners: npt.NDArray[np.uint32], pieces: Int64
    ) -> MessageSpans | None:
        """Returns the spans of documents.

        Args:
            numbers: int64 [documents], which documents.
            owners: uint32 [pieces], of which of them each piece is, in order.
            pieces: int64 [pieces], the pieces in the index.
        """
        if self._spans is None:
            return None
        starts, counts = self._span_starts[pieces], self._span_counts[pieces]
        stored = self._spans.gather(starts, starts + counts)
        by_piece = np.searchsorted(numbers, owners)
        totals = np.bincount(by_piece, weights=counts, minlength=len(numbers))
        ends = np.cumsum(totals.astype(np.int64))
        return MessageSpans.of_stored(ends, stored).joined()

    def _check(
        self, order: npt.NDArray[np.intp], lengths: Int64, there: npt.NDArray[np.bool_]
    ) -> None:
        """Checks that the pieces of each document follow one another, without gaps."""
        index = self._segments
        owners, firsts = index.piece_documents[order], index.piece_firsts[order]
        expected = np.append(0, firsts + lengths)[:-1]
        expected[np.append(True, owners[1:] != owners[:-1])[: len(owners)]] = 0
        if (wrong := np.flatnonzero((firsts != expected) & there[owners])).size:
            at = int(wrong[0])
            raise CorruptShardError(
                "pieces of a document do not follow one another",
                where=f"{self._where}, {piece_place(index, int(order[at]))}",
                expected=f"a piece from token {int(expected[at]):,} on",
                got=f"from token {int(firsts[at]):,} on",
                cure=_CURE,
            )
