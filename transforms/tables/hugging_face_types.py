"""Hugging Face's metadata about the columns of a table.

It stands as JSON in the metadata of the schema. Files may have anything there: whatever
cannot be parsed is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

CLASS_LABEL = "class_label"
_KEY = b"huggingface"
_LISTS = ("Sequence", "List", "LargeList")
_ARRAYS = ("Array2D", "Array3D", "Array4D", "Array5D")
_FILES = {"Image": "image", "Audio": "audio", "Video": "video", "Pdf": "pdf"}


def described_columns(metadata: Mapping[bytes, bytes] | None) -> Mapping[str, Any]:
    """Returns the description of each column by its name; empty if there is none."""
    try:
        document = json.loads((metadata or {}).get(_KEY, b"{}"))
        features = document["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def of_items(described: Any) -> Any:
    """Returns the description of the items of a list."""
    if isinstance(described, list):
        return described[0] if described else None
    if sizes := _array_shape(described):
        return {**described, "shape": sizes[1:]}
    return described.get("feature") if _kind(described) in _LISTS else None


def of_field(described: Any, name: str) -> Any:
    """Returns the description of a field of a struct."""
    if _kind(described) in _LISTS:  # A list of structs is kept as a struct of lists.
        return {**described, "feature": of_field(described.get("feature"), name)}
    return described.get(name) if isinstance(described, dict) else None


def length_of(described: Any) -> int | None:
    """Returns the length of every list, None if it varies."""
    if sizes := _array_shape(described):
        length = sizes[0]
    else:
        length = described.get("length") if _kind(described) in _LISTS else None
    return length if type(length) is int and length >= 0 else None


def file_type(described: Any) -> str:
    """Returns the kind of files that the values are, such as `image`, or ""."""
    return _FILES.get(_kind(described), "")


def is_meaning(name: str) -> bool:
    """Returns whether the type of a feature is known only by these descriptions."""
    return name == CLASS_LABEL or name in _FILES.values()


def class_names(described: Any) -> tuple[str, ...] | None:
    """Returns the names of classes, None if the values do not number classes."""
    if _kind(described) != "ClassLabel":
        return None
    names = described.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _array_shape(described: Any) -> list[Any]:
    """Returns the shape of an array of several dimensions, else nothing."""
    if _kind(described) not in _ARRAYS:
        return []
    shape = described.get("shape")
    return list(shape) if isinstance(shape, list | tuple) else []


def _kind(described: Any) -> str:
    kind = described.get("_type") if isinstance(described, dict) else None
    return kind if isinstance(kind, str) else ""
