"""The fast path of a tokenizer: gigatoken, which reads the same files."""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import gigatoken

from gristmill.dataset.errors import InputError
from gristmill.transforms.tokens.tokenizers.protocol import (
    Encoded,
    Encoder,
    Ends,
    add_ends,
    end_to_end,
)
from gristmill.transforms.tokens.tokenizers.rank_files import find_encoding


class GigatokenEncoder:
    """Tokens by gigatoken; see `Encoder`.

    Args:
        backend: The tokenizer, with `encode`.
        ends: Tokens that the tokenizer's own library adds to every text.
    """

    def __init__(self, backend: Any, ends: Ends) -> None:
        self._backend, self._ends = backend, ends
        self.library = f"gigatoken {importlib.metadata.version('gigatoken')}"

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts."""
        # One by one is as fast as a batch, runs on this thread, and does not import
        # `awkward`, which takes a tenth of a second in every worker.
        encoded = end_to_end(map(self._backend.encode, texts))
        return add_ends(encoded, self._ends)


def make(kind: str, content: bytes, name: str, *, ends: Ends) -> Encoder:
    """Returns the fast path of a tokenizer.

    Args:
        kind: Of the tokenizer.
        content: Its file.
        name: Of the file, for messages.
        ends: Tokens that it adds to every text.

    Raises:
        InputError: There is no fast path for it.
    """
    try:
        backend = _backend(kind, content, name)
    except Exception as e:  # The library raises RuntimeError and others.
        lines = str(e).split("\n")
        raise InputError(
            "there is no fast path for this tokenizer",
            where=name,
            expected="one that gigatoken can do",
            got=lines[0] or type(e).__name__,
            cure="leave out --fast",
        ) from e
    return GigatokenEncoder(backend, ends)


def _backend(kind: str, content: bytes, name: str) -> Any:
    if kind == "huggingface":
        return gigatoken.Tokenizer.from_json(content)
    if kind == "sentencepiece":
        return gigatoken.Tokenizer.from_sentencepiece(content)
    if kind != "tiktoken":
        raise ValueError(f"a tokenizer of kind {kind}")
    encoding = find_encoding(content, name)
    if not encoding.fast:
        raise ValueError(f"the encoding {encoding.name}")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "ranks.tiktoken")
        with open(path, "wb") as file:
            file.write(content)
        # Without special tokens: what looks like one in a text is text.
        return gigatoken.Tokenizer.from_tiktoken(path, encoding.fast, {})
