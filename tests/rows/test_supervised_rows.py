"""Rows of conversations as arrays, compared with what each token by itself says."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.loader.packed.packed_rows import ARRAYS
from tests.support.conversation_rows import Said, Token, conversation, spans_of
from tests.support.packed_rows import batch_of, rows_of

LENGTH = 12
NAMES = {
    name: name for name in ("targets_mask", "targets_weights", "inputs_mask", "labels")
}


def some_batch(chance: random.Random) -> tuple[RowBatch, list[list[Token]]]:
    """Returns rows, and what each token of their pieces is."""
    rows = []
    for _ in range(chance.randrange(5)):
        left, row = LENGTH, []
        while left and (not row or chance.random() < 0.7):
            size = chance.randint(1, left)
            ids = [chance.randrange(1 << 16) for _ in range(size)]
            row.append((chance.choice((0, 9)), ids))
            left -= size
        rows.append(row)
    batch = batch_of(rows)
    pieces = [conversation(chance, length) for length in batch.lengths.tolist()]
    return batch, pieces


def token_by_token(batch: RowBatch, pieces: list[list[Token]]) -> dict[str, np.ndarray]:
    shape = len(batch.row_ends), LENGTH
    out = {name: np.zeros(shape) for name in (*NAMES, "targets_segmentation")}
    out["labels"] -= 100
    tokens = iter(pieces)
    for row, row_pieces in enumerate(rows_of(batch)):
        column = 0
        for number, (_, ids) in enumerate(row_pieces, 1):
            said = next(tokens)
            for at in range(1, len(ids)):
                token = said[at]
                if token is None or not token.trained:
                    continue
                out["inputs_mask"][row, column + at] = 1
                place = row, column + at - 1
                out["targets_mask"][place] = 1
                out["targets_weights"][place] = token.weight
                out["labels"][place] = ids[at]
                out["targets_segmentation"][place] = number
            column += len(ids)
    return out


@given(st.integers(0, 1 << 32))
def test_every_target_is_trained_or_not(seed: int) -> None:
    chance = random.Random(seed)
    batch, pieces = some_batch(chance)
    row_format = RowFormat(LENGTH)
    plain = encode_rows(row_format, batch)
    ours = encode_rows(row_format, batch._replace(spans=spans_of(pieces)))
    # Rows of plain text among them are trained as a whole.
    taken = [chance.random() < chance.choice((0.5, 1)) for _ in ours]
    rows = np.searchsorted(batch.row_ends, np.arange(len(pieces)), side="right")
    for piece, row in enumerate(rows.tolist()):
        if not taken[row]:
            pieces[piece] = [Said(7, 0, True, 1.0)] * len(pieces[piece])
    records = [a if own else b for a, b, own in zip(ours, plain, taken, strict=True)]
    decode = loader.PackedRows(length=LENGTH, names=NAMES)
    found = decode(records)
    for name, expected in token_by_token(batch, pieces).items():
        np.testing.assert_array_equal(found[name], expected, name)
        dtype = np.float32 if name == "targets_weights" else np.int32
        assert (found[name].dtype, found[name].shape) == (dtype, expected.shape)
        assert found[name].ctypes.data % 64 == 0 or not found[name].size
        found[name] += 1  # It can be written to.
    # All else is as of the same rows without supervision.
    before = loader.PackedRows(length=LENGTH)(plain)
    again = loader.PackedRows(length=LENGTH)(records)
    assert [*again] == [*before]
    for name in before:
        if name != "targets_segmentation":
            np.testing.assert_array_equal(again[name], before[name], name)
        else:
            kept = again[name] > 0
            np.testing.assert_array_equal(again[name], before[name] * kept)


def test_one_array_alone() -> None:
    batch = batch_of([[(0, [5, 6])]])
    (record,) = encode_rows(
        RowFormat(4), batch._replace(spans=MessageSpans.of_documents([[]]))
    )
    nothing = dict.fromkeys(ARRAYS)
    for name, other in {"labels": "y", "targets_weights": "w"}.items():
        decode = loader.PackedRows(length=4, names={**nothing, name: other})
        (array,) = decode([record]).values()
        assert array.tolist() == [[-100 if name == "labels" else 0] * 4]
        assert [*decode([record])] == [other]
