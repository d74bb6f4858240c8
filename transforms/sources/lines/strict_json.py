"""Strict JSON without pyarrow: a line becomes a value, and a value JSON."""

from __future__ import annotations

import json
from typing import Any


class Number(str):
    """A number as its text."""

    __slots__ = ()


def parsed_line(line: bytes | str, number: type[str] | None = None) -> Any:
    """Returns the value of a text, by Python's `json`.

    Raises:
        ValueError: It is not valid JSON, or has a field more than once in an object.
        RecursionError: It is nested too deeply.
    """
    return json.loads(
        line if isinstance(line, str) else line.decode(),  # No other encoding.
        object_pairs_hook=_without_duplicates,
        parse_constant=_refuse_constant,
        parse_int=number,
        parse_float=number,
    )


def text_of(value: Any) -> str:
    """Returns a value as JSON, each `Number` with its own digits.

    Raises:
        ValueError: A text has half of a character.
    """
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, dict):
        items = (f"{text_of(name)}: {text_of(item)}" for name, item in value.items())
        return f"{{{', '.join(items)}}}"
    text = json.dumps(value, ensure_ascii=False)
    text.encode()
    return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name}, which JSON does not have")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} more than once in an object")
    "".join(found).encode()  # Raises a ValueError at half of a surrogate.
    return found
