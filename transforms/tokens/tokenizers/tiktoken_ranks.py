"""Tokenizers of tiktoken: a file of ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import tiktoken

from gristmill.transforms.jobs.pack_options import SpecialText
from gristmill.transforms.tokens.tokenizers.rank_files import find_encoding, ranks_of
from gristmill.transforms.tokens.tokenizers.token_places import (
    Begins,
    PlacedTokens,
    TokenPlaces,
    no_places,
)
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    Ends,
    IdArray,
    Tokenizer,
    end_to_end,
)


class TiktokenTokenizer:
    """A file of ranks, such as `cl100k_base.tiktoken`; see `Tokenizer`.

    Args:
        content: The file.
        path: Its name, for messages.
        special_text: What text becomes that looks like a special token; `text` is
            `encode_ordinary`.

    Raises:
        InputError: Its encoding is not known.
        ValueError: It is not a file of ranks.
    """

    own_ends = Ends()

    unknown_id: int | None = None

    def __init__(
        self, content: bytes, path: str, *, special_text: SpecialText = "text"
    ) -> None:
        self._as_tokens = special_text == "token"
        encoding = find_encoding(content, path)
        self._encoding = tiktoken.Encoding(
            encoding.name,
            pat_str=encoding.pattern,
            mergeable_ranks=ranks_of(content),
            special_tokens=dict(encoding.special_ids),
        )
        self.library = f"tiktoken {tiktoken.__version__}"
        self.vocabulary_size = encoding.vocabulary_size
        self.special_ids: Mapping[str, int] = encoding.special_ids

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts."""
        return self._encoded(texts) if self._as_tokens else self.encode_as_text(texts)

    def encode_as_text(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts; see `PlacingTokenizer`."""
        encode = self._encoding.encode_to_numpy
        return end_to_end(
            encode(text.decode(), disallowed_special=()) for text in texts
        )

    def _encoded(self, texts: Sequence[bytes]) -> Encoded:
        encode = self._encoding.encode_to_numpy
        return end_to_end(
            encode(text.decode(), allowed_special="all") for text in texts
        )

    def encode_with_offsets(self, texts: Sequence[bytes]) -> PlacedTokens:
        """Returns the tokens of texts; see `PlacingTokenizer`."""
        return self._places.of(self._encoded(texts), texts)

    @functools.cached_property
    def _places(self) -> TokenPlaces:
        return TokenPlaces(self.bytes_of, self.vocabulary_size, self._library_begins)

    def _library_begins(self, text: bytes, ids: IdArray) -> Begins:
        del ids
        raise no_places(self.library, text)

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text."""
        try:
            return self._encoding.encode_single_token(token)
        except KeyError:
            return None

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token; see `TokenBytes`."""
        try:
            return self._encoding.decode_single_token_bytes(token)
        except KeyError:
            return None


def make(
    content: bytes, name: str, *, add_special_tokens: bool, special_text: SpecialText
) -> Tokenizer:
    """Returns the tokenizer of a file."""
    del add_special_tokens
    return TiktokenTokenizer(content, name, special_text=special_text)
