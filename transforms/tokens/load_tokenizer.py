"""The tokenizer of a job: found by planning, created once per process."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from gristmill.dataset.base.errors import InputError, MissingPackageError, some_of
from gristmill.dataset.base.varints import message_fields
from gristmill.dataset.formats.file_formats import HEAD_BYTES, format_of
from gristmill.dataset.metadata.layout import join
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.functions.user_functions import code_digest
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.tokenizer import Ends, TiktokenTokenizer, Tokenizer
from gristmill.transforms.tokens.tokenizer_libraries import (
    FunctionTokenizer,
    GigatokenEncoder,
    HuggingFaceTokenizer,
    SentencePieceTokenizer,
)

_MOST_BYTES = 1 << 30
# Not the token "model" of a vocabulary, whose value is a number.
_MODEL = re.compile(rb'"model"\s*:\s*\{')
_EXPECTED = (
    "a tokenizer.json of Hugging Face, a .model of SentencePiece, a .tiktoken file of "
    "ranks, or module:function"
)
# The first line of a file of ranks: a base64 token, a number.
_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


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
            got="no such file, nor one named tokenizer.json in a directory",
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
    if _RANK.match(content):
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
        if content.lstrip()[:2] in (b"{%", b"{{", b"{#"):
            got = "a template of Jinja"
            cure += "; the template of conversations is --template"
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


_CLASSES: dict[str, Callable[[bytes, str], Tokenizer]] = {
    "huggingface": HuggingFaceTokenizer,
    "sentencepiece": SentencePieceTokenizer,
    "tiktoken": TiktokenTokenizer,
    "function": FunctionTokenizer,
}


def is_function(tokenizer: str) -> bool:
    """Returns whether a tokenizer is given as `module:function`, not as a file.

    >>> is_function("my.module:encode"), is_function("gs://bucket/tokenizer.json")
    (True, False)
    """
    module, colon, name = tokenizer.partition(":")
    parts = (*module.split("."), *name.split("."))
    return bool(colon) and all(map(str.isidentifier, parts))


def load_tokenizer(options: PackOptions) -> Tokenizer:
    """Returns the tokenizer of a job, made at the first call in a process.

    Args:
        options: Options with a tokenizer.

    Raises:
        InputError: It is not the one that was found when the job was planned, or cannot
            be used.
        MissingPackageError: Its library is not installed.
        StorageError: Its file cannot be read.
    """
    tokenizer = _tokenizer(*_name_and_digest(options))
    if options.special_text == "token" and not tokenizer.knows_places:
        raise InputError(
            "--special-text token is for tokenizers that make such tokens of text",
            where=tokenizer.name,
            expected="a tokenizer.json, or a tiktoken file",
            got=f"a tokenizer of kind {tokenizer.kind}",
            cure="leave it out: such text stays text",
        )
    if options.found is not None:
        _check_library(tokenizer.library, options.found.library)
    return tokenizer


def load_fast(options: PackOptions) -> GigatokenEncoder:
    """Returns the fast path of the tokenizer of a job, also created once per process.

    Raises:
        InputError: It has no fast path, or another than planning found.
        MissingPackageError: The library is not installed.
        StorageError: Its file cannot be read.
    """
    as_text = options.special_text == "text"
    fast = _fast(*_name_and_digest(options), as_text)
    if options.found is not None:
        _check_library(fast.library, options.found.fast_library)
    return fast


def load_texts(name: str) -> Tokenizer:
    """Returns a tokenizer that shows tokens as text.

    Raises:
        InputError: It cannot be used, or is a function, which only makes tokens.
        MissingPackageError: Its library is not installed.
        StorageError: The file cannot be read.
    """
    if is_function(name):
        raise InputError(
            "a tokenizer function cannot turn tokens back into text",
            expected="the file of a tokenizer",
            got=f"--tokenizer {name}",
            cure="leave it out: tokens are shown as ids then",
        )
    return load_tokenizer(PackOptions(length=2, tokenizer=name))


def own_ends(options: PackOptions, tokenizer: Tokenizer) -> Ends:
    """Returns the special tokens that a tokenizer adds with `add_special_tokens`."""
    return tokenizer.own_ends() if options.add_special_tokens else Ends()


def _name_and_digest(options: PackOptions) -> tuple[str, str]:
    name, found = options.tokenizer, options.found
    if name is None:
        raise ValueError("no tokenizer is given")
    return name, _content(name)[1] if found is None else found.digest


def _content(name: str) -> tuple[bytes, str]:
    """Returns a tokenizer's file and digest; for a function no file."""
    if is_function(name):
        return b"", code_digest(name)
    content = read_content(name)
    return content, "sha256:" + hashlib.sha256(content).hexdigest()


# Most jobs have one tokenizer; a process may meet the next job's.
@functools.lru_cache(maxsize=2)
def _tokenizer(name: str, digest: str) -> Tokenizer:
    content, got = _content(name)
    if got != digest:
        raise InputError(
            "the tokenizer is not the one that the job was planned with",
            where=name,
            expected=digest,
            got=got,
            cure="leave it as it is while the job runs, and run the same command again",
        )
    kind = "function" if is_function(name) else kind_of(content, name)
    tokenizer = _made(name, functools.partial(_CLASSES[kind], content, name))
    tokenizer.name, tokenizer.digest = name, digest
    return tokenizer


@functools.lru_cache(maxsize=2)
def _fast(name: str, digest: str, as_text: bool) -> GigatokenEncoder:
    given = _content(name)[0], _tokenizer(name, digest), as_text
    return _made(name, functools.partial(GigatokenEncoder, *given))


T = TypeVar("T")


def _made(name: str, make: Callable[[], T]) -> T:
    """Calls `make`, and turns errors of a tokenizer's library into an InputError."""
    try:
        return make()
    except ModuleNotFoundError as e:
        missing = MissingPackageError.of(e)
        if missing is None:
            raise
        raise missing from e
    except BaseException as e:
        # A panic of Rust is not an Exception.
        known = isinstance(e, ValueError) or type(e).__name__ == "PanicException"
        if isinstance(e, InputError) or not known:
            raise
        raise InputError(
            f"the tokenizer cannot be used: {e}",
            where=name,
            cure="check the file, and whether this version of the library reads it",
        ) from e


def _check_library(got: str, expected: str) -> None:
    if got != expected:
        raise InputError(
            "another version of the tokenizer's library than the job was planned with: "
            "its tokens may differ",
            expected=expected,
            got=got,
            cure="install the same version wherever the job runs",
        )


_MOST_IDS = 1 << 32  # The range of uint32, for documents of tokens.


def find_tokenizer(options: PackOptions) -> TokenizerSpec:
    """Returns the tokenizer of a job, and the ids of the tokens to add.

    Args:
        options: Options of the job; an earlier result in them is ignored.

    Raises:
        InputError: The tokenizer cannot be used, or has no such tokens.
        MissingPackageError: Its library is not installed.
        StorageError: Its file cannot be read.
    """
    tokenizer, size = None, options.vocabulary_size or _MOST_IDS
    if options.tokenizer is not None:
        options = dataclasses.replace(options, found=None)
        tokenizer = load_tokenizer(options)
        size = tokenizer.vocabulary_size
    bos_id = _id_of("--bos", options.bos, size, tokenizer)
    eos_id = _id_of("--eos", options.eos, size, tokenizer)
    ends: dict[str, Any] = {"vocabulary_size": size, "bos_id": bos_id, "eos_id": eos_id}
    if tokenizer is None:
        return TokenizerSpec(kind="ids", digest="", library="", **ends)
    make = functools.partial(own_ends, options, tokenizer)
    before, after = _made(tokenizer.name, make)
    for option, given, own in (("--bos", bos_id, before), ("--eos", eos_id, after)):
        if given in own:
            raise InputError(
                f"the token of {option} would be added twice",
                expected="it once",
                got=f"{option} {given}, and --add-special-tokens, which adds it too",
                cure=f"leave out {option}",
            )
    return TokenizerSpec(
        kind=tokenizer.kind,
        digest=tokenizer.digest,
        library=tokenizer.library,
        special_ids=dict(tokenizer.special_ids),
        fast_library=load_fast(options).library if options.fast else "",
        **ends,
    )


def _id_of(
    option: str, token: str, size: int, tokenizer: Tokenizer | None
) -> int | None:
    """Returns the id of an option's token, given by text or id; None for ""."""
    if not token:
        return None
    if token.isascii() and token.isdigit():
        if int(token) < size:
            return int(token)
        raise InputError(
            f"the token of {option} is not in the vocabulary",
            expected=f"an id below {size:,}",
            got=token,
            cure="correct it, or --vocabulary-size"
            if tokenizer is None
            else "give the text or the id of a token of this tokenizer",
        )
    if tokenizer is None:
        raise InputError(
            f"the token of {option} is given as text, and there is no tokenizer",
            expected="an id",
            got=repr(token),
            cure="give the id, such as 0",
        )
    found = tokenizer.id_of(token)
    if found is None:
        special = tokenizer.special_ids
        near = difflib.get_close_matches(token, special, cutoff=0.4)
        known = f"one of {some_of(near or special, 8)}" if special else "a token"
        raise InputError(
            f"the tokenizer has no token for {option}",
            expected=f"{known}, or an id below {size:,}",
            got=repr(token),
            cure="give the text or the id of a token of this tokenizer",
        )
    return found
