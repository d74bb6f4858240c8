"""The tokens of rendered texts: where spans are, and contents that stay text."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.transforms.chat.located import UnprovenError
from gristmill.transforms.chat.turns import Special, TextSpan
from gristmill.transforms.tokens.tokenizer import Tokenizer

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


def with_special_text(
    placed: PlacedText,
    specials: Sequence[Special],
    alike: Set[Special],
    tokenizer: Tokenizer,
) -> PlacedText:
    """Returns the tokens of a text with some special tokens taken for text.

    The text is tokenised in pieces, between the special tokens that the template
    writes. That pieces give the same tokens as the whole is proved first, with all
    special tokens taken for such.

    Args:
        placed: The tokens of the text as the tokenizer gives them.
        specials: All special tokens in the text.
        alike: Those of them that are text.
        tokenizer: The tokenizer.

    Raises:
        UnprovenError: Pieces give other tokens than the whole.
    """
    data = placed.text.encode()
    places = byte_places(placed.text, [at for special in specials for at in special])
    pairs = [*map(tuple, places.reshape(-1, 2).tolist())]
    kept = [
        p for special, p in zip(specials, pairs, strict=True) if special not in alike
    ]
    if not np.array_equal(_in_pieces(data, pairs, tokenizer), placed.ids):
        raise UnprovenError(
            "a content has the text of a special token, and the text in pieces has "
            "other tokens"
        )
    ids = _in_pieces(data, kept, tokenizer)
    sizes = [len(tokenizer.bytes_of(token) or b"") for token in ids.tolist()]
    # Where the library changed the text there is no place for its tokens.
    if b"".join(filter(None, map(tokenizer.bytes_of, ids.tolist()))) != data:
        raise UnprovenError("the tokens of a text are not in one piece with it")
    return placed._replace(ids=ids, begins=np.cumsum([0, *sizes])[:-1])


def _in_pieces(
    data: bytes, specials: Sequence[Sequence[int]], tokenizer: Tokenizer
) -> npt.NDArray[np.uint32]:
    """Returns the tokens of a text whose pieces between special tokens are text."""
    borders = [0, *itertools.chain(*specials), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(borders)]
    encoded = tokenizer.encode(pieces[0::2])
    ids = np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
    names = [tokenizer.special_ids[name.decode()] for name in pieces[1::2]]
    others = [np.array([name], np.uint32) for name in names]
    both = itertools.zip_longest(ids, others, fillvalue=ids[0][:0])
    return np.concatenate([*itertools.chain(*both)])
