"""Tokenizers of several libraries, each with the same few methods."""

from __future__ import annotations

from gristmill.transforms.tokens.tokenizers.load import (
    find_tokenizer,
    is_function,
    load_fast,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizers.tokenizer import Encoded, Encoder, Tokenizer

__all__ = [
    "Encoded",
    "Encoder",
    "Tokenizer",
    "find_tokenizer",
    "is_function",
    "load_fast",
    "load_tokenizer",
]
