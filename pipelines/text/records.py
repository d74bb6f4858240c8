"""Records as `gristmill head` and `trace --show` print them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.base.example import Values, decode_example

_TEXT_WIDTH = 72
_VALUES_SHOWN = 8
_BYTES_SHOWN = 24


def record_text(
    number: int, record: bytes, *, full: bool = False, source: str = ""
) -> str:
    """Returns a record as text: a decoded tf.train.Example, a string, or its bytes.

    Args:
        number: Its number.
        record: The record.
        full: Whether to show all of it: long values are cut otherwise.
        source: File and place that it is from, if that is to be shown.
    """
    lines = [f"record {number}: {len(record):,} bytes" + (source and f", {source}")]
    features = _features(record)
    for name, values in sorted(features.items()):
        lines.append(f"  {name}: {_values_text(values, full)}")
    if not features:
        lines.append(f"  {_value_text(record, full)}")
    return "\n".join(lines)


def record_json(
    number: int, record: bytes, *, source: Mapping[str, Any] | None = None
) -> str:
    """Returns a record as one line of JSON, with `source`, the place that it is from.

    It has `features`, or for what is no tf.train.Example null, and `text` or `base64`.
    Of features, bytes that are no UTF-8 are an object with `base64`.
    """
    features = _features(record)
    fields: dict[str, Any] = {"record": number, "bytes": len(record), **(source or {})}
    fields["features"] = {
        name: [_value_json(value) for value in values]
        for name, values in features.items()
    } or None
    if not features:
        value = _value_json(record)
        fields |= value if isinstance(value, dict) else {"text": value}
    return json.dumps(fields, ensure_ascii=False)


def _features(record: bytes) -> dict[str, Values]:
    """Returns the features of a tf.train.Example, none of another record."""
    try:
        return decode_example(record)
    except ValueError:
        return {}


def _value_json(value: bytes | float) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _values_text(values: Values, full: bool) -> str:
    some = values if full else values[:_VALUES_SHOWN]
    shown = ", ".join(_value_text(value, full) for value in some)
    if len(values) > len(some):
        shown += f", ... ({len(values):,} values)"
    return shown if len(values) == 1 else f"[{shown}]"


def _value_text(value: bytes | float, full: bool) -> str:
    if not isinstance(value, bytes):
        return f"{value:g}" if isinstance(value, float) else str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        some = value if full else value[:_BYTES_SHOWN]
        more = f" ... ({len(value):,} bytes)" if len(value) > len(some) else ""
        return some.hex(" ") + more
    short = full or len(text) <= _TEXT_WIDTH
    return repr(text if short else text[:_TEXT_WIDTH] + "...")
