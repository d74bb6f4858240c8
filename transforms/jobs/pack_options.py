"""Rows of tokens to make of documents: what the user says, and what is found."""

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
"""What `--accept` can name: trained messages without a trained end; conversations of
which most are too long for a row; text of which most is unknown to the tokenizer; texts
that are Python's notation of bytes; files of tokens without the id that ends
documents."""

_SPEAKERS = ("system", "developer", "user", "assistant", "tool", "other")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemplateSpec:
    """A template, as it was found when a job was planned.

    Attributes:
        texts: The Jinja texts by name: `default`, and others such as `tool_use`.
        tokens: Texts of the special tokens that templates know, such as `bos_token`.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How conversations are read, rendered and trained on.

    Attributes:
        template: The file of the template.
        tools_column: The column of the tools that a conversation can call.
        weight_column: The column of the weight of a conversation, or of its messages.
        train: `assistant`, all its messages; `last`, its last one; `all` messages; or
            names of roles, separated by commas.
        train_without: Parts of the assistant's messages that are not trained on, of
            `LEFT_OUT`, separated by commas.
        train_end_of_turn: Whether the end of a trained message's turn is trained on.
        truncate_turns: Whether a conversation that is longer than a row loses its last
            turns; otherwise it is set aside.
        max_rejected: Share of the conversations that are set aside because they cannot
            be used, in percent: with more, the job fails. 0 fails at the first.
        date: The date that the template is told, as YYYY-MM-DD; "" for none.
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
        """The roles of `ROLES`, by number, whose messages can be trained on."""
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
        """Rebuilds options from `dataclasses.asdict`.

        Raises KeyError, TypeError or ValueError if they are not such.
        """
        if fields is None:
            return None
        found = fields["found"]
        spec = None if found is None else TemplateSpec(**found)
        return cls(**{**fields, "found": spec})


def weight_of(value: object) -> float | None:
    """Returns a weight, None if a value is not one: a finite number from 0 on.

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
    """How to pack documents into rows.

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
        eos: Token to add after every document, likewise.
        add_special_tokens: Whether the tokenizer adds special tokens as it is
            configured to.
        truncate: Whether a document longer than a row loses its rest.
        special_text: What text becomes that looks like a special token.
        accept: Names of `ACCEPTED`, separated by commas: what is no error.
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
