"""Packed rows as `tf.train.Example` messages, for readers without our format.

A row is three int64 features of one length, under the names that MaxText gives them:
the tokens, the position of each in its document, and the number of its piece in the
row, from 1 on. All three are 0 after the last piece. Rows of conversations are never
stored so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError
from gristmill.dataset.base.example import INTS, encode_example, raw_features
from gristmill.dataset.base.varints import decode_varints

TOKENS, POSITIONS, SEGMENTS = NAMES = (
    "inputs",
    "inputs_position",
    "inputs_segmentation",
)

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint32]


def encode_examples(
    length: int,
    row_ends: IntArray,
    lengths: WordArray,
    firsts: WordArray,
    tokens: WordArray,
) -> list[bytes]:
    """Encodes the rows of a checked `RowBatch`."""
    records = []
    piece = at = 0
    for end in row_ends.tolist():
        counts = lengths[piece:end].astype(np.int64)
        stop = at + int(counts.sum())
        row = _row(length, counts, firsts[piece:end], tokens[at:stop])
        records.append(encode_example(dict(zip(NAMES, row, strict=True))))
        piece, at = end, stop
    return records


def _row(
    length: int, counts: IntArray, firsts: npt.NDArray[Any], tokens: npt.NDArray[Any]
) -> IntArray:
    """Returns the features of a row: int64 [3, length]."""
    row = np.zeros((3, length), np.int64)
    # For each token, the place in the row where its document began, or would have.
    begins = np.cumsum(counts) - counts - firsts
    row[0, : len(tokens)] = tokens
    row[1, : len(tokens)] = np.arange(len(tokens)) - np.repeat(begins, counts)
    row[2, : len(tokens)] = np.repeat(np.arange(1, len(counts) + 1), counts)
    return row


def decode_examples(
    length: int, id_bytes: int, records: Sequence[bytes]
) -> tuple[IntArray, WordArray, WordArray, WordArray]:
    """Decodes rows to the fields of a `RowBatch`.

    Raises:
        DecodeError: A record is not such a row; `row` is its number among the records.
    """
    ends: list[int] = []
    columns: list[list[WordArray]] = [[np.zeros(0, np.uint32)] for _ in range(3)]
    for number, record in enumerate(records):
        row = _features(record, length, number)
        # Where each piece begins, and where the last one ends.
        borders = np.flatnonzero(np.diff(row[2], prepend=0, append=0))
        starts, counts = borders[:-1], np.diff(borders)
        firsts, ids = row[1][starts], row[0][: int(counts.sum())]
        for name, expected, given in zip(
            reversed(NAMES),
            reversed(_row(length, counts, firsts, ids)),
            row[::-1],
            strict=True,
        ):
            if not len(counts) or not np.array_equal(expected, given):
                what = f"{name} does not fit the pieces of the row"
                shown = _shown(expected) if len(counts) else "1, then 2 and so on"
                raise not_a_row(what, number, shown, _shown(given))
        # All are positive: a negative one takes a varint of ten bytes, which is
        # refused.
        limit = 1 << 8 * id_bytes
        if ids.max() >= limit:
            got = int(ids[np.argmax(ids >= limit)])
            what = "token out of range"
            raise not_a_row(what, number, f"ids below {limit:,}", got)
        if (firsts + counts > 1 << 31).any():
            what = "position out of range"
            raise not_a_row(what, number, "positions below 2^31", _shown(row[1]))
        ends.append(len(counts))
        for column, values in zip(columns, (counts, firsts, ids), strict=True):
            column.append(values.astype(np.uint32))
    row_ends = np.cumsum(ends, dtype=np.int64)
    lengths, begun, tokens = map(np.concatenate, columns)
    return row_ends, lengths, begun, tokens


def _features(record: bytes, length: int, number: int) -> list[IntArray]:
    """Returns the features of a row, each as long as the row."""
    row = []
    try:
        features = raw_features(record)
        for name in NAMES:
            kind, parts = features[name.encode()]
            encoded = b"".join(parts) if kind == INTS else b""
            row.append(decode_varints(np.frombuffer(encoded, np.uint8)))
    except (KeyError, ValueError) as e:
        got = f"no feature {e.args[0].decode()}" if isinstance(e, KeyError) else e
        names = ", ".join(NAMES)
        raise not_a_row("not such an example", number, names, got) from e
    for name, values in zip(NAMES, row, strict=True):
        if len(values) != length:
            raise DecodeError(
                "packed row has another length than is expected",
                row=number,
                expected=f"{length:,} values of {name}",
                got=f"{len(values):,}",
                cure="give the length that the dataset was packed with",
            )
    return row


def _shown(values: IntArray) -> str:
    return np.array2string(values, threshold=8, edgeitems=4)


def not_a_row(what: str, row: int, expected: object, got: object) -> DecodeError:
    """Returns the error for a record that is not a packed row."""
    return DecodeError(
        f"record is not a packed row: {what}",
        row=row,
        expected=expected,
        got=got,
        cure="check that the dataset holds packed rows of such tokens, with `gristmill "
        "head`, and what is damaged, with `gristmill verify`",
    )
