"""Results as JSON and for people: any dataclass is shown by its fields.

A result may have its own `text`. Others may have a `title`, their first line for
people, and `facts`, which people get instead of the fields. `also_shown` names
properties that are shown like fields.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Set
from typing import Any

from gristmill.pipelines.text.facts import fact_lines, fields_of, has_fields


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
