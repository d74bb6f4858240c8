"""Answers as values that JSON and JavaScript can hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_EXACT = 1 << 53
"""Integers beyond it are rounded by JavaScript."""


def plain(value: Any) -> Any:
    """Returns a value of which JSON and JavaScript lose nothing.

    Dataclasses and mappings become objects, numpy's numbers Python's. Numbers that
    JavaScript has not become texts.

    >>> plain({"a": float("nan"), "b": np.int64(7), "c": (1 << 53) + 1})
    {'a': 'nan', 'b': 7, 'c': '9007199254740993'}
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        number = int(value)
        return number if -_EXACT <= number <= _EXACT else str(number)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]
