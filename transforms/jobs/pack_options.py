"""The options of rows of tokens, with the tokenizer and the template found for them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from gristmill.dataset.base.errors import InputError

SpecialText = Literal["text", "token"]
YesNo = Literal["yes", "no"]

LEFT_OUT = {"thinking": "thinking", "tools": "tool_call"}
"""Parts of the assistant's messages that `--train-without` names -> their roles."""

ACCEPTED = ("open-turns", "long", "unknown", "bytes", "no-end")
"""Names for `--accept`: trained messages without a trained end; conversations that are
mostly too long for a row; text that is mostly unknown to the tokenizer; texts in
Python's notation of bytes; files of tokens without the id that ends documents."""

_SPEAKERS = ("system", "developer", "user", "assistant", "tool", "other")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemplateSpec:
    """The template that planning found.

    Attributes:
        texts: The Jinja texts by name: `default`, and others such as `tool_use`.
        tokens: Texts of the special tokens that templates know, such as `bos_token`.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """The options for reading, rendering and training on conversations.

    Attributes:
        template: The file of the template.
        tools_column: The column of the tools that a conversation can call.
        weight_column: The column with the weight of a conversation, or of each message.
        train: The messages to train on: `assistant` for all of its messages, `last` for
            its last one, `all`, or names of roles, separated by commas.
        train_without: Parts of the assistant's messages not to train on, from
            `LEFT_OUT`, separated by commas.
        train_end_of_turn: Whether the end of a trained message's turn is trained on.
        truncate_turns: Whether a conversation that is longer than a row loses its last
            turns; otherwise it is set aside.
        max_rejected: Maximum percentage of unusable conversations to set aside before
            the job fails; 0 to fail at the first.
        date: The date for the template, as YYYY-MM-DD; "" for none.
        found: The template, set when the job is planned.
    """

    template: str
    tools_column: str = "tools"
    weight_column: str = "weight"
    train: str = "assistant"
    train_without: str = ""
    train_end_of_turn: YesNo = "yes"
    truncate_turns: YesNo = "yes"
    max_rejected: float = 1.0
    date: str = ""
    found: TemplateSpec | None = None

    def __post_init__(self) -> None:
        if self.train not in ("assistant", "last", "all"):
            more = "assistant, last, all, or some of "
            _check_names("--train", self.train, _SPEAKERS, more=more)
        if self.train_without:
            _check_names("--train-without", self.train_without, tuple(LEFT_OUT))
        _check_one_of("--train-end-of-turn", self.train_end_of_turn, YesNo)
        _check_one_of("--truncate-turns", self.truncate_turns, YesNo)
        if not 0 <= self.max_rejected <= 100:
            raise InputError(
                "--max-rejected is not a share",
                expected="0 to 100 percent",
                got=f"{self.max_rejected:g}",
                cure="give the percentage of conversations that may be set aside",
            )
        found = None
        with contextlib.suppress(ValueError):
            found = str(datetime.date.fromisoformat(self.date))
        if self.date and found != self.date:
            raise InputError(
                "--date is not a date",
                expected="the year, the month and the day, such as 2026-11-24",
                got=self.date,
                cure="give such a date",
            )

    @property
    def trained_roles(self) -> frozenset[int]:
        """Indices in `ROLES` of the roles whose messages can be trained on."""
        from gristmill.dataset.packed.message_spans import ROLES  # It needs numpy.

        if self.train == "all":
            names: tuple[str, ...] = ROLES
        else:
            speaker = "assistant" if self.train == "last" else self.train
            names = tuple(speaker.split(","))
            if "assistant" in names:
                names += tuple(LEFT_OUT.values())
        left_out = {LEFT_OUT[name] for name in self.train_without.split(",") if name}
        return frozenset(ROLES.index(name) for name in names if name not in left_out)

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any] | None) -> Self | None:
        """Rebuilds options from `dataclasses.asdict`."""
        if fields is None:
            return None
        found = fields["found"]
        spec = None if found is None else TemplateSpec(**found)
        return cls(**{**fields, "found": spec})


def weight_of(value: object) -> float | None:
    """Returns a value as a weight, None unless it is a finite number from 0 on.

    >>> weight_of(0.5), weight_of(True), weight_of(-1)
    (0.5, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None


def _check_one_of(option: str, given: str, kind: Any) -> None:
    if given not in get_args(kind):
        raise InputError(
            f"unknown {option}",
            expected=" or ".join(get_args(kind)),
            got=given,
            cure="give one of these",
        )


def _check_names(
    option: str, given: str, known: tuple[str, ...], *, more: str = ""
) -> None:
    names = given.split(",")
    if len({*names}) < len(names) or not {*names} <= {*known}:
        raise InputError(
            f"{option} names something unknown, or the same twice",
            expected=more + ", ".join(known),
            got=repr(given),
            cure="correct it; names are separated by commas without blanks",
        )


Method = Literal["best-fit", "concat", "none"]
Rows = Literal["packed", "example"]

MOST_TOKENS = 1 << 24
"""Longest row. One of four bytes a token takes 64 MiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerSpec:
    """The tokenizer that planning found.

    Attributes:
        kind: `huggingface`, `sentencepiece`, `tiktoken`, `function`; `ids` where the
            documents are tokens already.
        digest: SHA-256 of its content, for a function of its module's file; "" for ids.
        library: The library that runs it, with its version; "" for ids.
        vocabulary_size: Exclusive upper bound of ids.
        bos_id: Id added before every document; None for none.
        eos_id: Id added after every document; None for none.
        special_ids: Ids of its special tokens, by their text.
        fast_library: The library of the fast path, with its version; "" for none.
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
    """The options for packing documents into rows.

    Attributes:
        length: Maximum number of tokens in a row.
        method: `best-fit`: no document that fits a row is cut. `concat`: one document
            after the other, cut where a row ends. `none`: one document per row.
        column: The feature that holds the text or the tokens; "" if the record itself
            is the text.
        tokenizer: File of the tokenizer, or `module:function`; None if the column
            holds tokens.
        vocabulary_size: Vocabulary size of a column of tokens: ids are below it. None
            for any id of 32 bits.
        fast: Whether to tokenise with gigatoken, compared with the tokenizer's own
            library on a sample.
        bos: Token to add before every document, as text or id; "" for none.
        eos: Token to add after every document, as text or id; "" for none.
        add_special_tokens: Whether the tokenizer adds special tokens by its
            configuration.
        truncate: Whether to truncate a document that is longer than a row.
        special_text: Whether text that looks like a special token becomes `text` or
            `token`.
        accept: Names from `ACCEPTED`, separated by commas, of misfits that are not
            errors.
        rows: `packed`, see docs/reference/format.md; `example`, a `tf.train.Example`.
        chat: The options for conversations; None for documents of text.
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
    special_text: SpecialText = "text"
    accept: str = ""
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
        _check_one_of("--pack", self.method, Method)
        _check_one_of("--rows", self.rows, Rows)
        _check_one_of("--special-text", self.special_text, SpecialText)
        if self.accept:
            _check_names("--accept", self.accept, ACCEPTED)
        if self.tokenizer is not None and self.vocabulary_size is not None:
            raise InputError(
                "--vocabulary-size has no effect with --tokenizer",
                expected="a column of tokens",
                cure="leave it out: the tokenizer knows it",
            )
        given = {
            "--fast": self.fast,
            "--add-special-tokens": self.add_special_tokens,
            "--special-text token": self.special_text == "token",
            "--truncate": self.truncate,
            "--rows example": self.rows == "example",
        }
        asked = [option for option, value in given.items() if value]
        own = {"--fast", "--add-special-tokens", "--special-text token"}
        if self.tokenizer is None and (useless := [o for o in asked if o in own]):
            raise InputError(
                f"{useless[0]} has no effect without --tokenizer",
                cure="give a tokenizer, or leave it out",
            )
        if self.chat is None:
            return
        if self.tokenizer is None:
            raise InputError(
                "--chat without a tokenizer",
                cure="give --tokenizer, such as the tokenizer.json of the model",
            )
        if others := [option for option in asked if option != "--special-text token"]:
            raise InputError(
                f"{others[0]} is not for --chat",
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
        chat = ChatOptions.of_dict(fields["chat"])
        return cls(**{**fields, "found": spec, "chat": chat})
