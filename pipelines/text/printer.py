"""Results as JSON and for people: any dataclass is shown by its fields.

A result may have its own `text`. Others may have a `title`, their first line for
people, and `facts`, which people get instead of the fields. `also_shown` names
properties that are shown like fields.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

_HEADS = {"file_bytes": "stored", "raw_bytes": "as read"}
_LINES_SHOWN = 20
_LEAST_WIDTH = 10


def fact_lines(facts: Any) -> list[str]:
    """Returns the fields of a result, or the items of a mapping, for people.

    Each has its name and its value, which may take several lines. Unknown, empty and
    false values are omitted, and so are fields with their default.

    >>> fact_lines({"file_bytes": 2048, "seconds": 1.25, "notes": ["a", "b"]})
    ['  stored    2.0 KiB', '  seconds   1.2', '  notes     a', '            b']
    """
    found = [*fact_pairs(facts)]
    width = max([_LEAST_WIDTH, *(len(head) + 1 for head, _ in found)])
    return [
        f"  {'' if number else head:<{width}}{line}"
        for head, lines in found
        for number, line in enumerate(lines)
    ]


def fact_pairs(facts: Any) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the lines of each fact to show."""
    for name, value in _said(facts):
        yield _head(name), _lines(name, value)


def table_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns rows of equal names as a table with a head; numbers end in one column."""
    names = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    cells = [[_head(name) for name in names]]
    for row in rows:
        cells.append([", ".join(_lines(name, row[name])) or "?" for name in names])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [isinstance(rows[0][name], (int, float)) for name in names]
    return [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]


def has_fields(value: Any) -> bool:
    """Returns whether a value is of a dataclass or a named tuple."""
    return hasattr(value, "_asdict") or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the shown fields of such a value, and the properties in `also_shown`."""
    if hasattr(value, "_asdict"):
        names = [*value._fields]
    else:
        names = [field.name for field in dataclasses.fields(value) if field.repr]
    for name in (*names, *getattr(value, "also_shown", ())):
        yield name, getattr(value, name)


def _said(facts: Any) -> Iterator[tuple[str, Any]]:
    """Yields the facts that are not empty, false or default."""
    items = facts.items() if isinstance(facts, Mapping) else fields_of(facts)
    default = getattr(facts, "_field_defaults", {})
    if dataclasses.is_dataclass(facts):
        default = {field.name: field.default for field in dataclasses.fields(facts)}
    for name, value in items:
        plain = value is None or value is False or hasattr(value, "splits")
        empty = hasattr(value, "__len__") and not len(value)
        if not plain and not empty and default.get(name, _said) != value:
            yield name, value


def _head(name: str) -> str:
    return _HEADS.get(name) or name.removesuffix("_bytes").replace("_", " ")


def _lines(name: str, value: Any) -> list[str]:
    """Returns the lines of a value, by its name and type."""
    if isinstance(value, str):
        return value.splitlines()
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    if isinstance(value, int):
        return [size_text(value) if name.endswith("_bytes") else f"{value:,}"]
    if isinstance(value, float):
        kind = "_bytes" if name.endswith("_bytes") else name.rpartition("_")[2]
        text = {
            "_bytes": size_text,
            "share": "{:.2%}".format,
            "seconds": "{:,.1f}".format,
        }.get(kind, "{:,.6g}".format)
        return [text(value)]
    if isinstance(value, Mapping) or has_fields(value):
        pairs = _said(value)
        return [f"{key}: {', '.join(_lines(str(key), one))}" for key, one in pairs]
    if isinstance(value, (list, tuple)):
        lines = [", ".join(_lines(name, one)) for one in value[:_LINES_SHOWN]]
        if len(value) > _LINES_SHOWN:
            lines.append(f"and {len(value) - _LINES_SHOWN:,} more: --json has all")
        numbers = all(isinstance(one, (int, float)) for one in value)
        return [", ".join(lines)] if numbers else lines
    return [] if value is None else [str(value)]


def size_text(size_bytes: float) -> str:
    """Returns a size with a unit.

    >>> size_text(2_621_440)
    '2.5 MiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size_bytes) < 1024 or unit == "PiB":
            break
        size_bytes /= 1024
    return (
        f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
    )


def plural(count: int, thing: str) -> str:
    """Returns a count with its noun.

    >>> plural(1, "shard"), plural(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


# Python refuses texts of over 4,300 digits, and arrays numbers of over 64 bits.
_MOST_DIGITS = 18


def whole_number(text: str) -> int | None:
    """Returns the number in a text of decimal digits, None for any other text.

    Numbers of over 18 digits, which are no counts, are None too.

    >>> whole_number("12"), whole_number("-1"), whole_number("9" * 19)
    (12, None, None)
    """
    if not text.isdecimal() or len(text.lstrip("0")) > _MOST_DIGITS:
        return None
    return int(text[-_MOST_DIGITS:])


def json_text(result: Any) -> str:
    """Returns a result as one line of JSON."""
    return json.dumps(json_value(result), ensure_ascii=False)


def json_value(value: Any) -> Any:
    """Returns a value in types of JSON.

    A value with `as_dict` becomes that. Any other dataclass becomes an object of the
    fields in its `repr`, and of the properties in `also_shown`.
    """
    if hasattr(value, "as_dict"):
        return json_value(value.as_dict())
    if hasattr(value, "content_digest"):  # A manifest.
        return json.loads(value.encode())
    if has_fields(value):
        return {name: json_value(one) for name, one in fields_of(value)}
    if isinstance(value, Mapping):
        return {str(name): json_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, Set)):
        return [json_value(one) for one in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def text_of(result: Any) -> str:
    """Returns a result for people: its title, and a line for each fact."""
    if isinstance(result, str):
        return result
    if callable(text := getattr(result, "text", None)):
        own: str = text()
        return own
    title = getattr(result, "title", None)
    facts = fact_lines(getattr(result, "facts", result))
    return "\n".join([*([title] if title else []), *facts])
