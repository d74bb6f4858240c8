"""The bytes before values in protocol buffers: tags, names and lengths.

They depend only on the size of what follows. So they are made once for each size that
occurs, and looked up for the rows: different sizes are few, or else the values are
large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.dataset.base.example import BYTES, FLOATS, INTS
from gristmill.dataset.base.varints import encode_varint
from gristmill.dataset.metadata.features import Kind

_FIELDS = {"bytes": BYTES, "float": FLOATS, "int64": INTS}


def length_headers(tag: bytes, sizes: Any) -> Any:
    """Returns the header of each field of a size: its tag, and the size."""
    return _looked_up(functools.partial(_length_header, tag), sizes)


def entry_headers(name: bytes, kind: Kind, *, single: bool, sizes: Any) -> Any:
    """Returns the bytes before the values of a feature, for each of their sizes.

    Args:
        name: Name of the feature.
        kind: Kind of the list that holds its values.
        single: Whether it is one value of bytes, instead of an encoded list.
        sizes: Number of bytes that follow, an array; null if there is no feature.
    """
    return _looked_up(functools.partial(_entry_header, name, kind, single), sizes)


def _looked_up(header: Callable[[int], bytes], sizes: Any) -> Any:
    found = sizes.dictionary_encode()
    headers = [header(size) for size in found.dictionary.to_pylist()]
    return pc.take(pa.array(headers, pa.large_binary()), found.indices)


@functools.lru_cache(1 << 16)
def _length_header(tag: bytes, size: int) -> bytes:
    return tag + encode_varint(size)


@functools.lru_cache(1 << 16)
def _entry_header(name: bytes, kind: Kind, single: bool, size: int) -> bytes:
    # A list of numbers that is empty has no packed field; one of bytes has no fields.
    packed = single or (kind != "bytes" and size > 0)
    header = _length_header(b"\n", size) if packed else b""
    # From within: the list in its feature, that in the entry, this in the features.
    tag = bytes([_FIELDS[kind] << 3 | 2])
    header = _length_header(tag, len(header) + size) + header
    header = _length_header(b"\x12", len(header) + size) + header
    header = _length_header(b"\n", len(name)) + name + header
    return _length_header(b"\n", len(header) + size) + header
