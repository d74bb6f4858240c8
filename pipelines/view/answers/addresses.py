"""The addresses that the page asks for, and their answers as JSON values."""

from __future__ import annotations

import dataclasses
import math
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import GristmillError, InputError, OutOfRangeError
from gristmill.pipelines.view.answers.lineage import lineage
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.answers.overview import overview
from gristmill.pipelines.view.answers.record import record, source
from gristmill.pipelines.view.answers.shards import shard
from gristmill.pipelines.view.answers.sizes import sizes
from gristmill.pipelines.view.answers.steps import seen, step
from gristmill.pipelines.view.answers.training_order import mixture, order_quality

_EXACT = 1 << 53
"""Integers beyond it are rounded by JavaScript."""


def plain(value: Any) -> Any:
    """Returns a value of which JSON and JavaScript lose nothing.

    Dataclasses and mappings become objects, numpy's numbers Python's. Numbers that
    JavaScript has not become texts.

    >>> plain({"a": float("nan"), "b": np.int64(7), "c": (1 << 53) + 1})
    {'a': 'nan', 'b': 7, 'c': '9007199254740993'}
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        number = int(value)
        return number if -_EXACT <= number <= _EXACT else str(number)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


PREFIX = "api/"
_WHOLE = re.compile(r"0|[1-9][0-9]{0,18}")
_Parameters = Mapping[str, Callable[[str], Any]]


@dataclasses.dataclass(frozen=True)
class _Question:
    """What an address asks.

    Attributes:
        answer: Gives the answer, as a dataclass.
        parameters: The parameters that the address can have, and their types.
        needed: Those that it must have.
        keeps: Whether the answer is always the same, and takes time.
    """

    answer: Callable[..., Any]
    parameters: _Parameters
    needed: tuple[str, ...] = ()
    keeps: bool = False


def _whole(text: str) -> int:
    """Returns a number from 0 on that numpy's integers hold.

    Raises:
        ValueError: It is none.
    """
    if not _WHOLE.fullmatch(text) or (number := int(text)) >= 1 << 63:
        raise ValueError  # Python's int takes "1_0", "+1" and " 1 ", too.
    return number


_DATASET: _Parameters = {"of": str, "split": str}
_RECORD: _Parameters = {"record": _whole, **_DATASET}
_EPOCHS: _Parameters = {"of": str, "first_epoch": _whole, "stop_epoch": _whole}
_STEP = {"step": _whole, "first_row": _whole, "previews": _whole, "hosts": _whole}
_QUESTIONS = {
    "overview": _Question(overview, _DATASET, keeps=True),
    "sizes": _Question(sizes, _DATASET, keeps=True),
    "lineage": _Question(lineage, _DATASET, keeps=True),
    "shard": _Question(shard, {"shard": _whole, **_DATASET}, ("shard",)),
    "record": _Question(record, _RECORD, ("record",)),
    "source": _Question(source, {**_RECORD, "read": _whole}, ("record",)),
    "step": _Question(step, _STEP, ("step",)),
    "seen": _Question(seen, {"record": _whole, **_EPOCHS}, ("record",)),
    "quality": _Question(order_quality, {"of": str, "epoch": _whole}, keeps=True),
    "mixture": _Question(mixture, {}, keeps=True),
}


class UnknownAddressError(InputError):
    """There is no answer at this address."""


def ask(opened: Opened, address: str) -> dict[str, Any]:
    """Returns the answer of an address, as JSON values.

    Args:
        opened: What is asked about.
        address: Such as `api/record?record=7`.

    Raises:
        UnknownAddressError: There is no such question.
        InputError: A parameter is missing, or has a value that cannot be.
        GristmillError: A file cannot be read, or is damaged.
    """
    name, _, query = address.partition("?")
    question = _QUESTIONS.get(name.removeprefix(PREFIX))
    if question is None or not name.startswith(PREFIX):
        raise UnknownAddressError(
            "there is no answer at this address",
            expected=f"one of {', '.join(PREFIX + known for known in _QUESTIONS)}",
            got=name,
            cure="open the page, which knows them",
        )
    arguments = _arguments(question, query, name)

    def answer() -> dict[str, Any]:
        found: dict[str, Any] = plain(question.answer(opened, **arguments))
        return found

    if question.keeps:
        key = (name, *sorted(arguments.items()))
        kept: dict[str, Any] = opened.kept(key, answer)
        return kept
    return answer()


def _arguments(question: _Question, query: str, where: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, text in urllib.parse.parse_qsl(query, keep_blank_values=True):
        kind = question.parameters.get(name)
        if kind is None:
            raise InputError(
                "unknown parameter",
                where=where,
                expected=f"one of {', '.join(question.parameters)}",
                got=name,
                cure="leave it out",
            )
        try:
            arguments[name] = kind(text)
        except ValueError:
            raise InputError(
                f"{name} is not a whole number",
                where=where,
                got=f"{text:.100}",
                cure=f"give one from 0 on, such as {name}=0",
            ) from None
    for name in question.needed:
        if name not in arguments:
            raise InputError(
                f"{name} is missing", where=where, cure=f"give it: {where}?{name}=0"
            )
    return arguments


def error_answer(error: GristmillError) -> dict[str, Any]:
    """Returns the page's message for an error."""
    names = ("what", "where", "expected", "got", "cure")
    facts: dict[str, Any] = {name: getattr(error, name) for name in names}
    return {"error": {"type": type(error).__name__, **facts}}


def status_of(error: GristmillError) -> int:
    """Returns the HTTP status of an error."""
    if isinstance(error, UnknownAddressError):
        return 404
    return 400 if isinstance(error, (InputError, OutOfRangeError)) else 500
