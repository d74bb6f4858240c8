"""The kind of a tokenizer's file, by its content."""

from __future__ import annotations

import contextlib
import json
import re

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.base.protobuf import message_fields
from gristmill.dataset.formats.file_formats import HEAD_BYTES, format_of
from gristmill.dataset.metadata.layout import join
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.tokens.tokenizers.rank_files import is_rank_file

_MOST_BYTES = 1 << 30
# Not the token "model" of a vocabulary, whose value is a number.
_MODEL = re.compile(rb'"model"\s*:\s*\{')
_EXPECTED = (
    "a tokenizer.json of Hugging Face, a .model of SentencePiece, a .tiktoken file of "
    "ranks, or module:function"
)


def read_content(path: str) -> bytes:
    """Returns the file of a tokenizer, local or in a bucket.

    Raises:
        InputError: It is missing, a directory, or too large for a tokenizer.
    """
    storage = storage_for(path)
    inside = join(path, "tokenizer.json")
    if storage.stat(inside) is not None:
        raise InputError(
            "--tokenizer is a directory",
            where=path,
            expected="a file",
            cure=f"give {inside}",
        )
    found = storage.stat(path)
    if found is None:
        raise InputError(
            "there is no such tokenizer",
            where=path,
            expected=_EXPECTED,
            cure="check the path; nothing is downloaded by name",
        )
    if found.size_bytes > _MOST_BYTES:
        raise InputError(
            "not the file of a tokenizer: it is too large",
            where=path,
            expected=f"at most {_MOST_BYTES:,} bytes",
            got=f"{found.size_bytes:,}",
            cure="check the path",
        )
    return storage.read(path)


def kind_of(content: bytes, path: str) -> str:
    """Returns `huggingface`, `sentencepiece` or `tiktoken`.

    Raises:
        InputError: It is of another kind.
    """
    if is_rank_file(content):
        return "tiktoken"
    if _is_sentence_piece(content):
        return "sentencepiece"
    known = format_of(content[:HEAD_BYTES])
    got = f"{known.name}" if known else f"bytes that begin with {content[:16]!r}"
    cure = "check the path"
    if content.lstrip()[:1] == b"{":
        if _MODEL.search(content):
            return "huggingface"
        with contextlib.suppress(ValueError, RecursionError):
            got = f"JSON with the fields {some_of(json.loads(content), 4)}"
        cure = "give the file tokenizer.json, which is usually beside it"
    elif content.startswith(b"version https://git-lfs"):
        got = "a pointer of Git LFS, in place of the file"
        cure = "fetch the file: git lfs pull"
    raise InputError(
        "not the file of a tokenizer",
        where=path,
        expected=_EXPECTED,
        got=got,
        cure=cure,
    )


def _is_sentence_piece(content: bytes) -> bool:
    """Returns whether a file begins with a piece: its text and its float score."""
    try:
        number, _, piece = next(message_fields(content))
        wires = {field: wire for field, wire, _ in message_fields(piece)}
    except (StopIteration, IndexError, ValueError):
        return False
    return number == 1 and wires.get(1) == 2 and wires.get(2) == 5
