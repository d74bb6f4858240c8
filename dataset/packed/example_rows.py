"""Packed rows as `tf.train.Example` messages, for readers that do not know our format.

A row is three int64 features of one length, under the names that MaxText gives them:
the tokens, the position of each in its document, and the number of its piece in the
row, from 1 on. All three are 0 after the last piece. Rows of conversations are never
stored so.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    row = np.zeros((3, length), np.int64)
    piece = at = 0
    for end in row_ends.tolist():
        counts = lengths[piece:end].astype(np.int64)
        count = int(counts.sum())
        # For each token, the place in the row where its document began, or would have.
        begins = np.cumsum(counts) - counts - firsts[piece:end]
        row[0, :count] = tokens[at : at + count]
        row[1, :count] = np.arange(count) - np.repeat(begins, counts)
        row[2, :count] = np.repeat(np.arange(1, len(counts) + 1), counts)
        row[:, count:] = 0
        records.append(encode_example(dict(zip(NAMES, row, strict=True))))
        piece, at = end, at + count
    return records


def decode_examples(
    length: int, id_bytes: int, records: Sequence[bytes]
) -> tuple[IntArray, WordArray, WordArray, WordArray]:
    """Decodes rows to the fields of a `RowBatch`.

    Raises:
        DecodeError: A record is not such a row; `row` is its number among the records.
    """
    ends: list[int] = []
    lengths: list[WordArray] = []
    firsts: list[WordArray] = []
    tokens: list[WordArray] = []
    for number, record in enumerate(records):
        row = _features(record, length, number)
        segments = row[SEGMENTS]
        count = int(np.count_nonzero(segments))
        # Where each piece begins, and where the last one ends.
        borders = np.flatnonzero(np.diff(segments, prepend=0, append=0))
        pieces = len(borders) - 1
        starts, stops = borders[:-1], borders[1:]
        counts = stops - starts
        numbers = np.repeat(np.arange(1, pieces + 1), counts)
        if not count or not np.array_equal(segments[:count], numbers):
            raise _damaged(
                f"{SEGMENTS} does not number the pieces of the row",
                number,
                "1, then 2 and so on, and 0 after the last",
                _shown(segments),
            )
        begins = row[POSITIONS][starts]
        positions = np.arange(count) - np.repeat(starts - begins, counts)
        most = (1 << 31) - counts
        if (
            not np.array_equal(row[POSITIONS][:count], positions)
            or (begins > most).any()
        ):
            raise _damaged(
                f"{POSITIONS} does not count the tokens of each piece",
                number,
                "in each piece positions that follow one another, below 2^31",
                _shown(row[POSITIONS]),
            )
        # All are positive: a negative one takes a varint of ten bytes, which is
        # refused.
        ids, limit = row[TOKENS][:count], 1 << 8 * id_bytes
        if ids.max() >= limit:
            got = int(ids[np.argmax(ids >= limit)])
            raise _damaged("token out of range", number, f"ids below {limit:,}", got)
        if row[TOKENS][count:].any() or row[POSITIONS][count:].any():
            raise _damaged("padding is not 0", number, f"0 from {count:,} on", "others")
        ends.append(pieces)
        lengths.append(counts.astype(np.uint32))
        firsts.append(begins.astype(np.uint32))
        tokens.append(ids.astype(np.uint32))
    none = [np.zeros(0, np.uint32)]
    sizes, begun = (np.concatenate(each or none) for each in (lengths, firsts))
    row_ends = np.cumsum(ends, dtype=np.int64)
    return row_ends, sizes, begun, np.concatenate(tokens or none)


def _features(record: bytes, length: int, number: int) -> dict[str, IntArray]:
    """Returns the features of a row, each as long as the row."""
    row = {}
    try:
        features = raw_features(record)
        for name in NAMES:
            kind, parts = features[name.encode()]
            encoded = b"".join(parts) if kind == INTS else b""
            row[name] = decode_varints(np.frombuffer(encoded, np.uint8))
    except (KeyError, ValueError) as e:
        got = f"no feature {e.args[0].decode()}" if isinstance(e, KeyError) else e
        names = ", ".join(NAMES)
        raise _damaged("not such an example", number, names, got) from e
    for name, values in row.items():
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


def _damaged(what: str, row: int, expected: object, got: object) -> DecodeError:
    return DecodeError(
        f"record is not a packed row: {what}",
        row=row,
        expected=expected,
        got=got,
        cure="check with `gristmill head` that its records are such examples",
    )
