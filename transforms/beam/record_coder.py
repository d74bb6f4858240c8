"""How records with their sources travel between steps: as bytes, without pickle."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import apache_beam as beam

_HEAD = struct.Struct("<qI")  # The number, and how many bytes the path has.


class RecordCoder(beam.coders.Coder):
    """Encodes a named tuple of file (text), number (int64) and record (bytes).

    It is deterministic: such elements can be keys. Errors of elements that are no such
    tuples are Python's.
    """

    def __init__(self, kind: Callable[[str, int, bytes], Any]) -> None:
        """Makes the coder of one kind of named tuples."""
        self._kind = kind

    def encode(self, value: tuple[str, int, bytes]) -> bytes:
        """Returns number, length of the path, path and record."""
        file, number, record = value
        path = file.encode("utf-8", "surrogateescape")
        return b"".join((_HEAD.pack(number, len(path)), path, record))

    def decode(self, encoded: bytes) -> Any:
        """Returns the named tuple."""
        number, path_bytes = _HEAD.unpack_from(encoded)
        record_begin = _HEAD.size + path_bytes
        path = encoded[_HEAD.size : record_begin]
        file = path.decode("utf-8", "surrogateescape")
        return self._kind(file, number, encoded[record_begin:])

    def is_deterministic(self) -> bool:
        """Returns that equal elements are equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Returns the named tuple."""
        return self._kind

    @classmethod
    def from_type_hint(cls, typehint: Any, _: Any) -> Any:
        """Returns the coder of a named tuple."""
        return cls(typehint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordCoder) and other._kind == self._kind

    def __hash__(self) -> int:
        return hash(self._kind)


def register(kind: type) -> None:
    """Has Beam encode a named tuple so, wherever it is the type of elements."""
    beam.coders.registry.register_coder(kind, RecordCoder)
