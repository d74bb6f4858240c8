"""One record as `gristmill head` prints it."""

from __future__ import annotations

import json

from gristmill.dataset.example import Values, decode_example

_TEXT_WIDTH = 72
_VALUES_SHOWN = 8


def record_text(number: int, record: bytes) -> str:
    """Returns a record as text: a decoded tf.train.Example, a string, or its bytes."""
    lines = [f"record {number}: {len(record):,} bytes"]
    try:
        features = decode_example(record) if record else {}
    except ValueError:
        features = {}
    for name, values in sorted(features.items()):
        lines.append(f"  {name}: {_values_text(values)}")
    if not features:
        lines.append(f"  {_value_text(record)}")
    return "\n".join(lines)


def record_json(number: int, record: bytes) -> str:
    """Returns a record as one line of JSON."""
    try:
        features = decode_example(record) if record else {}
    except ValueError:
        features = {}
    shown = {
        name: [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in vs]
        for name, vs in features.items()
    }
    fields = {"record": number, "bytes": len(record), "features": shown or None}
    return json.dumps(fields, ensure_ascii=False)


def _values_text(values: Values) -> str:
    shown = ", ".join(_value_text(value) for value in values[:_VALUES_SHOWN])
    if len(values) > _VALUES_SHOWN:
        shown += f", ... ({len(values):,} values)"
    return shown if len(values) == 1 else f"[{shown}]"


def _value_text(value: bytes | float) -> str:
    if not isinstance(value, bytes):
        return f"{value:g}" if isinstance(value, float) else str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        shown = value[:24].hex(" ")
        return f"{shown} ... ({len(value):,} bytes)" if len(value) > 24 else shown
    short = text if len(text) <= _TEXT_WIDTH else text[:_TEXT_WIDTH] + "..."
    return repr(short)
