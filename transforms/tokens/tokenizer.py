"""Tokenizers: ids of many texts, end to end, and tokens as text."""

from __future__ import annotations

import abc
import codecs
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError

IdArray = npt.NDArray[np.uint32]
LengthArray = npt.NDArray[np.int64]

PlaceOf = Callable[[int], str]
"""Returns the place of a text, by its number."""


class Encoded(NamedTuple):
    """Texts as tokens.

    Attributes:
        ids: uint32 [tokens], of all texts end to end.
        lengths: int64 [texts], tokens of each.
    """

    ids: IdArray
    lengths: LengthArray


class Ends(NamedTuple):
    """Tokens to add before and after every text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Number of these tokens."""
        return len(self.before) + len(self.after)


class Tokenizer(abc.ABC):
    """A tokenizer of any library.

    Attributes:
        kind: Kind of the tokenizer, as in `TokenizerSpec`.
        name: Its file, or its function.
        digest: The digest of its file or function.
        library: The library in use, with its version.
        vocabulary_size: Upper bound of ids, exclusive.
        special_ids: Ids of its special tokens, by their text.
        unknown_id: The token for text outside the vocabulary, if any.
        knows_places: Whether it knows the places of tokens in a text, and can make
            special tokens from their texts.
    """

    kind: str
    name: str
    digest: str
    library: str
    vocabulary_size: int
    special_ids: Mapping[str, int]
    unknown_id: int | None = None
    knows_places = False

    @abc.abstractmethod
    def ids_of(self, texts: list[str], *, as_text: bool) -> Iterable[npt.ArrayLike]:
        """Returns the ids of each text, on the calling thread; see `encode`."""

    @abc.abstractmethod
    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text, None if there is no such token."""

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token, None if there is no such token.

        For a token that is not text, such as the end of a document, returns its name.
        """
        raise NotImplementedError

    def own_ends(self) -> Ends:
        """Returns the special tokens that `--add-special-tokens` adds to every text.

        Raises:
            InputError: It has none.
        """
        raise InputError(
            "--add-special-tokens is for a tokenizer.json, which says what to add",
            where=self.name,
            got=f"a tokenizer of kind {self.kind}",
            cure="leave it out, and name the tokens with --bos and --eos",
        )

    def encode(self, texts: Sequence[bytes], *, as_text: bool = True) -> Encoded:
        """Returns the tokens of texts, without added ones.

        Args:
            texts: The texts, in UTF-8.
            as_text: Whether the text of a special token stays text.
        """
        return end_to_end(self.ids_of([t.decode() for t in texts], as_text=as_text))

    def library_begins(self, text: bytes, ids: IdArray) -> LengthArray:
        """Returns the starts of the tokens of a text, from the library.

        Raises:
            InputError: The library does not know them.
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

    def begins(self, encoded: Encoded, texts: Sequence[bytes]) -> LengthArray:
        """Returns the byte of its own text at which each token begins: int64 [tokens].

        If the bytes of a text's tokens are the text itself, they show the places; if
        the tokenizer changed the text, the library does.
        """
        ids, lengths = encoded
        known, known_sizes = self._token_bytes, self._token_sizes
        for token in np.unique(ids[known_sizes[ids] < 0]).tolist():
            known[token] = self.bytes_of(token) or b""
            known_sizes[token] = len(known[token])
        stops = np.cumsum(lengths)
        before = np.append(0, np.cumsum(known_sizes[ids]))
        own = before[stops - lengths]
        begins: LengthArray = before[:-1] - np.repeat(own, lengths)
        said = list(map(known.__getitem__, ids.tolist()))
        whole = [*map(len, texts)] == (before[stops] - own).tolist()
        if not whole or b"".join(said) != b"".join(texts):
            starts = (stops - lengths).tolist()
            for text, start, stop in zip(texts, starts, stops.tolist(), strict=True):
                if b"".join(said[start:stop]) != text:
                    begins[start:stop] = self.library_begins(text, ids[start:stop])
        return begins

    def check_packed(self, packed: Mapping[str, Any] | None, where: str) -> None:
        """Checks that this is the tokenizer of the rows of a split.

        Args:
            packed: The description of the rows in `dataset.json`; None for other
                records.
            where: The dataset, for messages.

        Raises:
            InputError: It is another one, whose texts would be nonsense.
        """
        packed_with = (packed or {}).get("tokenizer")
        if packed_with and packed_with != self.digest:
            raise InputError(
                "the rows were packed with another tokenizer",
                where=where,
                expected=f"a tokenizer with the digest {packed_with}",
                got=f"{self.name}, {self.digest}",
                cure="give that tokenizer, or leave out --tokenizer to see ids",
            )

    def decode(self, ids: Sequence[int]) -> str:
        """Returns consecutive tokens as one text, unknown ones as their id in <>."""
        texts = zip(ids, self.texts(ids), strict=True)
        return "".join(f"<{n}>" if text is None else text for n, text in texts)

    def texts(self, ids: Sequence[int]) -> list[str | None]:
        """Returns the text of each of consecutive tokens, None for unknown ones.

        A character of several tokens belongs to the last of them; the others get "".
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found: list[str | None] = []
        for data in (*map(self.bytes_of, ids), None):
            if data is not None:
                found.append(decoder.decode(data))
                continue
            if (rest := decoder.decode(b"", final=True)) and found:
                found[-1] = (found[-1] or "") + rest
            decoder.reset()
            found.append(None)
        return found[:-1]


_HEAD_BYTES = 3


class SpecialTexts:
    """Counts the texts of special tokens in documents.

    Args:
        texts: The texts of the special tokens.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = sorted((text.encode() for text in texts if text), key=len)
        self._pattern = re.compile(b"|".join(map(re.escape, reversed(encoded))))
        # Most documents have none of their first bytes, which is a fast check.
        self._heads = {text[:_HEAD_BYTES] for text in encoded}

    def count(self, text: bytes) -> int:
        """Returns the number of them in a text."""
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
    stops = np.cumsum(lengths)[filled]
    starts = stops - lengths[filled]
    # Where one text ends and the next begins, the tokens listed first come first.
    places = np.repeat(stops, len(ends.after)), np.repeat(starts, len(ends.before))
    added = np.tile(ends.after, len(stops)), np.tile(ends.before, len(stops))
    ids = np.insert(ids, np.concatenate(places), np.concatenate(added))
    return Encoded(ids, lengths + ends.tokens * filled)
