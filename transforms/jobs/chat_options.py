"""Conversations to make documents of: what the user says, and what is found."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from gristmill.dataset.base.errors import InputError

SpecialInContent = Literal["token", "text", "set-aside", "refuse"]
Unusable = Literal["set-aside", "refuse"]
YesNo = Literal["yes", "no"]

LEFT_OUT = {"thinking": "thinking", "tools": "tool_call"}
"""Parts of the assistant's messages that `--train-without` names -> their roles."""

_SPEAKERS = ("system", "developer", "user", "assistant", "tool", "other")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TemplateSpec:
    """A template, as it was found when a job was planned.

    Attributes:
        texts: The Jinja texts by name: `default`, and others such as `tool_use`.
        tokens: Texts of the special tokens that templates know, such as `bos_token`.
        date: The date that `strftime_now` tells, as YYYY-MM-DD; "" if none asks.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, str]
    date: str = ""


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
        special_in_content: What contents with the text of a special token become.
        truncate_turns: Whether a conversation that is longer than a row loses its last
            turns; otherwise it is set aside.
        unusable: What becomes of a conversation that cannot be used: one at which the
            template fails, or whose messages cannot be found in what it writes.
        date: The date that the template is told, as YYYY-MM-DD; "" for today's, which
            the job keeps.
        found: The template, set when the job is planned.
    """

    template: str
    tools_column: str = "tools"
    weight_column: str = "weight"
    train: str = "assistant"
    train_without: str = ""
    train_end_of_turn: YesNo = "yes"
    special_in_content: SpecialInContent = "token"
    truncate_turns: YesNo = "yes"
    unusable: Unusable = "set-aside"
    date: str = ""
    found: TemplateSpec | None = None

    def __post_init__(self) -> None:
        if self.train not in ("assistant", "last", "all"):
            _check_names("--train", self.train, _SPEAKERS)
        if self.train_without:
            _check_names("--train-without", self.train_without, tuple(LEFT_OUT))
        for option, value, known in (
            ("--train-end-of-turn", self.train_end_of_turn, get_args(YesNo)),
            ("--truncate-turns", self.truncate_turns, get_args(YesNo)),
            (
                "--special-in-content",
                self.special_in_content,
                get_args(SpecialInContent),
            ),
            ("--unusable", self.unusable, get_args(Unusable)),
        ):
            if value not in known:
                _refuse(option, value, known)
        if self.date:
            try:
                datetime.date.fromisoformat(self.date)
                known_date = re.fullmatch(r"\d{4}-\d\d-\d\d", self.date)
            except ValueError:
                known_date = None
            if known_date is None:
                raise InputError(
                    "--date is not a date",
                    expected="the year, the month and the day, such as 2026-11-24",
                    got=self.date,
                    cure="give such a date, or leave it out for today's",
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


def _check_names(option: str, given: str, known: tuple[str, ...]) -> None:
    names = given.split(",")
    if len({*names}) < len(names) or not {*names} <= {*known}:
        _refuse(option, given, known)


def _refuse(option: str, given: str, known: tuple[str, ...]) -> None:
    more = ("assistant, last, all, or some of " if option == "--train" else "") + (
        " or ".join(known) if not option.startswith("--train") else ", ".join(known)
    )
    raise InputError(
        f"{option} names something unknown, or the same twice",
        expected=more,
        got=repr(given),
        cure="give one of these"
        if " or " in more and "," not in given
        else "correct it; names are separated by commas without blanks",
    )
