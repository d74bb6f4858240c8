"""Results as JSON: any dataclass is its fields, and what else it shows."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping, Set
from typing import Any


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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        from gristmill.dataset.metadata.manifest import Manifest

        if isinstance(value, Manifest):
            return json.loads(value.encode())
        names = [field.name for field in dataclasses.fields(value) if field.repr]
        names += getattr(value, "also_shown", ())
        return {name: json_value(getattr(value, name)) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return json_value(value._asdict())
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
