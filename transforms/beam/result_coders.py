"""The coder of transforms' results: equal results have equal bytes, without pickles."""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any, get_args, get_origin, get_type_hints

import apache_beam as beam

from gristmill.dataset.metadata.manifest import Manifest


class ResultCoder(beam.coders.Coder):
    """Encodes results of one type as JSON.

    Args:
        kind: The type: `Manifest`, or a named tuple or dataclass with fields of such
            types.
    """

    def __init__(self, kind: Any):
        self._kind = kind

    @classmethod
    def from_type_hint(cls, kind: Any, registry: Any) -> Any:
        """Returns the coder of a type."""
        return cls(kind)

    def encode(self, value: Any) -> bytes:
        """Returns the bytes of a result."""
        return json.dumps(_plain(value), sort_keys=True).encode("ascii")

    def decode(self, encoded: bytes) -> Any:
        """Returns the result."""
        return _made(self._kind, json.loads(encoded))

    def is_deterministic(self) -> bool:
        """Returns True: equal results have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Returns the type of the results."""
        return self._kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultCoder) and other._kind == self._kind

    def __hash__(self) -> int:
        return hash(self._kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Manifest):
        return value.encode().decode("utf-8")
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        plain = [*map(_plain, value)]
        return plain if fields is None else dict(zip(fields, plain, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def _made(kind: Any, value: Any) -> Any:
    if kind is Manifest:
        return Manifest.decode(value.encode("utf-8"), where="the result of a transform")
    if get_origin(kind) is tuple:
        return tuple(_made(get_args(kind)[0], one) for one in value)
    if get_origin(kind) is types.UnionType:  # With None.
        return None if value is None else _made(get_args(kind)[0], value)
    if isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{name: _made(hints[name], one) for name, one in value.items()})
    return value
