"""The spans of messages: role, message and loss of their tokens, and their bytes.

`docs/reference/format.md` has the layout after the tokens of a packed row: varints of
the counts and lengths, weights where there are any, and a byte for each span. Most
spans take two or three bytes. A batch of rows is encoded and decoded at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.varints import encode_varints, varints_at
from gristmill.dataset.packed.counts import PackedCounts

ROLES = (
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "thinking",
    "tool_call",
    "other",
)
"""The roles of spans, by number. `thinking` and `tool_call` are parts of the
assistant's text; `other` stands for all other roles, and for plain text."""

OTHER = ROLES.index("other")

STORED = np.dtype(
    [
        *(("begins", "<u4"), ("lengths", "<u4"), ("roles", "u1")),
        *(("messages", "<u4"), ("trained", "?"), ("weights", "<f4")),
    ]
)
"""A span as a row of one array."""

Int64 = npt.NDArray[np.int64]


def counts_of(ends: Int64) -> Int64:
    """Returns the sizes of runs that end there: `np.diff`, in a fifth of the time."""
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    return counts


class MessageSpans(NamedTuple):
    """The spans of messages in a batch of documents.

    The spans of a document are in order, do not overlap, and have a token each. Tokens
    in no span are text of the template, which is never trained on.

    Attributes:
        ends: int64 [documents], where the spans of each document end among all.
        begins: uint32 [spans], the first token of each, from the document's first.
        lengths: uint32 [spans], in tokens.
        roles: uint8 [spans], index of their role in `ROLES`.
        messages: uint32 [spans], number of the message in its conversation, from 0.
        trained: bool [spans], whether the loss counts their tokens.
        weights: float32 [spans], factor of the loss; 1 where the data have none.
    """

    ends: Int64
    begins: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.uint32]
    roles: npt.NDArray[np.uint8]
    messages: npt.NDArray[np.uint32]
    trained: npt.NDArray[np.bool_]
    weights: npt.NDArray[np.float32]

    @property
    def columns(self) -> tuple[Any, ...]:
        """The arrays [spans], as they are listed above."""
        return self[1:]

    @property
    def documents(self) -> Int64:
        """The document of each span: int64 [spans]."""
        return np.repeat(np.arange(len(self.ends)), counts_of(self.ends))

    @property
    def stops(self) -> Int64:
        """The token after the last of each span, in its document: int64 [spans]."""
        return self.begins.astype(np.int64) + self.lengths

    def of_document(self, number: int) -> Iterator[dict[str, Any]]:
        """Yields the spans of a document for JSON, by its tokens."""
        begin = int(self.ends[number - 1]) if number else 0
        for span in range(begin, int(self.ends[number])):
            first = int(self.begins[span])
            found = {
                "begin": first,
                "end": first + int(self.lengths[span]),
                "role": ROLES[self.roles[span]],
                "message": int(self.messages[span]),
                "trained": bool(self.trained[span]),
            }
            if self.weights[span] != 1:
                found["weight"] = float(self.weights[span])
            yield found

    @classmethod
    def of_stored(cls, ends: Int64, stored: npt.NDArray[Any]) -> Self:
        """Returns the spans that are rows of `STORED`."""
        return cls(ends, *(stored[name].copy() for name in STORED.names or ()))

    def stored(self) -> npt.NDArray[Any]:
        """Returns the spans as rows of `STORED`."""
        rows = np.empty(len(self.begins), STORED)
        for name, column in zip(STORED.names or (), self.columns, strict=True):
            rows[name] = column
        return rows

    @classmethod
    def of_documents(cls, documents: Sequence[Sequence[tuple[Any, ...]]]) -> Self:
        """Returns the spans of documents, each as a row of `STORED`."""
        rows = np.array([*itertools.chain(*documents)], STORED)
        return cls.of_stored(np.cumsum([*map(len, documents)], dtype=np.int64), rows)

    def among(
        self, ours: npt.NDArray[np.bool_], lengths: npt.NDArray[np.uint32]
    ) -> Self:
        """Returns these spans among documents of plain text, which are trained on.

        Args:
            ours: bool [documents], which documents have these spans.
            lengths: uint32 [documents], in tokens.
        """
        counts = np.ones(len(ours), np.int64)
        counts[ours] = counts_of(self.ends)
        is_ours = np.repeat(ours, counts)
        rows = np.full(len(is_ours), np.array((0, 0, OTHER, 0, True, 1), STORED))
        rows[is_ours] = self.stored()
        rows["lengths"][~is_ours] = lengths[~ours]
        return self.of_stored(np.cumsum(counts), rows)

    def taken(self, spans: npt.NDArray[np.bool_]) -> Self:
        """Returns some of the spans, of the same documents."""
        ends = np.append(0, np.cumsum(spans))[self.ends]
        return type(self)(ends, *(column[spans] for column in self.columns))

    def joined(self) -> Self:
        """Returns the spans, with spans that continue each other joined.

        Untrained spans get weight 1. This undoes cuts at any token.
        """
        weights = np.where(self.trained, self.weights, np.float32(1))
        whole = self._replace(weights=weights)
        same = np.zeros(len(weights), np.bool_)
        same[1:] = self.begins[1:] == self.stops[:-1]
        for column in (self.documents, *whole.columns[2:]):
            same[1:] &= column[1:] == column[:-1]
        if not same.any():
            return whole
        first = np.flatnonzero(~same)
        lengths = np.add.reduceat(self.lengths, first, dtype=np.uint32)
        return whole.taken(~same)._replace(lengths=lengths)

    def cut(self, firsts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Self:
        """Returns the spans of a piece of each document, from its first token.

        Args:
            firsts: [documents], the first token of the piece.
            lengths: [documents], its tokens.
        """
        documents = self.documents
        own = firsts.astype(np.int64)[documents]
        begins = np.maximum(self.begins - own, 0)
        sizes = np.minimum(self.stops - own, lengths[documents]) - begins
        there = sizes > 0
        return self.taken(there)._replace(
            begins=begins[there].astype(np.uint32),
            lengths=sizes[there].astype(np.uint32),
        )


def trained_counts(spans: MessageSpans) -> PackedCounts:
    """Returns the trained tokens of pieces, and those with a predecessor there."""
    trained = spans.trained
    tokens = int(spans.lengths[trained].sum(dtype=np.int64))
    first = int(np.count_nonzero(trained & (spans.begins == 0)))
    return PackedCounts(trained_tokens=tokens, trained_targets=tokens - first)


_ROLE = 7
_TRAINED, _NEXT_MESSAGE, _GAP = 3, 4, 5  # Bits of the byte of a span.
_FAR = 7  # The gap that says: gap and message follow as varints.
_MOST_MESSAGES = 1 << 32
_WEIGHT_BYTES = 4
_NUMBER_BYTES = 5


class SpanError(Exception):
    """The bytes of spans make no sense.

    Attributes:
        row: The number of the row.
    """

    def __init__(self, what: str, row: int) -> None:
        super().__init__(what)
        self.row = row


def encode_spans(
    spans: MessageSpans, row_ends: Int64
) -> tuple[list[bytes], npt.NDArray[np.bool_]]:
    """Encodes the spans of the pieces of rows; the inverse of `decode_spans`.

    Args:
        spans: The spans, with a piece for each document.
        row_ends: int64 [rows], where the pieces of each row end among all.

    Returns:
        The bytes of each row; and bool [rows], whether they have weights.
    """
    piece_counts = np.diff(spans.ends, prepend=0)
    span_ends = np.append(0, spans.ends)[row_ends]
    pieces, counts = (np.diff(ends, prepend=0) for ends in (row_ends, span_ends))
    gaps, steps = _steps_of(spans)
    far = (gaps >= _FAR) | (steps < 0) | (steps > 1)
    heads = spans.roles | spans.trained.astype(np.uint8) << _TRAINED
    heads |= np.where(far, _FAR << _GAP, gaps << _GAP | steps << _NEXT_MESSAGE).astype(
        np.uint8
    )
    # The numbers of all rows, end to end.
    fars: Int64 = np.cumsum(far) - far
    rows = np.repeat(np.arange(len(row_ends)), counts)
    at_pieces = np.arange(len(piece_counts)) - np.repeat(row_ends - pieces, pieces)
    far_counts = _sums(far.astype(np.int64), span_ends)
    sizes = pieces + counts + 2 * far_counts
    begins = np.cumsum(sizes) - sizes
    values = np.empty(int(sizes.sum()), np.int64)
    values[at_pieces + np.repeat(begins, pieces)] = piece_counts
    base = begins + pieces - (span_ends - counts)
    base -= 2 * (np.cumsum(far_counts) - far_counts)
    places = base[rows] + np.arange(len(far)) + 2 * fars
    values[places] = spans.lengths
    values[places[far] + 1] = gaps[far]
    values[places[far] + 2] = np.where(steps < 0, -2 * steps - 1, 2 * steps)[far]
    data, lengths = encode_varints(values)
    number_ends = np.append(0, np.cumsum(lengths))[np.cumsum(sizes)]
    weighted = _sums((spans.trained & (spans.weights != 1)).astype(int), span_ends) > 0
    kept = spans.trained & weighted[rows]
    weight_ends = np.cumsum(_sums(kept.astype(np.int64), span_ends)) * _WEIGHT_BYTES
    weights = spans.weights[kept].astype("<f4").tobytes()
    columns = (data.tobytes(), number_ends), (weights, weight_ends)
    parts = [cut(*column) for column in (*columns, (heads.tobytes(), span_ends))]
    return [b"".join(row) for row in zip(*parts, strict=True)], weighted


def _steps_of(spans: MessageSpans) -> tuple[Int64, Int64]:
    """Returns the tokens between each span and the one before, and the message's step.

    The first span of a piece comes after its start, and after message -1.
    """
    counts = np.diff(spans.ends, prepend=0)
    first = (spans.ends - counts)[counts > 0]
    before = np.append(0, spans.stops)[:-1]
    before[first] = 0
    messages = spans.messages.astype(np.int64)
    earlier = np.append(0, messages)[:-1]
    earlier[first] = -1
    return spans.begins - before, messages - earlier


def _sums(values: Int64, ends: Int64) -> Int64:
    """Returns the sums of runs of values that end there."""
    return counts_of(_running(values)[ends])


def _running(values: Int64) -> Int64:
    """Returns the sums of the values before each, and of all."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _summed(values: Int64, firsts: Int64) -> Int64:
    """Returns the sum of values up to each, from the first of its run on."""
    sums = _running(values)
    return sums[1:] - sums[firsts]


def cut(data: memoryview | bytes, ends: Int64) -> list[memoryview | bytes]:
    """Returns the parts of bytes that end there."""
    stops = ends.tolist()
    return [data[begin:end] for begin, end in zip([0, *stops[:-1]], stops, strict=True)]


def decode_spans(
    parts: Sequence[bytes],
    weighted: npt.NDArray[np.bool_],
    row_ends: Int64,
    lengths: npt.NDArray[np.uint32],
) -> MessageSpans:
    """Decodes the spans of rows, with a piece for each document.

    Args:
        parts: The bytes of each row.
        weighted: bool [rows], whether they have weights.
        row_ends: int64 [rows], where the pieces of each row end among all.
        lengths: uint32 [pieces], tokens of each.

    Raises:
        SpanError: They are damaged. All spans have a single encoding, so every changed
            bit changes the result or raises this.
    """
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    stops = np.cumsum(sizes)
    starts, pieces = stops - sizes, counts_of(row_ends)
    data = np.frombuffer(b"".join(parts), np.uint8)
    every_row = np.arange(len(parts))
    numbers = _Numbers(data, starts, stops)
    rows = np.repeat(every_row, pieces)
    piece_counts = numbers.first(rows, np.arange(len(rows)) - (row_ends - pieces)[rows])
    # A span has a token, and none is in two.
    numbers.require(piece_counts <= lengths, rows, "more spans than tokens")
    counts = _sums(piece_counts, row_ends)
    numbers.require(sizes >= pieces + 2 * counts, every_row, "they are cut short")
    span_ends = np.cumsum(counts)
    owners = np.repeat(every_row, counts)
    at = np.arange(len(owners))
    heads = data[at + (stops - span_ends)[owners]]
    trained = (heads >> _TRAINED & 1).view(np.bool_)
    far = np.flatnonzero(heads >> _GAP == _FAR)
    weights_at = stops - counts
    kept = at[:0]
    if weighted.any():
        kept = np.flatnonzero(trained & weighted[owners])
        weights_at -= _WEIGHT_BYTES * np.bincount(owners[kept], minlength=len(parts))
    far_counts = np.bincount(owners[far], minlength=len(parts))
    ends = numbers.check_end(pieces + counts + 2 * far_counts, weights_at)
    # The numbers of spans are the last of a row; two more follow a far one.
    at += (ends - span_ends - 2 * np.cumsum(far_counts))[owners]
    sizes_of, gaps, steps = _read_fields(numbers, heads, far, at, owners)
    ends = np.cumsum(piece_counts)
    firsts = np.repeat(ends - piece_counts, piece_counts)
    numbers.require(sizes_of > 0, owners, "a span has no token")
    span_stops = _summed(gaps + sizes_of, firsts)
    within = span_stops <= np.repeat(lengths, piece_counts)
    numbers.require(within, owners, "a span ends after its piece")
    messages = _summed(steps, firsts) - 1
    known = (messages >= 0) & (messages < _MOST_MESSAGES)
    numbers.require(known, owners, "a span has no message")
    weights = np.ones(len(heads), np.float32)
    if weighted.any():
        begins, stop = (weights_at - starts).tolist(), (sizes - counts).tolist()
        found = [p[b:s] for p, b, s in zip(parts, begins, stop, strict=True)]
        weights[kept] = np.frombuffer(b"".join(found), "<f4")
        good = np.isfinite(weights) & (weights >= 0)
        numbers.require(good, owners, "a weight is not a number above 0")
        others = np.bincount(owners[weights != 1], minlength=len(parts))
        numbers.require((others > 0) >= weighted, every_row, "all weights are 1")
    return MessageSpans(
        ends,
        (span_stops - sizes_of).astype(np.uint32),
        sizes_of.astype(np.uint32),
        heads & np.uint8(_ROLE),
        messages.astype(np.uint32),
        trained,
        weights,
    )


def _read_fields(
    numbers: _Numbers,
    heads: npt.NDArray[np.uint8],
    far: Int64,
    at: Int64,
    owners: Int64,
) -> tuple[Int64, Int64, Int64]:
    """Returns the length, the gap before and the message's step of each span.

    `far` has the spans with two more numbers, `at` the place of each span's number if
    there were none.
    """
    gaps = (heads >> _GAP).astype(np.int64)
    steps = (heads >> _NEXT_MESSAGE & 1).astype(np.int64)
    if not len(far):
        return numbers.at(at, owners), gaps, steps
    more = np.zeros(len(at) + 1, np.int64)
    more[far + 1] = 2
    at = at + np.cumsum(more)[:-1]
    lengths, of_far = numbers.at(at, owners), owners[far]
    numbers.require(steps[far] == 0, of_far, "a span has two messages")
    gaps[far] = numbers.at(at[far] + 1, of_far)
    folded = numbers.at(at[far] + 2, of_far)
    steps[far] = np.where(folded & 1, -(folded + 1 >> 1), folded >> 1)
    near = (gaps[far] < _FAR) & (steps[far] >= 0) & (steps[far] <= 1)
    numbers.require(~near, of_far, "a span is written in a longer way")
    return lengths, gaps, steps


class _Numbers:
    """The varints with which the bytes of each row begin.

    Args:
        data: uint8 [bytes], the bytes of all rows.
        starts: int64 [rows], where the bytes of each begin.
        stops: int64 [rows].
    """

    def __init__(self, data: npt.NDArray[np.uint8], starts: Int64, stops: Int64):
        self._data, self._starts, self._stops = data, starts, stops
        self._lasts = np.flatnonzero(data < 0x80)
        self._firsts = np.searchsorted(self._lasts, starts)

    def first(self, rows: Int64, places: Int64) -> Int64:
        """Returns numbers by their rows, and their places in the row."""
        at = self._firsts[rows] + places
        self.require(at < len(self._lasts), rows, "they are cut short")
        last = self._lasts[at]
        self.require(last < self._stops[rows], rows, "they are cut short")
        first = np.where(places > 0, self._lasts[at - 1] + 1, self._starts[rows])
        return self._values(first, last, rows)

    def at(self, at: Int64, rows: Int64) -> Int64:
        """Returns numbers that `check_end` allows, none of them the first of a row.

        Args:
            at: Their places among all numbers.
            rows: Their rows.
        """
        return self._values(self._lasts[at - 1] + 1, self._lasts[at], rows)

    def _values(self, first: Int64, last: Int64, rows: Int64) -> Int64:
        values = self._data[last].astype(np.int64)
        long = np.flatnonzero(last > first)
        if len(long):
            short = last[long] - first[long] < _NUMBER_BYTES
            self.require(short, rows[long], "a number is too large")
            what = "a number is written in a longer way"
            self.require(values[long] > 0, rows[long], what)
            # Most of these have two bytes.
            values[long] = values[long] << 7 | self._data[first[long]] & 0x7F
            longer = np.flatnonzero(last > first + 1)
            values[longer] = varints_at(self._data, first[longer])[0]
        return values

    def check_end(self, counts: Int64, ends: Int64) -> Int64:
        """Checks where the numbers of each row end, given their counts.

        Returns:
            int64 [rows], the place of the number after it, among all numbers.
        """
        at = self._firsts + counts
        rows = np.arange(len(at))
        self.require(at <= len(self._lasts), rows, "they are cut short")
        good = self._lasts[at - 1] == ends - 1
        self.require(good, rows, "their counts do not add up")
        return at

    def require(self, holds: npt.NDArray[np.bool_], rows: Int64, what: str) -> None:
        """Raises SpanError for the first row for which a condition does not hold."""
        if not holds.all():
            raise SpanError(what, int(rows[np.argmin(holds)]))
