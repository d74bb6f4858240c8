"""The fast path of a tokenizer: gigatoken, which reads the same files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import gigatoken

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.pack_options import SpecialText
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    IdArray,
    SpecialTexts,
    Tokenizer,
    add_ends,
    end_to_end,
)


class GigatokenEncoder:
    """Tokens by gigatoken; see `Encoder`.

    Texts with special tokens that one of both finds in texts, and the other does not,
    are left to the tokenizer.

    Args:
        kind: Kind of the tokenizer.
        content: Its file.
        name: Name of the file, for messages.
        tokenizer: The tokenizer.
        special_text: What text becomes that looks like a special token.

    Raises:
        InputError: There is no fast path for it.
    """

    def __init__(
        self,
        kind: str,
        content: bytes,
        name: str,
        tokenizer: Tokenizer,
        special_text: SpecialText,
    ) -> None:
        try:
            self._backend = _backend(kind, content, name)
        except Exception as e:  # The library raises RuntimeError and others.
            lines = str(e).split("\n")
            raise InputError(
                "there is no fast path for this tokenizer",
                where=name,
                expected="one that gigatoken can do",
                got=lines[0] or type(e).__name__,
                cure="leave out --fast",
            ) from e
        self._tokenizer = tokenizer
        # Of these files, gigatoken makes tokens of such text.
        makes_tokens = kind in ("huggingface", "sentencepiece")
        differs = makes_tokens == (special_text == "text")
        self._special = SpecialTexts(tokenizer.special_ids if differs else ())
        self.library = f"gigatoken {importlib.metadata.version('gigatoken')}"

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts."""
        # One call per text is as fast as a batch, runs on this thread, and does not
        # import `awkward`, which takes a tenth of a second in every worker.
        some = self._special.count(b"\n".join(texts)) > 0
        ids = self._encode_all if some else self._backend.encode
        return add_ends(end_to_end(map(ids, texts)), self._tokenizer.own_ends)

    def _encode_all(self, text: bytes) -> IdArray:
        if self._special.count(text):
            return self._tokenizer.encode([text]).ids
        found: IdArray = self._backend.encode(text)
        return found


def _backend(kind: str, content: bytes, name: str) -> Any:
    if kind == "huggingface":
        # Read, but not heeded.
        for token in json.loads(content).get("added_tokens") or ():
            if token.get("single_word"):
                raise ValueError(f"the token {token['content']!r} of single_word")
        return gigatoken.Tokenizer.from_json(content)
    if kind == "sentencepiece":
        return gigatoken.Tokenizer.from_sentencepiece(content)
    if kind != "tiktoken":
        raise ValueError(f"a tokenizer of kind {kind}")
    from gristmill.transforms.tokens.tokenizers.tiktoken_ranks import find_encoding

    encoding = find_encoding(content, name)
    if not encoding.fast:
        raise ValueError(f"the encoding {encoding.name}")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "ranks.tiktoken")
        with open(path, "wb") as file:
            file.write(content)
        # Without special tokens: a lookalike in a text is text.
        return gigatoken.Tokenizer.from_tiktoken(path, encoding.fast, {})
