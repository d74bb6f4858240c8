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


class TokenSpans(NamedTuple):
    """Spans of a document in tokens, and what the borders cost.

    Attributes:
        begins: int64 [spans], the first token of each.
        ends: int64 [spans], the token after its last.
        merged: Tokens that belong to two parts: they go with the one they begin in.
    """

    begins: Int64
    ends: Int64
    merged: int


def token_spans(placed: PlacedText, spans: Sequence[TextSpan]) -> TokenSpans:
    """Returns the tokens that begin in each of some spans of a text, in order.

    Args:
        placed: The tokens of the text.
        spans: The spans, in characters.
    """
    borders = byte_places(
        placed.text, [place for span in spans for place in (span.begin, span.end)]
    )
    tokens = np.searchsorted(placed.begins, borders, "left")
    # A token that begins before a border and ends after it.
    starts = np.append(placed.begins, placed.size_bytes)
    inside = (starts[np.minimum(tokens, len(placed.ids))] > borders) & (tokens > 0)
    merged = len(np.unique(tokens[inside]))
    return TokenSpans(tokens[0::2], tokens[1::2], merged)


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
