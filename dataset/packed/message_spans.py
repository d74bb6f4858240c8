"""The spans of messages in documents: role, message and loss of their tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

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
