"""Tokenizers of Hugging Face: a `tokenizer.json`."""

from __future__ import annotations

import array
import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tokenizers

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    Ends,
    IdArray,
    LengthArray,
    Tokenizer,
    without_ends_alone,
)

# Texts encoded at once: the library's result takes about a hundred bytes a token.
_GROUP_BYTES = 256 << 10


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`.

    Its limits of length and its padding are switched off: they are for models, and
    would silently cut off texts.

    Raises:
        InputError: It draws tokens at random, or adds none where it is asked to.
        ValueError: The library cannot read the file.
    """

    kind = "huggingface"
    knows_places = True

    def __init__(self, content: bytes, name: str, options: PackOptions) -> None:
        # The library reads this before each batch. There are as many worker processes
        # as cores.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._content = content
        self._tokenizer = self._parsed()
        self._adds = options.add_special_tokens
        self._as_text = options.special_text == "text"
        self.library = f"tokenizers {tokenizers.__version__}"
        # Only models of BPE have it.
        if dropout := getattr(self._tokenizer.model, "dropout", None):
            raise InputError(
                "the tokenizer draws tokens at random: each run would give other rows",
                where=name,
                expected='"dropout": null in its "model"',
                got=f"{dropout:g}",
                cure="set it to null in a copy of the file",
            )
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary_size = max(ids, default=-1) + 1
        self._added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = {
            token.content: number
            for number, token in self._added.items()
            if token.special
        }
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self.id_of(unknown)
        if self._adds:
            self.own_ends = self._own_ends()

    def _parsed(self, **changes: object) -> tokenizers.Tokenizer:
        """Returns the tokenizer of the file, with some of its fields changed."""
        content = self._content
        if changes:
            content = json.dumps(json.loads(content) | changes).encode()
        try:
            tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as e:  # The library raises this class itself.
            raise ValueError(str(e)) from e
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def _own_ends(self) -> Ends:
        found = self._tokenizer.encode("a")
        mask = found.special_tokens_mask
        if not any(mask):
            raise InputError(
                "--add-special-tokens has no effect: the tokenizer adds none",
                expected="a tokenizer.json with a post-processor that adds some",
                cure="leave it out, or name the tokens with --bos and --eos",
            )
        before = len(list(itertools.takewhile(bool, mask)))
        after = sum(mask) - before
        return Ends(tuple(found.ids[:before]), tuple(found.ids[len(mask) - after :]))

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts."""
        encoded = self.encode_plain(texts, as_text=self._as_text, adds=self._adds)
        return without_ends_alone(encoded, self.own_ends)

    def encode_plain(
        self, texts: Sequence[bytes], *, as_text: bool, adds: bool = False
    ) -> Encoded:
        """Returns the tokens of texts; see `Tokenizer`.

        Args:
            texts: As there.
            as_text: As there.
            adds: Whether the post-processor adds its special tokens.
        """
        tokenizer = self._without_special if as_text else self._tokenizer
        # Lists become an array in a fifth of the time that numpy takes.
        ids, lengths = array.array("I"), array.array("q")
        for group in _groups(texts):
            for encoding in tokenizer.encode_batch_fast(group, add_special_tokens=adds):
                found = encoding.ids
                ids.fromlist(found)
                lengths.append(len(found))
        return Encoded(np.array(ids, np.uint32), np.array(lengths, np.int64))

    @functools.cached_property
    def _without_special(self) -> tokenizers.Tokenizer:
        other = self._parsed()
        other.encode_special_tokens = True
        return other

    @functools.cached_property
    def _with_whole_offsets(self) -> tokenizers.Tokenizer:
        """The tokenizer without the step that takes white space out of offsets."""
        return self._parsed(post_processor=None)

    def library_begins(self, text: bytes, ids: IdArray) -> LengthArray:
        """Returns where the tokens of a text begin; see `Tokenizer`."""
        decoded = text.decode()
        found = self._with_whole_offsets.encode(decoded, add_special_tokens=False)
        # Bytes at which characters begin, and the end.
        data = np.frombuffer(text, np.uint8)
        starts = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))
        begins = starts[np.array([begin for begin, _ in found.offsets], np.int64)]
        if found.ids != ids.tolist() or (np.diff(begins, prepend=0) < 0).any():
            return super().library_begins(text, ids)
        return begins

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text."""
        return self._tokenizer.token_to_id(token)

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        """Whether the letters of its tokens stand for bytes."""
        parts = self._tokenizer.decoder, self._tokenizer.pre_tokenizer
        return any(
            part is not None and _has_byte_level(json.loads(part.__getstate__()))
            for part in parts
        )

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._added:
            return None if piece is None else piece.encode()
        if self._is_byte_level and all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        if _BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:-1])
        return piece.replace("\u2581", " ").encode()


def _byte_of_letters() -> dict[str, int]:
    """Returns the byte that each letter of a byte-level vocabulary stands for.

    Printable ones stand for themselves, and the others follow from U+0100 on. Source:
    `bytes_to_unicode` in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = _byte_of_letters()
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # For models with byte_fallback.


def _has_byte_level(fields: Any) -> bool:
    """Returns whether a decoder or pre-tokenizer of a file is a byte-level one."""
    if isinstance(fields, dict):
        return fields.get("type") == "ByteLevel" or any(
            map(_has_byte_level, fields.values())
        )
    return isinstance(fields, list) and any(map(_has_byte_level, fields))


def _groups(texts: Sequence[bytes]) -> Iterator[list[str]]:
    group: list[str] = []
    size_bytes = 0
    for text in texts:
        group.append(text.decode())
        size_bytes += len(text)
        if size_bytes >= _GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group
