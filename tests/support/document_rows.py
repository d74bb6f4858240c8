"""Documents as packed rows, made one piece after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.places import Places
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex

Piece = tuple[int, int, int]  # Document, first token, length.


def sources_at(places: Sequence[int]) -> Places:
    """Returns documents at places of one file."""
    return Places(np.zeros(len(places), np.int64), np.array(places, np.int64))


class PackedRows(NamedTuple):
    """Rows and what belongs to them."""

    row_format: RowFormat
    records: list[bytes]
    index: SegmentIndex


def packed_rows(
    documents: Sequence[Sequence[int]],
    rows: Sequence[Sequence[Piece]],
    row_format: RowFormat,
) -> PackedRows:
    """Returns rows of these pieces; document n has place 100 n, in one file."""
    pieces = [piece for row in rows for piece in row]
    owners, firsts, lengths = np.array(pieces, np.uint32).reshape(-1, 3).T
    row_ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    tokens = [
        token
        for document, first, length in pieces
        for token in documents[document][first : first + length]
    ]
    batch = RowBatch(row_ends, lengths, firsts, np.array(tokens, np.uint32))
    index = SegmentIndex(
        row_ends=row_ends,
        piece_documents=owners,
        piece_firsts=firsts,
        sources=sources_at(range(0, 100 * len(documents), 100)),
    )
    return PackedRows(row_format, encode_rows(row_format, batch), index)
