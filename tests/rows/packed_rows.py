"""Rows of tokens as lists of pieces, made at random and taken apart again."""

import numpy as np

from gristmill.dataset.packed.row_format import MAX_POSITIONS, RowBatch
from tests.rows.conversation_rows import spans_of


def batch_of(rows, said=None):
    """Takes the pieces of each row: the position of its first token, and its tokens."""
    pieces = [piece for row in rows for piece in row]
    return RowBatch(
        np.cumsum([len(row) for row in rows], dtype=np.int64),
        np.array([len(ids) for _, ids in pieces], np.uint32),
        np.array([first for first, _ in pieces], np.uint32),
        np.array([token for _, ids in pieces for token in ids], np.uint32),
        None if said is None else spans_of(said),
    )


def rows_of(batch):
    rows, piece, at = [], 0, 0
    for end in batch.row_ends.tolist():
        row = []
        while piece < end:
            stop = at + int(batch.lengths[piece])
            row.append((int(batch.firsts[piece]), batch.tokens[at:stop].tolist()))
            piece, at = piece + 1, stop
        rows.append(row)
    return rows


def some_rows(chance, length, id_bytes=2):
    most = (1 << 8 * id_bytes) - 1
    rows = []
    for _ in range(chance.randrange(5)):
        left, row = length, []
        while left and (not row or chance.random() < 0.6):
            size = chance.randint(1, left)
            first = chance.choice((0, 0, 5, MAX_POSITIONS - size))
            ids = [
                chance.choice((0, most, chance.randint(0, most))) for _ in " " * size
            ]
            row.append((first, ids))
            left -= size
        rows.append(row)
    return rows
