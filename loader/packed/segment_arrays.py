"""Arrays [rows, length] of the pieces of packed rows: segmentation and positions.

Padding is laid out as one more span after the pieces of each row, so that the spans
fill the array, and all rows are done at once.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.packed.message_spans import MessageSpans, counts_of
from gristmill.loader.base.indices import AnyArray, BoolArray, IntArray

Int32Array = npt.NDArray[np.int32]


# JAX takes arrays that begin at a multiple of this as they are, on CPUs.
_ALIGNMENT_BYTES = 64


def new_array(shape: tuple[int, int]) -> Int32Array:
    """Returns an int32 array, aligned so that JAX needs no copy of it; not filled."""
    size_bytes = 4 * shape[0] * shape[1]
    memory = np.empty(size_bytes + _ALIGNMENT_BYTES, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[begin : begin + size_bytes].view(np.int32).reshape(shape)


def copy_of(array: Int32Array) -> Int32Array:
    """Returns a copy, aligned."""
    out = new_array((array.shape[0], array.shape[1]))
    out[:] = array
    return out


class RowLayout(NamedTuple):
    """The spans of an array [rows, length]: pieces, and the padding of each row.

    Attributes:
        shape: Shape of the array.
        spans: int64 [pieces + rows], tokens of each.
        stops: int64 [pieces + rows], where each ends in the flat array.
        pieces: int64 [pieces], which spans are pieces.
        row_ends: int64 [rows], where the pieces of each row end among all.
        widths: int64 [rows], how many pieces each row has.
    """

    shape: tuple[int, int]
    spans: IntArray
    stops: IntArray
    pieces: IntArray
    row_ends: IntArray
    widths: IntArray

    @classmethod
    def of(
        cls,
        length: int,
        row_ends: IntArray,
        lengths: npt.NDArray[np.uint32],
        token_counts: IntArray,
    ) -> Self:
        """Lays out rows.

        Args:
            length: Columns of the array.
            row_ends: int64 [rows], where the pieces of each row end among all.
            lengths: uint32 [pieces], tokens of each.
            token_counts: int64 [rows], tokens of each, at most `length`.
        """
        rows = np.arange(len(row_ends))
        widths = row_ends.copy()
        widths[1:] -= row_ends[:-1]
        pieces = np.arange(len(lengths)) + np.repeat(rows, widths)
        spans = np.empty(len(lengths) + len(rows), np.int64)
        spans[pieces] = lengths
        spans[row_ends + rows] = length - token_counts
        stops = np.cumsum(spans)
        shape = len(rows), length
        return cls(shape, spans, stops, pieces, row_ends, widths)

    @property
    def last_tokens(self) -> IntArray:
        """Where the last token of each piece is in the flat array: int64 [pieces]."""
        return self.stops[self.pieces] - 1

    def clear_padding(self, array: Int32Array) -> None:
        """Sets padding to 0."""
        flat = array.reshape(-1)
        padding = self.row_ends + np.arange(len(self.row_ends))
        # Most rows are full. Slices: a mask of all tokens would cost more than the
        # array itself.
        padding = padding[self.spans[padding] > 0]
        stops = self.stops[padding]
        starts = stops - self.spans[padding]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            flat[start:stop] = 0

    def is_token(self) -> BoolArray:
        """Returns the places of tokens in the flat array, bool [rows * length]."""
        filled = np.zeros(len(self.spans), np.bool_)
        filled[self.pieces] = True
        return np.repeat(filled, self.spans)

    def segments(self) -> Int32Array:
        """Returns the number of each token's piece in its row, from 1 on."""
        numbers = np.zeros(len(self.spans), np.int32)
        numbers[self.pieces] = self.numbers()
        return copy_of(np.repeat(numbers, self.spans).reshape(self.shape))

    def positions(self, firsts: npt.NDArray[np.uint32] | None) -> Int32Array:
        """Returns the number of each token in its piece.

        Args:
            firsts: uint32 [pieces], what is added, as in `RowBatch`; None for 0.
        """
        rows, length = self.shape
        # Of each span, the column where its positions begin: not below -2^31.
        begins = self.stops - self.spans
        begins -= np.repeat(np.arange(rows) * length, 1 + self.widths)
        if firsts is not None:
            begins[self.pieces] -= firsts
        columns = np.arange(length, dtype=np.int32)
        spread = np.repeat(begins.astype(np.int32), self.spans).reshape(self.shape)
        out = new_array(self.shape)
        np.subtract(columns, spread, out=out)
        self.clear_padding(out)
        return out

    def spread(
        self, spans: MessageSpans | None, values: AnyArray, *, shift: int = 0
    ) -> AnyArray:
        """Returns an array with a value at each target that is trained, 0 elsewhere.

        A target is the successor of its place: it is trained if the token after that
        place is. The first token of a piece is the target of no place.

        Args:
            spans: The spans of messages, with a piece for each document; None if all
                tokens are trained.
            values: int32 or float32 [spans], the value of each; [pieces] without spans.
            shift: 1 to have each value at the token itself, and not before it.
        """
        stops = self.stops[self.pieces]
        begins = stops - self.spans[self.pieces]
        if spans is None:
            first, last = begins, stops - 1
        else:
            there = spans.trained
            values = values[there]
            first = np.repeat(begins, counts_of(spans.ends))[there]
            kept = spans.begins[there].astype(np.int64)
            last = first + kept + spans.lengths[there] - 1
            first += np.maximum(kept, 1) - 1
        # Each run, after what is before it.
        sizes = np.empty(2 * len(first) + 1, np.int64)
        sizes[1::2] = last - first
        sizes[:-1:2] = first
        sizes[2:-1:2] -= last[:-1]
        sizes[-1] = self.shape[0] * self.shape[1]
        if len(first):
            sizes[-1] -= last[-1] + shift
            sizes[0] += shift
        filled = np.zeros(len(sizes), values.dtype)
        filled[1::2] = values
        array = np.repeat(filled, sizes).reshape(self.shape)
        return copy_of(array.view(np.int32)).view(values.dtype)

    def numbers(self) -> Int32Array:
        """Returns the number of each piece in its row, from 1 on: int32 [pieces]."""
        before = np.repeat(self.row_ends - self.widths, self.widths)
        return np.arange(1, len(self.pieces) + 1, dtype=np.int32) - before.astype(
            np.int32
        )

    def successors(self, tokens: Int32Array) -> Int32Array:
        """Returns the token that follows each one in its piece, 0 for the last."""
        out = new_array(self.shape)
        out[:, :-1] = tokens[:, 1:]
        out[:, -1:] = 0
        out.reshape(-1)[self.last_tokens] = 0
        return out
