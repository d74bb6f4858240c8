"""The tokenizer of a job, found when the job is planned."""

from __future__ import annotations

import dataclasses
import difflib

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.tokenizers.load import (
    content_digest,
    find_kind,
    load_fast,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizers.tokenizer import Tokenizer

_MOST_IDS = 1 << 32  # The range of uint32, for documents of tokens.


def find_tokenizer(options: PackOptions) -> TokenizerSpec:
    """Returns the tokenizer of a job, and the ids of the tokens to add.

    Args:
        options: Options of the job. An earlier result is looked up again.

    Raises:
        InputError: The tokenizer cannot be used, or has no such tokens.
        MissingPackageError: Its library is not installed.
        StorageError: Its file cannot be read.
    """
    name = options.tokenizer
    if name is None:
        size = options.vocabulary_size or _MOST_IDS
        return TokenizerSpec(
            kind="ids",
            digest="",
            library="",
            vocabulary_size=size,
            bos_id=_id_of("--bos", options.bos, size),
            eos_id=_id_of("--eos", options.eos, size),
        )
    options = dataclasses.replace(options, found=None)
    digest = content_digest(name)
    tokenizer = load_tokenizer(options)
    size = tokenizer.vocabulary_size
    bos_id = _id_of("--bos", options.bos, size, tokenizer)
    eos_id = _id_of("--eos", options.eos, size, tokenizer)
    before, after = tokenizer.own_ends
    _check_once("--bos", bos_id, before)
    _check_once("--eos", eos_id, after)
    return TokenizerSpec(
        kind=find_kind(name),
        digest=digest,
        library=tokenizer.library,
        vocabulary_size=size,
        bos_id=bos_id,
        eos_id=eos_id,
        special_ids=dict(tokenizer.special_ids),
        fast_library=load_fast(options).library if options.fast else "",
    )


def _id_of(
    option: str, token: str, size: int, tokenizer: Tokenizer | None = None
) -> int | None:
    """Returns the id of a token given by text or id, None for "".

    Args:
        option: The option with the token.
        token: Its text or id.
        size: Upper bound of ids, exclusive.
        tokenizer: The tokenizer, None if documents are already tokens.
    """
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


def _check_once(option: str, given: int | None, own: tuple[int, ...]) -> None:
    if given is not None and given in own:
        raise InputError(
            f"the token of {option} would be added twice",
            expected="it once",
            got=f"{option} {given}, and --add-special-tokens, which adds it too",
            cure=f"leave out {option}",
        )
