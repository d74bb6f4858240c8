"""Tokenizers of tiktoken: a file of ranks.

Such a file holds only tokens and their ranks. The pattern that splits text and the
special tokens are in the code that published it, so encodings are known by the digest
of their ranks, whatever the file's name.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.tokens.tokenizer import Tokenizer

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
