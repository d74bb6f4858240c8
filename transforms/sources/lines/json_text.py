"""Strict JSON: no constants of other languages, and no field twice."""

from __future__ import annotations

import json
from typing import Any


def parsed_line(line: bytes | str, number: type[str] | None = None) -> Any:
    """Returns the value of a text, by Python's `json`.

    Args:
        line: The text, such as a line.
        number: Converts the text of a number; None for numbers.

    Raises:
        ValueError: It is not valid JSON, or has a field more than once in an object.
        RecursionError: It is nested too deeply.
    """
    return json.loads(
        line,
        object_pairs_hook=_without_duplicates,
        parse_constant=refuse_constant,
        parse_int=number,
        parse_float=number,
    )


def refuse_constant(name: str) -> Any:
    """Raises ValueError for a constant such as NaN."""
    raise ValueError(f"{name}, which JSON does not have")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {twice!r} more than once in an object")
    "".join(found).encode()  # Raises a ValueError at half of a surrogate.
    return found
