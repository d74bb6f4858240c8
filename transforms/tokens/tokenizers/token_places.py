"""The places of tokens in their texts, proved by the bytes of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    IdArray,
    LengthArray,
    Tokenizer,
)

Begins = npt.NDArray[np.int64]

LibraryBegins = Callable[[bytes, IdArray], Begins]
"""Returns where the tokens of a text begin, as a library says."""


class PlacedTokens(NamedTuple):
    """Texts as tokens, with the places of these.

    Attributes:
        ids: uint32 [tokens], those of one text after the other.
        lengths: int64 [texts], tokens of each.
        begins: int64 [tokens], the byte of its own text at which each begins.
    """

    ids: IdArray
    lengths: LengthArray
    begins: Begins


class PlacingTokenizer(Tokenizer, Protocol):
    """A tokenizer that knows where its tokens are in a text."""

    def encode_with_offsets(self, texts: Sequence[bytes]) -> PlacedTokens:
        """Returns the tokens of texts; the text of a special token becomes it.

        Nothing is added to a text.
        """

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token; see `TokenBytes`."""

    def encode_as_text(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts; the text of a special token stays text."""


class TokenPlaces:
    """Finds the places of tokens.

    Where the bytes of the tokens of a text, one after the other, are the text, they are
    the places. Where they are not, as a tokenizer changed the text, the library tells.

    Args:
        bytes_of: Returns the bytes of a token, None if there is no such token.
        vocabulary_size: Upper bound of ids, exclusive.
        library_begins: Tells places of tokens where their bytes do not.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes | None],
        vocabulary_size: int,
        library_begins: LibraryBegins,
    ) -> None:
        self._bytes_of = bytes_of
        self._known: dict[int, bytes] = {}
        self._sizes = np.zeros(vocabulary_size, np.int64)
        self._is_known = np.zeros(vocabulary_size, np.bool_)
        self._library_begins = library_begins

    def of(self, encoded: Encoded, texts: Sequence[bytes]) -> PlacedTokens:
        """Returns the tokens of texts with their places."""
        ids, lengths = encoded
        for token in np.unique(ids[~self._is_known[ids]]).tolist():
            self._known[token] = self._bytes_of(token) or b""
            self._sizes[token] = len(self._known[token])
            self._is_known[token] = True
        sizes = self._sizes[ids]
        ends = np.cumsum(sizes)
        stops = np.cumsum(lengths)
        starts = stops - lengths
        begins = ends - sizes
        first = np.zeros(len(lengths), np.int64)
        filled = lengths > 0
        first[filled] = begins[starts[filled]]
        begins -= np.repeat(first, lengths)
        said = list(map(self._known.__getitem__, ids.tolist()))
        if b"".join(said) != b"".join(texts) or not self._fits(sizes, lengths, texts):
            for text, start, stop in zip(
                texts, starts.tolist(), stops.tolist(), strict=True
            ):
                if b"".join(said[start:stop]) != text:
                    own = ids[start:stop]
                    begins[start:stop] = self._library_begins(text, own)
        return PlacedTokens(ids, lengths, begins)

    @staticmethod
    def _fits(
        sizes: npt.NDArray[np.int64], lengths: LengthArray, texts: Sequence[bytes]
    ) -> bool:
        """Returns whether the tokens of each text have the size of it."""
        total = np.concatenate([[0], np.cumsum(sizes)])
        stops = np.cumsum(lengths)
        found = total[stops] - total[stops - lengths]
        sizes_bytes: list[int] = found.tolist()
        return sizes_bytes == list(map(len, texts))


def byte_begins(text: str, offsets: Sequence[int]) -> Begins:
    """Returns the bytes at which characters of a text begin.

    Args:
        text: The text.
        offsets: Numbers of characters, in order or not.
    """
    chars = np.asarray(offsets, np.int64)
    if text.isascii():
        return chars
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    sizes = 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return starts[chars]


def no_places(library: str, text: bytes) -> InputError:
    """Returns the error for a text whose tokens have no places."""
    return InputError(
        "the tokens of a text do not say where they are in it",
        expected="tokens whose bytes are the text, or offsets by the library",
        got=f"{library}, and a text of {len(text):,} bytes",
        cure="give the tokenizer.json of the model",
    )
