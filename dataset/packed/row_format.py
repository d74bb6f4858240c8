"""The bytes of a packed row: pieces of documents, and their tokens.

`docs/reference/format.md` has the layout. A batch of rows is encoded and decoded at
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.packed.example_rows import (
    decode_examples,
    encode_examples,
    not_a_row,
)
from gristmill.dataset.packed.message_spans import (
    MessageSpans,
    SpanError,
    counts_of,
    cut,
    decode_spans,
    encode_spans,
)

MAX_POSITIONS = 1 << 31
"""Tokens that a document can have: the positions are an int32 for trainers."""

# Bits of the first word of a row; the number of pieces is below them.
_FIRSTS_FOLLOW = 1 << 31
_SPANS_FOLLOW = 1 << 30
_WEIGHTS_FOLLOW = 1 << 29
_WORD_BYTES = 4
_ID_BYTES = (2, 3, 4)

RowsKind = Literal["packed", "example"]


@dataclasses.dataclass(frozen=True)
class RowFormat:
    """The encoding of a dataset's rows.

    Attributes:
        length: Tokens that a row can hold.
        id_bytes: Bytes that an id needs: 2, 3 or 4. Also the bytes of a token if rows
            are "packed".
        rows: "packed", or "example" for `tf.train.Example` messages.
    """

    length: int
    id_bytes: int = 2
    rows: str = "packed"

    def __post_init__(self) -> None:
        kinds = get_args(RowsKind)
        for what, good, expected in (
            ("length", 1 <= self.length <= MAX_POSITIONS, f"1 to {MAX_POSITIONS:,}"),
            ("id_bytes", self.id_bytes in _ID_BYTES, "2, 3 or 4"),
            ("rows", self.rows in kinds, " or ".join(kinds)),
        ):
            if not good:
                raise InputError(
                    f"{what} of packed rows is out of range",
                    expected=expected,
                    got=repr(getattr(self, what)),
                    cure=f"give another {what}",
                )


class RowBatch(NamedTuple):
    """The pieces and tokens of consecutive rows.

    Attributes:
        row_ends: int64 [rows], where the pieces of each row end among all.
        lengths: uint32 [pieces], tokens of each.
        firsts: uint32 [pieces], position of its first token in its document.
        tokens: uint32 [tokens], all pieces end to end.
        spans: The spans of messages, with a piece for each document; None if the rows
            hold no conversations.
    """

    row_ends: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.uint32]
    firsts: npt.NDArray[np.uint32]
    tokens: npt.NDArray[np.uint32]
    spans: MessageSpans | None = None


class RowHeads(NamedTuple):
    """The heads of the rows of a batch: their pieces, and where their tokens are.

    Attributes:
        row_ends, lengths, firsts: As in `RowBatch`.
        token_counts: int64 [rows], tokens of each row.
        token_bytes: int64 [rows], offset of the tokens in the record.
        span_bytes: int64 [rows], offset of the spans in the record: its size if it has
            none.
        supervised: bool [rows], whether the record has spans.
        weighted: bool [rows], whether its spans have weights.
    """

    row_ends: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.uint32]
    firsts: npt.NDArray[np.uint32]
    token_counts: npt.NDArray[np.int64]
    token_bytes: npt.NDArray[np.int64]
    span_bytes: npt.NDArray[np.int64]
    supervised: npt.NDArray[np.bool_]
    weighted: npt.NDArray[np.bool_]


def encode_rows(row_format: RowFormat, batch: RowBatch) -> list[bytes]:
    """Encodes rows, each of some pieces; the inverse of `decode_rows`."""
    ends, lengths, firsts, tokens, spans = batch
    if not len(ends):
        return []
    if row_format.rows == "example":
        if spans is not None:
            raise ValueError("spans of messages in rows that are examples")
        return encode_examples(row_format.length, ends, lengths, firsts, tokens)
    starts = np.concatenate([[0], ends[:-1]])
    token_ends = np.cumsum(np.add.reduceat(lengths, starts, dtype=np.int64))
    pieces = ends - starts
    later = np.logical_or.reduceat(firsts > 0, starts)
    # The words of all heads, end to end.
    sizes = 1 + pieces * (1 + later)
    word_ends = np.cumsum(sizes)
    word_starts = word_ends - sizes
    words = np.empty(int(word_ends[-1]), "<u4")
    words[word_starts] = np.where(later, pieces | _FIRSTS_FOLLOW, pieces)
    behind: list[bytes] = []
    if spans is not None:
        behind, weighted = encode_spans(spans, ends)
        marks = np.where(weighted, _SPANS_FOLLOW | _WEIGHTS_FOLLOW, 0)
        words[word_starts] |= (marks | _SPANS_FOLLOW).astype("<u4")
    places = np.repeat(word_starts + 1 - starts, pieces) + np.arange(len(lengths))
    words[places] = lengths
    if later.any():
        follow = np.repeat(later, pieces)
        words[(places + np.repeat(pieces, pieces))[follow]] = firsts[follow]
    heads = words.view(np.uint8).data
    low = tokens.astype("<u2").view(np.uint8).data
    parts: list[Sequence[bytes | memoryview]] = [
        cut(heads, word_ends * _WORD_BYTES),
        cut(low, token_ends * 2),
    ]
    if row_format.id_bytes > 2:
        high = (tokens >> 16).astype("u1" if row_format.id_bytes == 3 else "<u2")
        stops = token_ends * high.itemsize
        parts.append(cut(high.view(np.uint8).data, stops))
    if behind:
        parts.append(behind)
    return [b"".join(row) for row in zip(*parts, strict=True)]


def decode_rows(row_format: RowFormat, records: Sequence[bytes]) -> RowBatch:
    """Decodes rows.

    Raises:
        DecodeError: A record is not such a row; `row` is its number among the records.
    """
    if row_format.rows == "example":
        given = row_format.length, row_format.id_bytes
        return RowBatch(*decode_examples(*given, records))
    heads = read_heads(row_format, records)
    ends = np.cumsum(heads.token_counts)
    tokens = np.empty(int(ends[-1]) if len(ends) else 0, np.uint32)
    read_tokens(row_format, records, heads, tokens, ends - heads.token_counts)
    spans = read_spans(records, heads)
    return RowBatch(heads.row_ends, heads.lengths, heads.firsts, tokens, spans)


def read_heads(row_format: RowFormat, records: Sequence[bytes]) -> RowHeads:
    """Decodes the heads of "packed" rows, and checks their sizes.

    Raises:
        DecodeError: A record is not such a row; `row` is its number among the records.
    """
    if not len(records):
        none, counts = np.zeros(0, np.uint32), np.zeros(0, np.int64)
        marks = np.zeros(0, np.bool_)
        return RowHeads(counts, none, none, counts, counts, counts, marks, marks)
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    _check_sizes(sizes, np.full(len(sizes), _WORD_BYTES))
    counts = np.frombuffer(b"".join([record[:4] for record in records]), "<u4")
    later, supervised, weighted = (
        (counts & np.uint32(mark)) > 0
        for mark in (_FIRSTS_FOLLOW, _SPANS_FOLLOW, _WEIGHTS_FOLLOW)
    )
    pieces = (counts & np.uint32(_WEIGHTS_FOLLOW - 1)).astype(np.int64)
    # In records of another kind, these are arbitrary numbers.
    impossible = (pieces < 1) | (pieces > row_format.length)
    if impossible.any():
        row = int(np.argmax(impossible))
        most = f"1 to {row_format.length:,} pieces, as its first 4 bytes say"
        raise not_a_row("it begins otherwise", row, most, f"{int(pieces[row]):,}")
    firsts_at = _WORD_BYTES * (1 + pieces)
    tokens_at = firsts_at + np.where(later, _WORD_BYTES * pieces, 0)
    _check_sizes(sizes, tokens_at)
    row_ends = np.cumsum(pieces)
    row_starts = row_ends - pieces
    head_ends = firsts_at.tolist()
    lengths = np.frombuffer(
        b"".join(
            [record[4:end] for record, end in zip(records, head_ends, strict=True)]
        ),
        "<u4",
    )
    firsts = np.zeros(len(lengths), np.uint32)
    if later.any():
        parts = [
            records[row][head_ends[row] : int(tokens_at[row])]
            for row in np.flatnonzero(later).tolist()
        ]
        firsts[np.repeat(later, pieces)] = np.frombuffer(b"".join(parts), "<u4")
    token_counts = np.add.reduceat(lengths, row_starts, dtype=np.int64)
    heads = RowHeads(
        *(row_ends, lengths, firsts, token_counts, tokens_at),
        *(tokens_at + token_counts * row_format.id_bytes, supervised, weighted),
    )
    _check_heads(row_format, heads, pieces, sizes)
    return heads


def _check_heads(
    row_format: RowFormat,
    heads: RowHeads,
    pieces: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> None:
    """Compares the counts of heads with each other, and with the sizes of records."""
    row_ends, lengths, firsts, token_counts, _, whole, supervised, weighted = heads
    row_starts = row_ends - pieces
    # Each piece has a count of spans, of a byte or more.
    fits = np.where(supervised, sizes >= whole + pieces, sizes == whole)
    fits &= supervised >= weighted
    if not fits.all():
        row = int(np.argmin(fits))
        got = f"{int(sizes[row]):,} bytes"
        expected = (
            f"{int(whole[row]):,} bytes: {int(pieces[row]):,} pieces, and "
            f"{int(token_counts[row]):,} tokens of {row_format.id_bytes} bytes"
        )
        if supervised[row]:
            expected += ", and spans after them"
        raise not_a_row("its counts do not add up", row, expected, got)
    beyond = firsts.astype(np.int64) + lengths > MAX_POSITIONS
    for what, expected, wrong in (
        ("piece without tokens", "one or more", lengths == 0),
        ("position out of range", f"positions below {MAX_POSITIONS:,}", beyond),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            row = int(np.searchsorted(row_ends, at, side="right"))
            got = f"{int(lengths[at]):,} tokens from position {int(firsts[at]):,}"
            got = f"piece {at - int(row_starts[row]):,} of {got}"
            raise not_a_row(what, row, expected, got)
    if int(token_counts.max()) > row_format.length:
        row = int(np.argmax(token_counts > row_format.length))
        raise DecodeError(
            "packed row is longer than the rows that are expected",
            row=row,
            expected=f"at most {row_format.length:,} tokens",
            got=f"{int(token_counts[row]):,}",
            cure="give the length that the dataset was packed with",
        )


def read_spans(records: Sequence[bytes], heads: RowHeads) -> MessageSpans | None:
    """Decodes the spans of "packed" rows, with a piece for each document.

    In rows without spans beside others with them, each piece gets one trained span of
    `OTHER`.

    Args:
        records: The rows.
        heads: Heads of the same records.

    Returns:
        None if no row has spans.

    Raises:
        DecodeError: The spans of a record are damaged.
    """
    if not heads.supervised.any():
        return None
    all_ours = bool(heads.supervised.all())
    pieces = counts_of(heads.row_ends)
    rows = np.flatnonzero(heads.supervised)
    ours = np.repeat(heads.supervised, pieces)
    parts = [
        record[at:]
        for record, at, own in zip(
            records, heads.span_bytes.tolist(), heads.supervised.tolist(), strict=True
        )
        if own
    ]
    try:
        found = decode_spans(
            parts,
            heads.weighted[rows],
            np.cumsum(pieces[rows]),
            heads.lengths if all_ours else heads.lengths[ours],
        )
    except SpanError as e:
        raise not_a_row(
            f"spans of messages make no sense: {e}", int(rows[e.row]), "spans", "others"
        ) from e
    return found if all_ours else found.among(ours, heads.lengths)


def _check_sizes(sizes: npt.NDArray[np.int64], least: npt.NDArray[np.int64]) -> None:
    if (sizes < least).any():
        row = int(np.argmax(sizes < least))
        expected = f"{int(least[row]):,} bytes or more"
        raise not_a_row("it is cut short", row, expected, f"{int(sizes[row]):,} bytes")


def read_tokens(
    row_format: RowFormat,
    records: Sequence[bytes],
    heads: RowHeads,
    into: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
) -> None:
    """Writes the tokens of "packed" rows into an array, each row at its start.

    Gaps between rows, and the rest after the last, become 0.

    Args:
        row_format: Format of the records.
        records: The rows.
        heads: Heads of the same records.
        into: [tokens], an integer type of 32 bits or more.
        starts: int64 [rows], the first of them 0, each at or after the end of the
            previous row.
    """
    counts, places = heads.token_counts, heads.token_bytes
    gaps = -counts
    gaps[:-1] += starts[1:] - starts[:-1]
    gaps[-1:] += len(into) - starts[-1:]
    high_bytes = row_format.id_bytes - 2
    # All rows at once: three short calls a row take three times as long.
    low = _joined(records, places, counts, gaps, 2)
    if high_bytes:
        high_type = np.dtype("u1" if high_bytes == 1 else "<u2")
        high = _joined(records, places + 2 * counts, counts, gaps, high_bytes)
        into[:] = np.frombuffer(high, high_type)
        into <<= 16
        into |= np.frombuffer(low, "<u2")
    else:
        into[:] = np.frombuffer(low, "<u2")


def _joined(
    records: Sequence[bytes],
    places: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    gaps: npt.NDArray[np.int64],
    size: int,
) -> bytes:
    """Joins the numbers of `size` bytes at a place in each row, zeros in gaps."""
    stops = places + size * counts
    spans = zip(records, places.tolist(), stops.tolist(), strict=True)
    parts = [record[place:stop] for record, place, stop in spans]
    short = np.flatnonzero(gaps)
    # From the end, so that earlier places stay valid.
    for row, gap in zip(short[::-1].tolist(), gaps[short][::-1].tolist(), strict=True):
        parts.insert(row + 1, bytes(size * gap))
    return b"".join(parts)
