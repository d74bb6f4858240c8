"""The spans of documents in tokens, from spans of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.transforms.chat.turns import TextSpan

Int64 = npt.NDArray[np.int64]


class PlacedText(NamedTuple):
    """The tokens of a rendered text.

    Attributes:
        text: The text.
        ids: uint32 [tokens].
        begins: int64 [tokens], the byte of the text at which each begins.
        size_bytes: Size of the text as UTF-8.
    """

    text: str
    ids: npt.NDArray[np.uint32]
    begins: Int64
    size_bytes: int


def token_spans(placed: PlacedText, spans: Sequence[TextSpan]) -> tuple[Int64, Int64]:
    """Returns the first token of each of some spans of a text, and the one after it.

    A token that reaches over a border belongs to the span in which it begins; but one
    that is not wholly before a trained span, which a model has to generate, to that.

    Args:
        placed: The tokens of the text.
        spans: The spans, in characters and in order.
    """
    borders = byte_places(
        placed.text, [place for span in spans for place in (span.begin, span.end)]
    )
    tokens = np.searchsorted(placed.begins, borders, "left")
    begins, ends = tokens[0::2], tokens[1::2]
    starts = np.append(placed.begins, placed.size_bytes)
    over = (starts[begins] > borders[0::2]) & (begins > 0)
    for number in np.flatnonzero(over).tolist():
        span, before = spans[number], spans[number - 1] if number else None
        goes_on = before and before.trained and before.end == span.begin
        if span.trained and not goes_on:
            begins[number] -= 1
            if number:
                ends[number - 1] = min(ends[number - 1], begins[number])
    return begins, ends


def token_at(placed: PlacedText, places: Sequence[int]) -> list[int]:
    """Returns the first tokens that begin at characters of a text or after them."""
    borders = byte_places(placed.text, places)
    found: list[int] = np.searchsorted(placed.begins, borders, "left").tolist()
    return found


def byte_places(text: str, places: Sequence[int]) -> Int64:
    """Returns the bytes at which characters begin, given in order."""
    if text.isascii():
        return np.asarray(places, np.int64)
    found, at, size_bytes = [], 0, 0
    for place in places:
        size_bytes += len(text[at:place].encode())
        at = place
        found.append(size_bytes)
    return np.asarray(found, np.int64)


class SpanRow(NamedTuple):
    """A span of a document in tokens, as in `MessageSpans`."""

    begin: int
    length: int
    role: int
    message: int
    trained: bool
    weight: float


class SpanColumns:
    """Gathers the spans of documents, one document after the other."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._columns: tuple[list[Any], ...] = ([], [], [], [], [], [])

    def add(self, rows: Sequence[SpanRow] = ()) -> None:
        """Adds a document with its spans."""
        for column, values in zip(
            self._columns, zip(*rows, strict=True), strict=bool(rows)
        ):
            column.extend(values)
        self._ends.append(len(self._columns[0]))

    def spans(self) -> MessageSpans:
        """Returns the spans of all documents."""
        types = np.uint32, np.uint32, np.uint8, np.uint32, np.bool_, np.float32
        return MessageSpans(
            np.array(self._ends, np.int64),
            *(np.array(c, t) for c, t in zip(self._columns, types, strict=True)),
        )
