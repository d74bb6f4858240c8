"""Results as JSON and for people: any dataclass is its fields, and what else it shows.

A result may have a `text` of its own. Others may have `title`, their first line for
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
    """Returns a value as JSON has it.

    What has `as_dict` is that. Another dataclass is an object of its fields, but for
    those that its `repr` leaves out, and of the properties that `also_shown` names.
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
