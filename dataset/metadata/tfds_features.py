"""`features.json`: the features of records, as TensorFlow Datasets writes them.

Read as plain JSON. Sources: features/*.py, example_serializer.py and
proto/feature.proto in tensorflow_datasets/core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.dataset.metadata.features import FeatureSpec, Kind

_Shape = tuple[int | None, ...]

# Numpy's names of types -> the list that holds them, and their dtype there.
_TENSORS: Mapping[str, tuple[Kind, str]] = {
    **{name: ("float", name) for name in ("float16", "float32")},
    "float64": ("float", "float32"),
    **{
        name: ("int64", name)
        for name in (
            *("bool", "int8", "int16", "int32", "int64"),
            *("uint8", "uint16", "uint32", "uint64"),
        )
    },
    **{name: ("bytes", "bytes") for name in ("string", "object")},
}


def parse_tfds_features(document: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Returns the features of TFDS records, by their names in the records.

    Features that TFDS stores in its own way are left out: nested sequences, video,
    audio, and any unknown to this version.

    Args:
        document: The content of `features.json`.
    """
    try:
        return dict(_fields("", document["featuresDict"], ()))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}  # From a version with another form.


def _fields(
    prefix: str, content: Any, outer: _Shape
) -> Iterator[tuple[str, FeatureSpec]]:
    for name, feature in content["features"].items():
        yield from _feature(prefix + name, feature, outer)


def _feature(
    name: str, feature: Mapping[str, Any], outer: _Shape
) -> Iterator[tuple[str, FeatureSpec]]:
    if "featuresDict" in feature:
        yield from _fields(f"{name}/", feature["featuresDict"], outer)
    elif "sequence" in feature:
        sequence = feature["sequence"]
        shape = (*outer, _size(sequence.get("length", "-1")))
        yield from _feature(name, sequence["feature"], shape)
    elif "translation" in feature:
        for language in feature["translation"]["languages"]:
            yield from _one(f"{name}/{language}", "string", outer, "string")
    elif "text" in feature:
        yield from _one(name, "string", outer, "string")
    elif "image" in feature:
        yield from _one(name, "string", outer, "image")
    elif "classLabel" in feature:
        yield from _one(name, "int64", outer, "class_label")
    else:
        tensor = feature.get("tensor", feature.get("boundingBox"))
        if tensor is not None:
            dtype = tensor["dtype"]
            sizes = tensor["shape"].get("dimensions", ())
            if tensor.get("encoding", "none") in ("none", ""):
                yield from _one(name, dtype, (*outer, *map(_size, sizes)), dtype)
            else:  # One value: the bytes of the array.
                yield from _one(name, "string", outer, "")


def _one(
    name: str, dtype: str, shape: _Shape, meaning: str
) -> Iterator[tuple[str, FeatureSpec]]:
    if dtype not in _TENSORS or None in shape[1:]:
        return
    kind, stored = _TENSORS[dtype]
    meaning = {"float64": "double"}.get(meaning, meaning)
    # A sequence without items is a feature without a list.
    optional = None in shape or 0 in shape
    yield (
        name,
        FeatureSpec(
            kind=kind, dtype=stored, shape=shape, optional=optional, type=meaning
        ),
    )


def _size(text: Any) -> int | None:
    """Returns a dimension, None for one that varies; 64-bit integers are texts."""
    size = int(text)
    return None if size < 0 else size
