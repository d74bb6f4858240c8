"""Packed rows as lists of pieces, to compare arrays with."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gristmill.dataset.packed.row_format import MAX_POSITIONS, RowBatch

# A piece is the position of its first token, and its tokens.
Piece = tuple[int, list[int]]


def batch_of(rows: list[list[Piece]]) -> RowBatch:
    pieces = [piece for row in rows for piece in row]
    return RowBatch(
        np.cumsum([len(row) for row in rows], dtype=np.int64),
        np.array([len(ids) for _, ids in pieces], np.uint32),
        np.array([first for first, _ in pieces], np.uint32),
        np.array([token for _, ids in pieces for token in ids], np.uint32),
    )


def rows_of(batch: RowBatch) -> list[list[Piece]]:
    """Takes a batch apart again, token by token."""
    rows, piece, at = [], 0, 0
    for end in batch.row_ends.tolist():
        row = []
        while piece < end:
            count = int(batch.lengths[piece])
            row.append(
                (int(batch.firsts[piece]), batch.tokens[at : at + count].tolist())
            )
            piece, at = piece + 1, at + count
        rows.append(row)
    return rows


@st.composite
def some_rows(draw: st.DrawFn, length: int, id_bytes: int) -> list[list[Piece]]:
    ids = st.integers(0, (1 << 8 * id_bytes) - 1)
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        row, left = [], length
        while left and (not row or draw(st.booleans())):
            piece = draw(st.lists(ids, min_size=1, max_size=left))
            most = MAX_POSITIONS - len(piece)
            first = draw(st.one_of(st.just(0), st.integers(0, most)))
            row.append((first, piece))
            left -= len(piece)
        rows.append(row)
    return rows
