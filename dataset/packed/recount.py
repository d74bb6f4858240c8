"""The counts of packed rows, from the rows and their segment index alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gristmill.dataset.base.errors import CorruptShardError, DecodeError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import counts_of, trained_counts
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex

_BATCH_BYTES = 1 << 20
Ends = tuple[int | None, int | None]
"""The tokens that begin and end every document, None for none."""


class RowCounter:
    """Counts the content of the rows of a shard as they come.

    Memory: 6 bytes a piece, and some 40 at the end.

    Args:
        row_format: The encoding of the rows.
        index: The segment index of the shard.
        ends: The tokens that begin and end documents.
    """

    def __init__(
        self,
        row_format: RowFormat,
        index: SegmentIndex,
        *,
        ends: Ends = (None, None),
    ) -> None:
        self._format, self._index, self._ends = row_format, index, ends
        self._lengths = np.zeros(index.pieces, np.uint32)
        self._ended = np.zeros(index.pieces, np.bool_)
        self._counts = PackedCounts()
        self._rows = self._pieces = 0
        # A chunk of a shard can be a single row: this many together cost much less.
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def add(self, records: Sequence[bytes]) -> None:
        """Adds the next rows.

        Raises:
            CorruptShardError: Rows and index contradict each other. `where` names the
                row, the document and its place.
        """
        self._waiting += records
        self._waiting_bytes += sum(map(len, records))
        if self._waiting_bytes >= _BATCH_BYTES:
            self._count_waiting()

    def _count_waiting(self) -> None:
        records, self._waiting, self._waiting_bytes = self._waiting, [], 0
        try:
            rows = decode_rows(self._format, records)
        except DecodeError as e:
            facts = e.facts() | {"where": f"row {self._rows + e.row:,}"}
            raise CorruptShardError(**facts) from e
        self._check(rows)
        pieces = slice(self._pieces, self._pieces + len(rows.lengths))
        self._lengths[pieces] = rows.lengths
        stops = np.cumsum(rows.lengths, dtype=np.int64)
        bos, eos = self._ends
        if bos is not None:
            begun = (rows.tokens[stops - rows.lengths] == bos) & (rows.firsts == 0)
            self._counts += PackedCounts(begun_documents=int(begun.sum()))
        if eos is not None:
            self._ended[pieces] = rows.tokens[stops - 1] == eos
        if rows.spans is not None:
            self._counts += trained_counts(rows.spans)
        self._rows += len(records)
        self._pieces = pieces.stop

    def _check(self, rows: RowBatch) -> None:
        """Checks that a batch has the pieces of the index."""
        index, begin = self._index, self._pieces
        stop = self._rows + len(rows.row_ends)
        if stop > index.rows:
            self._check_rows(stop)
        expected = counts_of(index.row_ends[self._rows : stop] - begin)
        got = counts_of(rows.row_ends)
        if (wrong := np.flatnonzero(expected != got)).size:
            row = int(wrong[0])
            raise _differs(
                "a row does not have the pieces that the segment index has",
                f"row {self._rows + row:,}",
                f"{expected[row]:,} pieces",
                f"{got[row]:,}",
            )
        firsts = index.piece_firsts[begin : begin + len(rows.firsts)]
        if (wrong := np.flatnonzero(firsts != rows.firsts)).size:
            piece = int(wrong[0])
            raise _differs(
                "a piece is not the part of its document that the segment index has",
                piece_place(index, begin + piece),
                f"from token {firsts[piece]:,} of the document on",
                f"from token {rows.firsts[piece]:,} on",
            )

    def _check_rows(self, got: int) -> None:
        expected = self._index.rows
        if expected != got:
            raise _differs(
                "the segment index is of another number of rows",
                f"row {min(expected, got):,}",
                f"{expected:,} rows",
                f"{got:,} or more" if got > expected else f"{got:,}",
            )

    def finish(self) -> PackedCounts:
        """Returns the counts of `IN_ROWS`, after all rows.

        Raises:
            CorruptShardError: There are fewer rows than in the index, or the pieces of
                a document do not follow one another.
        """
        if self._waiting:
            self._count_waiting()
        index = self._index
        self._check_rows(self._rows)
        order = np.lexsort((index.piece_firsts, index.piece_documents))
        documents, lengths = index.piece_documents[order], self._lengths[order]
        firsts = index.piece_firsts[order].astype(np.int64)
        begins = np.append(True, documents[1:] != documents[:-1])[: len(order)]
        expected = np.append(0, firsts + lengths)[:-1]
        expected[begins] = 0
        if (wrong := np.flatnonzero(firsts != expected)).size:
            at = int(wrong[0])
            raise _differs(
                "pieces of a document do not follow one another",
                piece_place(index, int(order[at])),
                f"a piece from token {int(expected[at]):,} on",
                f"from token {int(firsts[at]):,} on",
            )
        last = np.append(begins[1:], True)[: len(order)]
        tokens = int(lengths.sum(dtype=np.int64))
        return self._counts + PackedCounts(
            documents=int(np.count_nonzero(begins)),
            tokens=tokens,
            pieces=len(order),
            padding_tokens=self._rows * self._format.length - tokens,
            most_pieces=int(np.diff(index.row_ends, prepend=0).max(initial=0)),
            ended_documents=int(np.count_nonzero(self._ended[order] & last)),
        )


def _differs(what: str, where: str, expected: str, got: str) -> CorruptShardError:
    cure = "restore the shard and its indexes from a copy, or pack the documents again"
    return CorruptShardError(what, where, expected, got, cure)


def piece_place(index: SegmentIndex, piece: int) -> str:
    """Returns the place of a piece of a shard and its document, for messages."""
    row = int(np.searchsorted(index.row_ends, piece, side="right"))
    document = int(index.piece_documents[piece])
    file, place = (int(column[document]) for column in index.sources)
    return f"row {row:,}, document {document:,} (place {place:,} of source {file:,})"
