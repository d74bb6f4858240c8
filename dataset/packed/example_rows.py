"""Packed rows as `tf.train.Example` messages, for readers that do not know our format.

A row is three int64 features of one length, under the names that MaxText gives them:
the tokens, the position of each in its document, and the number of its piece in the
row, from 1 on. All three are 0 after the last piece.

Rows of conversations have three features more, as long as the row: the role of each
token from 1 on, the number of its message from 1 on, both 0 in text of the template,
and whether it is trained on; and its weight, if one is not 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError
from gristmill.dataset.base.example import (
    FLOATS,
    INTS,
    RawFeature,
    encode_example,
    raw_features,
)
from gristmill.dataset.base.varints import decode_varints
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans

TOKENS, POSITIONS, SEGMENTS = NAMES = (
    "inputs",
    "inputs_position",
    "inputs_segmentation",
)

ROLE, MESSAGE, TRAINED = SUPERVISION = (
    "inputs_role",
    "inputs_message",
    "inputs_trained",
)
WEIGHT = "inputs_weight"
"""Features of conversations alone."""

IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint32]


def encode_examples(
    length: int,
    row_ends: IntArray,
    lengths: WordArray,
    firsts: WordArray,
    tokens: WordArray,
    spans: MessageSpans | None = None,
) -> list[bytes]:
    """Encodes the rows of a checked `RowBatch`, whose spans are `joined`."""
    records = []
    supervision = None if spans is None else _by_token(spans, lengths)
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
        features: dict[str, npt.NDArray[Any]] = dict(zip(NAMES, row, strict=True))
        if supervision is not None:
            features |= _supervised(supervision, at, at + count, length)
        records.append(encode_example(features))
        piece, at = end, at + count
    return records


def _by_token(spans: MessageSpans, lengths: WordArray) -> list[npt.NDArray[Any]]:
    """Returns role, message, trained and weight of each token of pieces."""
    counts = spans.lengths.astype(np.int64)
    ends = np.cumsum(lengths, dtype=np.int64)
    begins = (ends - lengths)[spans.documents] + spans.begins
    places = np.repeat(begins - np.cumsum(counts) + counts, counts)
    places += np.arange(len(places))
    found = []
    for values in (
        spans.roles + np.int64(1),
        spans.messages + np.int64(1),
        spans.trained.astype(np.int64),
        np.where(spans.trained, spans.weights, 0).astype(np.float32),
    ):
        by_token = np.zeros(int(lengths.sum()), values.dtype)
        by_token[places] = np.repeat(values, counts)
        found.append(by_token)
    return found


def _supervised(
    by_token: Sequence[npt.NDArray[Any]], begin: int, end: int, length: int
) -> dict[str, npt.NDArray[Any]]:
    """Returns the features of a row that only conversations have."""
    padding = 0, length - (end - begin)
    found = {
        name: np.pad(values[begin:end], padding)
        for name, values in zip((*SUPERVISION, WEIGHT), by_token, strict=True)
    }
    if (found[WEIGHT] == found[TRAINED]).all():
        del found[WEIGHT]
    return found


def decode_examples(
    length: int, id_bytes: int, records: Sequence[bytes]
) -> tuple[IntArray, WordArray, WordArray, WordArray, MessageSpans | None]:
    """Decodes rows to the fields of a `RowBatch`.

    Raises:
        DecodeError: A record is not such a row; `row` is its number among the records.
    """
    ends: list[int] = []
    lengths: list[WordArray] = []
    firsts: list[WordArray] = []
    tokens: list[WordArray] = []
    supervision: list[Supervision | None] = []
    for number, record in enumerate(records):
        row, supervised = _features(record, length, number)
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
        if supervised is not None:
            _check_supervised(supervised, row[SEGMENTS], number)
        supervision.append(supervised)
        ends.append(pieces)
        lengths.append(counts.astype(np.uint32))
        firsts.append(begins.astype(np.uint32))
        tokens.append(ids.astype(np.uint32))
    none = [np.zeros(0, np.uint32)]
    sizes, begun = (np.concatenate(each or none) for each in (lengths, firsts))
    row_ends = np.cumsum(ends, dtype=np.int64)
    spans = _spans_of(supervision, row_ends, sizes)
    return row_ends, sizes, begun, np.concatenate(tokens or none), spans


Supervision = dict[str, npt.NDArray[Any]]


def _spans_of(
    rows: Sequence[Supervision | None], row_ends: IntArray, lengths: WordArray
) -> MessageSpans | None:
    """Returns the spans of the pieces of rows, None if no row has any.

    Where others have spans, all tokens of rows without are trained.
    """
    if not any(row is not None for row in rows):
        return None
    stops = np.cumsum(lengths, dtype=np.int64)
    row_stops = np.append(0, stops)[row_ends]
    columns: dict[str, npt.NDArray[Any]] = {}
    plain = {ROLE: len(ROLES), MESSAGE: 1, TRAINED: 1, WEIGHT: 1}
    counts = np.diff(row_stops, prepend=0).tolist()
    for name, value in plain.items():
        columns[name] = np.concatenate(
            [
                np.full(count, value) if row is None else row[name][:count]
                for row, count in zip(rows, counts, strict=True)
            ]
        )
    pieces = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.zeros(len(pieces), np.bool_)
    for column in (pieces, *columns.values()):
        begins |= np.diff(column, prepend=-1) != 0
    starts = np.flatnonzero(begins)
    sizes = np.diff(starts, append=len(pieces))
    said = columns[ROLE][starts] > 0
    starts, sizes = starts[said], sizes[said]
    owners = pieces[starts]
    trained = columns[TRAINED][starts] > 0
    return MessageSpans(
        np.cumsum(np.bincount(owners, minlength=len(lengths))),
        (starts - (stops - lengths)[owners]).astype(np.uint32),
        sizes.astype(np.uint32),
        (columns[ROLE][starts] - 1).astype(np.uint8),
        (columns[MESSAGE][starts] - 1).astype(np.uint32),
        trained,
        np.where(trained, columns[WEIGHT][starts], 1).astype(np.float32),
    )


def _check_supervised(row: Supervision, segments: IntArray, number: int) -> None:
    """Raises DecodeError if the features of conversations contradict themselves."""
    role, message, trained, weight = (row[name] for name in (*SUPERVISION, WEIGHT))
    said = role > 0
    for what, wrong in (
        (f"{ROLE} is none", (role < 0) | (role > len(ROLES))),
        (f"{ROLE} of padding", said & (segments == 0)),
        (f"{MESSAGE} of no message", (message > 0) != said),
        (f"{MESSAGE} out of range", (message < 0) | (message > 1 << 32)),
        (f"{TRAINED} is not 0 or 1", (trained < 0) | (trained > said)),
        (f"{WEIGHT} is not a weight", ~np.isfinite(weight) | (weight < 0)),
        (f"{WEIGHT} of no trained token", (weight != 0) & (trained == 0)),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            got = ", ".join(f"{name} {row[name][at]:g}" for name in row)
            raise _damaged(what, number, "0 where no message is", f"{got} at {at:,}")


def _features(
    record: bytes, length: int, number: int
) -> tuple[dict[str, IntArray], Supervision | None]:
    """Returns the features of a row, each as long as the row."""
    supervised: Supervision | None = None
    try:
        features = raw_features(record)
        row = {name: _ints(features[name.encode()]) for name in NAMES}
        if any(name.encode() in features for name in (*SUPERVISION, WEIGHT)):
            supervised = {name: _ints(features[name.encode()]) for name in SUPERVISION}
            weights = supervised[TRAINED].astype(np.float32)
            if (found := features.get(WEIGHT.encode())) is not None:
                kind, parts = found
                encoded = b"".join(parts) if kind == FLOATS else b""
                weights = np.frombuffer(encoded, "<f4")
            supervised[WEIGHT] = weights
    except (KeyError, ValueError) as e:
        got = f"no feature {e.args[0].decode()}" if isinstance(e, KeyError) else e
        names = ", ".join(NAMES)
        raise _damaged("not such an example", number, names, got) from e
    for name, values in (row | (supervised or {})).items():
        if len(values) != length:
            raise DecodeError(
                "packed row has another length than is expected",
                row=number,
                expected=f"{length:,} values of {name}",
                got=f"{len(values):,}",
                cure="give the length that the dataset was packed with",
            )
    return row, supervised


def _ints(feature: RawFeature) -> IntArray:
    kind, parts = feature
    encoded = b"".join(parts) if kind == INTS else b""
    return decode_varints(np.frombuffer(encoded, np.uint8))


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
