"""A table of facts in lines, for `print`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table_text(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Returns the lines of a table: a head and a text in each row."""
    rows = list(rows)
    width = max((len(head) for head, _ in rows), default=0)
    return "\n".join([title, *(f"  {head:{width}}  {text}" for head, text in rows)])
