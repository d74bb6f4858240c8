"""Tokens of a text in which contents that look like special tokens stay text."""

from __future__ import annotations

import numpy as np

from gristmill.transforms.chat.marks import UnprovenError
from gristmill.transforms.chat.token_spans import PlacedText, byte_places
from gristmill.transforms.tokens.tokenizers.token_places import (
    PlacingTokenizer,
    TokenPlaces,
)


def with_special_text(
    placed: PlacedText,
    specials: list[tuple[int, int]],
    alike: set[tuple[int, int]],
    tokenizer: PlacingTokenizer,
) -> PlacedText:
    """Returns the tokens of a text with some special tokens taken for text.

    The text is tokenised in pieces, between the special tokens that the template
    writes. That pieces give the same tokens as the whole is proved first, with all
    special tokens taken for such.

    Args:
        placed: The tokens of the text as the tokenizer gives them.
        specials: Begin and end of all special tokens in the text, in characters.
        alike: Those of them that are text.
        tokenizer: The tokenizer.

    Raises:
        UnprovenError: Pieces give other tokens than the whole.
    """
    proof = _in_pieces(placed, specials, set(), tokenizer)
    if proof is None or not np.array_equal(proof.ids, placed.ids):
        raise UnprovenError(
            "a content has the text of a special token, and the text in pieces has "
            "other tokens"
        )
    found = _in_pieces(placed, specials, alike, tokenizer)
    if found is None:
        raise UnprovenError("the tokens of a text are not in one piece with it")
    return found


def _in_pieces(
    placed: PlacedText,
    specials: list[tuple[int, int]],
    alike: set[tuple[int, int]],
    tokenizer: PlacingTokenizer,
) -> PlacedText | None:
    data = placed.text.encode()
    places = byte_places(placed.text, [at for special in specials for at in special])
    pairs = zip(specials, places[0::2].tolist(), places[1::2].tolist(), strict=True)
    kept = [(begin, end) for special, begin, end in pairs if special not in alike]
    pieces, at = [], 0
    for begin, end in [*kept, (len(data), len(data))]:
        pieces.append(data[at:begin])
        at = end
    encoded = tokenizer.encode_as_text(pieces)
    stops = np.cumsum(encoded.lengths)[:-1]
    ids = np.split(encoded.ids, stops)
    joined = []
    for number, own in enumerate(ids):
        joined.append(own)
        if number < len(kept):
            begin, end = kept[number]
            token = tokenizer.special_ids[data[begin:end].decode()]
            joined.append(np.array([token], np.uint32))
    every = np.concatenate(joined)
    # Where the library changed the text there is no place for its tokens.
    places_of = TokenPlaces(tokenizer.bytes_of, tokenizer.vocabulary_size, _none)
    try:
        begins = places_of.of(
            encoded._replace(ids=every, lengths=np.array([len(every)])), [data]
        ).begins
    except _NoPlacesError:
        return None
    return placed._replace(ids=every, begins=begins)


class _NoPlacesError(Exception):
    """The bytes of tokens are not the text."""


def _none(text: bytes, ids: object) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    raise _NoPlacesError
