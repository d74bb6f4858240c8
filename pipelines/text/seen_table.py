"""The parts that a run has seen, as JSON values, CSV and a table for people."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.loader.accounting.account import SeenPart

Fields = Mapping[str, Any]


def part_fields(part: SeenPart) -> dict[str, Any]:
    """Returns a part as JSON values, of which infinity is none."""
    value = part.value
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    known = {"dataset": part.dataset, "value": value, "note": part.note}
    return known | part.counts._asdict()


def csv_text(rows: Sequence[Fields], names: Sequence[str]) -> str:
    """Returns parts as CSV, with the names of their counts."""
    file = io.StringIO()
    writer = csv.DictWriter(file, ["dataset", "value", "note", *names])
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def table_lines(rows: Sequence[Fields], by: str, *, mixed: bool) -> Iterator[str]:
    """Yields the table for people.

    Args:
        rows: The parts, and others with the same fields.
        by: What was counted by.
        mixed: Whether to name the dataset of each.
    """
    names = "documents", "different_documents", "tokens", "different_tokens"
    heads = ("documents", "different", "tokens", "different")
    yield _line(heads, ["dataset", by] if mixed else [by])
    for row in rows:
        numbers = ["?" if row[name] is None else f"{row[name]:,}" for name in names]
        shown = row["value"] if row.get("note") is None else f"({row['note']})"
        own = "" if shown is None else str(shown)
        yield _line(numbers, [row["dataset"], own] if mixed else [own])


def _line(numbers: Sequence[str], texts: Sequence[str]) -> str:
    return "  ".join([*(f"{n:>15}" for n in numbers), *texts]).rstrip()
