"""The interface of tokenizers: ids of many texts, end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.uint32]
LengthArray = npt.NDArray[np.int64]

PlaceOf = Callable[[int], str]
"""Returns where a text is, by its place among several."""


class Encoded(NamedTuple):
    """Texts as tokens.

    Attributes:
        ids: uint32 [tokens], those of one text after the other.
        lengths: int64 [texts], tokens of each.
    """

    ids: IdArray
    lengths: LengthArray


class Ends(NamedTuple):
    """Tokens that go before and after every text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of these tokens."""
        return len(self.before) + len(self.after)


class Encoder(Protocol):
    """Makes tokens of texts.

    Attributes:
        library: The library in use, and its version.
    """

    library: str

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts in UTF-8, on the thread that calls."""


class Tokenizer(Encoder, Protocol):
    """A tokenizer of some library.

    Attributes:
        vocabulary_size: Upper bound of ids, exclusive.
        special_ids: Its special tokens, and the id of each.
        own_ends: Special tokens that `encode` adds to every text that has a token.
        unknown_id: The token of text that the vocabulary does not have, if any.
    """

    vocabulary_size: int
    unknown_id: int | None
    special_ids: Mapping[str, int]
    own_ends: Ends

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text, None if there is no such token."""


class TokenBytes(Protocol):
    """A tokenizer of a file: it also knows the bytes of a token."""

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token, None if there is no such token.

        For a token that is not text, such as the end of a document, returns its name.
        """


def end_to_end(arrays: Iterable[npt.ArrayLike]) -> Encoded:
    """Returns the ids of many texts, given one text at a time."""
    parts = [np.asarray(ids, np.uint32) for ids in arrays]
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return Encoded(np.concatenate(parts) if parts else np.empty(0, np.uint32), lengths)


def add_ends(encoded: Encoded, ends: Ends) -> Encoded:
    """Adds tokens before and after every text that has a token."""
    if not ends.tokens:
        return encoded
    ids, lengths = encoded
    filled = lengths > 0
    longer = lengths + ends.tokens * filled
    stops = np.cumsum(longer)
    starts = (stops - longer)[filled]
    result = np.empty(int(stops[-1]) if len(stops) else 0, np.uint32)
    own = np.ones(len(result), bool)
    for number, token in enumerate(ends.before):
        result[starts + number] = token
        own[starts + number] = False
    for number, token in enumerate(reversed(ends.after), 1):
        result[stops[filled] - number] = token
        own[stops[filled] - number] = False
    result[own] = ids
    return Encoded(result, longer)


def without_ends_alone(encoded: Encoded, ends: Ends) -> Encoded:
    """Removes the added tokens from texts without other tokens."""
    empty = encoded.lengths == ends.tokens
    if not ends.tokens or not empty.any():
        return encoded
    kept = encoded.ids[np.repeat(~empty, encoded.lengths)]
    return Encoded(kept, np.where(empty, 0, encoded.lengths))
