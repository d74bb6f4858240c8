"""The interface of tokenizers: ids of many texts, end to end."""

from __future__ import annotations

import abc
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError

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


class PlacedTokens(NamedTuple):
    """Texts as tokens, with the places of these.

    Attributes:
        ids: uint32 [tokens], those of one text after the other.
        lengths: int64 [texts], tokens of each.
        begins: int64 [tokens], the byte of its own text at which each begins.
    """

    ids: IdArray
    lengths: LengthArray
    begins: LengthArray


class Encoder(Protocol):
    """Makes tokens of texts.

    Attributes:
        library: The library in use, and its version.
    """

    library: str

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts in UTF-8, on the thread that calls."""


class Tokenizer(abc.ABC):
    """A tokenizer of some library.

    Attributes:
        kind: Kind of the tokenizer, as in `TokenizerSpec`.
        library: The library in use, and its version.
        vocabulary_size: Upper bound of ids, exclusive.
        special_ids: Its special tokens, and the id of each.
        own_ends: Special tokens that `encode` adds to every text that has a token.
        unknown_id: The token of text that the vocabulary does not have, if any.
        knows_places: Whether it knows where tokens are in a text, and makes special
            tokens of their texts if asked to.
    """

    kind: str
    library: str
    vocabulary_size: int
    special_ids: Mapping[str, int]
    own_ends = Ends()
    unknown_id: int | None = None
    knows_places = False

    @abc.abstractmethod
    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts in UTF-8, on the thread that calls."""

    @abc.abstractmethod
    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text, None if there is no such token."""

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token, None if there is no such token.

        For a token that is not text, such as the end of a document, returns its name.
        """
        raise NotImplementedError

    def encode_plain(self, texts: Sequence[bytes], *, as_text: bool) -> Encoded:
        """Returns the tokens of texts, to which nothing is added.

        Args:
            texts: The texts, in UTF-8.
            as_text: Whether the text of a special token stays text.
        """
        raise NotImplementedError

    def library_begins(self, text: bytes, ids: IdArray) -> LengthArray:
        """Returns where the tokens of a text begin, as the library says.

        Raises:
            InputError: It does not say.
        """
        raise InputError(
            "the tokens of a text do not say where they are in it",
            expected="tokens whose bytes are the text, or offsets by the library",
            got=f"{self.library}: {len(ids):,} tokens of {len(text):,} bytes",
            cure="give the tokenizer.json of the model",
        )

    @functools.cached_property
    def _token_bytes(self) -> dict[int, bytes]:
        return {}

    @functools.cached_property
    def _token_sizes(self) -> LengthArray:
        return np.full(self.vocabulary_size, -1)

    def placed(self, encoded: Encoded, texts: Sequence[bytes]) -> PlacedTokens:
        """Returns the tokens of texts with their places.

        Where the bytes of the tokens of a text, one after the other, are the text, they
        are the places. Where they are not, as a tokenizer changed the text, the library
        tells.
        """
        ids, lengths = encoded
        known, known_sizes = self._token_bytes, self._token_sizes
        for token in np.unique(ids[known_sizes[ids] < 0]).tolist():
            known[token] = self.bytes_of(token) or b""
            known_sizes[token] = len(known[token])
        sizes = known_sizes[ids]
        stops = np.cumsum(lengths)
        before = np.append(0, np.cumsum(sizes))
        own = before[stops - lengths]
        begins = before[:-1] - np.repeat(own, lengths)
        said = list(map(known.__getitem__, ids.tolist()))
        whole = [*map(len, texts)] == (before[stops] - own).tolist()
        if not whole or b"".join(said) != b"".join(texts):
            starts = (stops - lengths).tolist()
            for text, start, stop in zip(texts, starts, stops.tolist(), strict=True):
                if b"".join(said[start:stop]) != text:
                    begins[start:stop] = self.library_begins(text, ids[start:stop])
        return PlacedTokens(ids, lengths, begins)


_HEAD_BYTES = 3


class SpecialTexts:
    """Counts the texts of special tokens in documents.

    Args:
        texts: The texts of the special tokens.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = sorted((text.encode() for text in texts if text), key=len)
        self._pattern = re.compile(b"|".join(map(re.escape, reversed(encoded))))
        # Most documents have none of their first bytes: that is quick to see.
        self._heads = {text[:_HEAD_BYTES] for text in encoded}

    def count(self, text: bytes) -> int:
        """Returns how many a text has."""
        if not any(head in text for head in self._heads):
            return 0
        return sum(1 for _ in self._pattern.finditer(text))


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
