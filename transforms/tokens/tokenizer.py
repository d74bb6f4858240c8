"""Tokenizers: ids of many texts, end to end, and tokens as text.

A file of tiktoken holds only tokens and their ranks. The pattern that splits text and
the special tokens are in the code that published it, so its encodings are known by the
digest of their ranks, whatever the name of the file.
"""

from __future__ import annotations

import abc
import base64
import codecs
import contextlib
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


# Split text as the publishers do. Possessive quantifiers change no result: with them
# the library is faster, and does not run out of memory.
_R50K = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$"
    r"|\s+(?!\S)|\s"
)
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+"
    rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_END = "<|endoftext|>"


class Encoding(NamedTuple):
    """The parts of an encoding that a file of ranks does not hold.

    Attributes:
        name: Its publisher's name for it.
        sha256: SHA-256 of its published file of ranks.
        pattern: Splits text into the parts that are encoded on their own.
        special_ids: Special tokens by their text.
        vocabulary_size: Upper bound of ids, exclusive.
        fast: The name that gigatoken has for the pattern, or "".
    """

    name: str
    sha256: str
    pattern: str
    special_ids: Mapping[str, int]
    vocabulary_size: int
    fast: str = ""


_KNOWN = (
    Encoding(
        "r50k_base",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        _R50K,
        {_END: 50256},
        50257,
        "gpt2",
    ),
    Encoding(
        "p50k_base",
        "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
        _R50K,
        {_END: 50256},
        50281,
    ),
    Encoding(
        "cl100k_base",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        _CL100K,
        {
            _END: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        100277,
        "gpt4",
    ),
    Encoding(
        "o200k_base",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        _O200K,
        {_END: 199999, "<|endofprompt|>": 200018},
        200019,
        "o200k",
    ),
    # The same file for Llama 3, 3.1, 3.2 and 3.3. These tokens have the same names in
    # all of them; any other can be given by its id.
    Encoding(
        "llama3",
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        _CL100K,
        {
            "<|begin_of_text|>": 128000,
            "<|end_of_text|>": 128001,
            "<|start_header_id|>": 128006,
            "<|end_header_id|>": 128007,
            "<|eot_id|>": 128009,
        },
        128256,
        "gpt4",
    ),
)


def find_encoding(content: bytes, path: str) -> Encoding:
    """Returns the encoding of a file of ranks.

    Raises:
        InputError: Its ranks belong to no known encoding.
    """
    lines = [line for line in content.splitlines() if line]
    digest = hashlib.sha256(b"".join(b"%b\n" % line for line in lines)).hexdigest()
    for encoding in _KNOWN:
        if encoding.sha256 == digest:
            return encoding
    raise InputError(
        "a tiktoken file of ranks that are of no known encoding: it does not say "
        "how text is split",
        where=path,
        expected=f"the ranks of {', '.join(each.name for each in _KNOWN)}",
        got=f"{len(lines):,} ranks, sha256:{digest}",
        cure="give --tokenizer module:function, which makes a tiktoken.Encoding "
        "with its pattern; or the tokenizer.json of the same model",
    )


class TiktokenTokenizer(Tokenizer):
    """A file of ranks, such as `cl100k_base.tiktoken`.

    Raises:
        InputError: Its encoding is not known.
    """

    kind = "tiktoken"
    knows_places = True

    def __init__(self, content: bytes, name: str) -> None:
        import tiktoken

        encoding = find_encoding(content, name)
        lines = map(bytes.split, filter(None, content.splitlines()))
        self._encoding = tiktoken.Encoding(
            encoding.name,
            pat_str=encoding.pattern,
            mergeable_ranks={
                base64.b64decode(token): int(rank) for token, rank in lines
            },
            special_tokens=dict(encoding.special_ids),
        )
        self.library = f"tiktoken {tiktoken.__version__}"
        self.vocabulary_size = encoding.vocabulary_size
        self.special_ids = encoding.special_ids

    def ids_of(self, texts: list[str], *, as_text: bool) -> Iterator[npt.ArrayLike]:
        """Returns the ids of each text."""
        encode = self._encoding.encode_to_numpy
        if as_text:
            return (encode(text, disallowed_special=()) for text in texts)
        return (encode(text, allowed_special="all") for text in texts)

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text."""
        with contextlib.suppress(KeyError):
            return self._encoding.encode_single_token(token)
        return None

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token."""
        with contextlib.suppress(KeyError):
            return self._encoding.decode_single_token_bytes(token)
        return None
