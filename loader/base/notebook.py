"""Tables of facts, as text and as HTML, for notebooks."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

_SHOWN = 4  # Values, or records, shown of a field.
_WIDTH = 60


def table_html(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Returns a table in HTML, without its own colours.

    Args:
        title: Subject of the facts.
        rows: A head and a text in each.
    """
    cells = "".join(
        f'<tr><th style="text-align: left">{html.escape(head)}</th>'
        f'<td style="text-align: left">{html.escape(str(text))}</td></tr>'
        for head, text in rows
    )
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"


def table_text(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """Returns such a table in lines, for `print`."""
    rows = list(rows)
    width = max((len(head) for head, _ in rows), default=0)
    return "\n".join([title, *(f"  {head:{width}}  {text}" for head, text in rows)])


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """The content of a batch, shown by its `repr` and by notebooks; see `describe`.

    Attributes:
        title: Kind of the batch, and number of its fields.
        fields: Name and content of each field.
    """

    title: str
    fields: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return table_text(self.title, self.fields)

    def _repr_html_(self) -> str:
        return table_html(self.title, self.fields)


def describe(batch: Any) -> Description:
    """Describes a batch of any feed: the type, shape and first values of each field.

    Data of JAX arrays are not fetched.

    Args:
        batch: Records as bytes, or arrays in any tree of mappings and sequences.

    >>> describe({"id": np.arange(6, dtype=np.int32)})
    batch of 1 field
      id  int32 [6]: 0, 1, 2, 3, ...
    """
    fields = tuple(_fields(batch, ""))
    noun = "field" if len(fields) == 1 else "fields"
    return Description(f"batch of {len(fields):,} {noun}", fields)


def _fields(tree: Any, name: str) -> Iterator[tuple[str, str]]:
    parts: Iterable[tuple[Any, Any]]
    if isinstance(tree, Mapping):
        parts = tree.items()
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = zip(tree._fields, tree, strict=True)
    elif isinstance(tree, list | tuple) and not _is_records(tree):
        parts = enumerate(tree)
    else:
        yield name or "records", _text(tree)
        return
    for key, part in parts:
        yield from _fields(part, f"{name}/{key}" if name else str(key))


def _is_records(tree: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(one, bytes) for one in tree)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        sizes = sum(map(len, value))
        return f"{len(value):,} records, {sizes:,} bytes: {_some(value)}"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return f"{type(value).__name__}: {_short(value)}"
    text = f"{dtype} [{', '.join(map(str, shape))}]"
    if isinstance(value, np.ndarray):
        # A few values of the first row say more than one of each row.
        first = value.reshape(-1)[: _SHOWN + 1].tolist()
        return f"{text}: {_some(first)}" if first else text
    sharding = getattr(value, "sharding", None)
    return text if sharding is None else f"{text}, {_short(sharding)}"


def _some(values: Any) -> str:
    more = ", ..." if len(values) > _SHOWN else ""
    return ", ".join(map(_short, values[:_SHOWN])) + more


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= _WIDTH else text[:_WIDTH] + "..."
