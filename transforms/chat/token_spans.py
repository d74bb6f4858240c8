"""The tokens of rendered texts: those of spans, and contents tokenised as text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.transforms.chat.located import UnprovenError
from gristmill.transforms.chat.turns import TextSpan
from gristmill.transforms.tokens.tokenizer import Tokenizer

Int64 = npt.NDArray[np.int64]


class PlacedTokens(NamedTuple):
    """The tokens of a text, with their places.

    Attributes:
        ids: uint32 [tokens].
        begins: int64 [tokens], the byte of the text at which each begins.
    """

    ids: npt.NDArray[np.uint32]
    begins: Int64


def token_spans(
    placed: PlacedTokens, size_bytes: int, spans: Sequence[TextSpan], borders: Int64
) -> tuple[Int64, Int64]:
    """Returns the half-open range of tokens of each span of a text.

    A token that crosses a border belongs to the span in which it begins; but if it
    reaches into a trained span, which a model has to generate, it belongs to that one.

    Args:
        placed: The tokens of the text.
        size_bytes: Size of the text.
        spans: The spans, in order.
        borders: int64 [2 spans], begin and end of each, in bytes.
    """
    tokens = np.searchsorted(placed.begins, borders, "left")
    begins, ends = tokens[0::2], tokens[1::2]
    starts = np.append(placed.begins, size_bytes)
    over = (starts[begins] > borders[0::2]) & (begins > 0)
    for number in np.flatnonzero(over).tolist():
        span, before = spans[number], spans[number - 1] if number else None
        goes_on = before and before.trained and before.end == span.begin
        if span.trained and not goes_on:
            begins[number] -= 1
            if number:
                ends[number - 1] = min(ends[number - 1], begins[number])
    return begins, ends


def byte_places(text: str, places: Sequence[int]) -> Int64:
    """Returns the bytes at which characters begin; their numbers are in order."""
    if text.isascii():
        return np.array(places, np.int64)
    found, at, size_bytes = [], 0, 0
    for place in places:
        size_bytes += len(text[at:place].encode())
        at = place
        found.append(size_bytes)
    return np.array(found, np.int64)


def with_special_text(
    text: bytes,
    placed: PlacedTokens,
    specials: Int64,
    alike: Sequence[bool],
    tokenizer: Tokenizer,
) -> PlacedTokens:
    """Returns the tokens of a text, with some special tokens tokenised as text.

    The text is tokenised in pieces between the special tokens that the template writes.
    A first check proves that pieces give the same tokens as the whole text.

    Args:
        text: The text.
        placed: Its tokens from the tokenizer.
        specials: int64 [n, 2], begin and end of all special tokens in the text.
        alike: Which of them are text.
        tokenizer: The tokenizer.

    Raises:
        UnprovenError: Pieces give other tokens than the whole.
    """
    if not np.array_equal(_in_pieces(text, specials, tokenizer), placed.ids):
        raise UnprovenError(
            "a content has the text of a special token, and the text in pieces has "
            "other tokens"
        )
    ids = _in_pieces(text, specials[~np.array(alike)], tokenizer)
    said = [tokenizer.bytes_of(token) or b"" for token in ids.tolist()]
    # Where the library changed the text, its tokens have no places.
    if b"".join(said) != text:
        raise UnprovenError("the tokens of a text are not in one piece with it")
    return PlacedTokens(ids, np.cumsum([0, *map(len, said)])[:-1])


def _in_pieces(
    text: bytes, specials: Int64, tokenizer: Tokenizer
) -> npt.NDArray[np.uint32]:
    """Returns the tokens of a text that is tokenised between special tokens."""
    borders = [0, *specials.ravel().tolist(), len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(borders)]
    encoded = tokenizer.encode(pieces[0::2])
    parts = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
    for number, name in enumerate(pieces[1::2]):
        own = np.uint32(tokenizer.special_ids[name.decode()])
        parts[number] = np.append(parts[number], own)
    return np.concatenate(parts)
