"""Rows of tokens to make of documents: what the user says, and what is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.chat_options import ChatOptions

Method = Literal["best-fit", "concat", "none"]
Rows = Literal["packed", "example"]

MOST_TOKENS = 1 << 24
"""Longest row. One of four bytes a token takes 64 MiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """A tokenizer, as it was found when a job was planned.

    Attributes:
        kind: `huggingface`, `sentencepiece`, `tiktoken`, `function`; `ids` where the
            documents are tokens already.
        digest: SHA-256 of its content, of the module's file for a function; "" for ids.
        library: The library that runs it, and its version; "" for ids.
        vocabulary_size: Upper bound of ids, exclusive.
        bos_id: Added before every document, None if none is.
        eos_id: Added after every document, None if none is.
        special_ids: Its special tokens, and the id of each.
        fast_library: The library of the fast path and its version, "" without one.
    """

    kind: str
    digest: str
    library: str
    vocabulary_size: int
    bos_id: int | None = None
    eos_id: int | None = None
    special_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    fast_library: str = ""

    @property
    def id_bytes(self) -> int:
        """Bytes that a token takes in a row, before compression."""
        if self.vocabulary_size <= 1 << 16:
            return 2
        return 3 if self.vocabulary_size <= 1 << 24 else 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackOptions:
    """What rows to make of documents.

    Attributes:
        length: Tokens of a row, at most.
        method: `best-fit`: no document that fits a row is cut. `concat`: one document
            after the other, cut where a row ends. `none`: one document a row.
        column: The feature that holds the text or the tokens; "" if the record itself
            is the text.
        tokenizer: File of the tokenizer, or `module:function`; None if the column
            holds tokens.
        vocabulary_size: Vocabulary size of a column of tokens: ids are below it. None
            for any id of 32 bits.
        fast: Whether to tokenise with gigatoken, compared with the tokenizer's own
            library on a sample.
        bos: Token to add before every document, as text or id; "" for none.
        eos: Token to add after every document, likewise.
        add_special_tokens: Whether the tokenizer adds special tokens as it is
            configured to.
        truncate: Whether a document longer than a row loses its rest.
        rows: `packed`, see docs/reference/format.md; `example`, a `tf.train.Example`.
        chat: How conversations become documents, None for documents of text.
        found: The tokenizer, set when the job is planned.
    """

    length: int
    method: Method = "best-fit"
    column: str = "text"
    tokenizer: str | None = None
    vocabulary_size: int | None = None
    fast: bool = False
    bos: str = ""
    eos: str = ""
    add_special_tokens: bool = False
    truncate: bool = False
    rows: Rows = "packed"
    chat: ChatOptions | None = None
    found: TokenizerSpec | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.length <= MOST_TOKENS:
            raise InputError(
                "--length is out of range",
                expected=f"2 to {MOST_TOKENS:,} tokens",
                got=f"{self.length:,}",
                cure="give the tokens of a row, such as 2048",
            )
        for option, value, known in (
            ("--pack", self.method, get_args(Method)),
            ("--rows", self.rows, get_args(Rows)),
        ):
            if value not in known:
                raise InputError(
                    f"unknown {option}",
                    expected=" or ".join(known),
                    got=value,
                    cure="give one of these",
                )
        if self.tokenizer is not None and self.vocabulary_size is not None:
            raise InputError(
                "--vocabulary-size has no effect with --tokenizer",
                expected="a column of tokens",
                cure="leave it out: the tokenizer knows it",
            )
        if self.tokenizer is None:
            for option, given in (
                ("--fast", self.fast),
                ("--add-special-tokens", self.add_special_tokens),
            ):
                if given:
                    raise InputError(
                        f"{option} has no effect without --tokenizer",
                        cure="give a tokenizer, or leave it out",
                    )
        if self.chat is not None:
            self._check_chat()

    def _check_chat(self) -> None:
        """Raises InputError for options that do not go with conversations."""
        if self.tokenizer is None:
            raise InputError(
                "--chat without a tokenizer",
                cure="give --tokenizer, such as the tokenizer.json of the model",
            )
        for option, given in (
            ("--fast", self.fast),
            ("--add-special-tokens", self.add_special_tokens),
            ("--truncate", self.truncate),
            ("--rows example", self.rows == "example"),
        ):
            if given:
                raise InputError(
                    f"{option} is not for --chat",
                    expected="packed rows of what the template writes, tokenised by "
                    "the tokenizer's own library, and cut at the end of a turn",
                    cure="leave it out",
                )

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds options from `dataclasses.asdict`.

        Raises KeyError, TypeError or ValueError if they are not such.
        """
        found = fields["found"]
        spec = None if found is None else TokenizerSpec(**found)
        chat = ChatOptions.of_dict(fields.get("chat"))
        return cls(**{**fields, "found": spec, "chat": chat})
