"""JSON numbers as whole numbers or texts, as required by their columns."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.transforms.sources.lines.parser import Lines
from gristmill.transforms.tables.whole_numbers import is_lost, whole_number

# Only numbers this long can change as doubles.
_LONG = re.compile(rb"[\[:,\s-]\d{16}")


class Number(str):
    """A number as its text."""

    __slots__ = ()


def leaf_types(kind: pa.DataType) -> set[pa.DataType]:
    """Returns the types of the values in lists and objects, however deep."""
    if pa.types.is_list(kind):
        return leaf_types(kind.value_type)
    if pa.types.is_struct(kind):
        return set().union(*(leaf_types(one.type) for one in kind))
    return {kind}


class JsonNumbers:
    """Checks numbers for which the schema says more than pyarrow knows.

    Args:
        schema: The fields.
        parse: Returns the value of a line, its numbers as `Number`; raises ValueError
            or RecursionError if it is not JSON.
    """

    def __init__(self, schema: pa.Schema, parse: Callable[[bytes], Any]):
        self._schema, self._parse = schema, parse
        types = leaf_types(pa.struct(schema))
        self._has_doubles = pa.float64() in types
        self._converts = bool(types & {pa.int64(), pa.large_string()})

    def check(self, lines: Lines) -> None:
        """Raises ValueError for a whole number that a double does not hold."""
        if not self._has_doubles:
            return
        checked = -1
        for match in _LONG.finditer(lines.data):
            index = lines.index_at(match.end() - 1)
            if index == checked:
                continue
            checked = index
            try:
                found = self._parse(lines.line(index))
            except (ValueError, RecursionError):
                continue  # Others check that.
            _fitted(found, self._schema)

    def fitted(self, lines: Lines) -> Lines | None:
        """Returns lines with numbers as required by columns, None if none changes.

        `2.0` becomes an integer in a column of integers, and 7 a text in a column
        requested as text. A readable line is never changed.
        """
        if not self._converts:
            return None
        changed, pieces = False, []
        for index in range(len(lines.ends)):
            piece = lines.part(index, index + 1).data
            line = lines.line(index)
            # Others report a line that cannot be read.
            with contextlib.suppress(ValueError, RecursionError):
                found = self._parse(line)
                fitted = _fitted(found, self._schema)
                if isinstance(found, dict) and _differs(found, fitted):
                    piece = json.dumps(_plain(fitted)).encode() + b"\n"
                    changed = True
            pieces.append(piece)
        if not changed:
            return None
        return Lines(b"".join(pieces), np.cumsum(list(map(len, pieces))))


def _fitted(value: Any, kind: pa.DataType | pa.Schema) -> Any:
    """Returns a value with its numbers as required by a type.

    Raises:
        ValueError: A double cannot hold a whole number.
    """
    if isinstance(value, dict):
        if not isinstance(kind, pa.Schema) and not pa.types.is_struct(kind):
            return value
        types = {one.name: one.type for one in kind}
        return {
            name: _fitted(item, types[name]) if name in types else item
            for name, item in value.items()
        }
    if isinstance(kind, pa.Schema):
        return value
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_fitted(item, kind.value_type) for item in value]
    if not isinstance(value, Number):
        return value
    if pa.types.is_large_string(kind):
        return str(value)
    if pa.types.is_integer(kind) and not value.lstrip("-").isdecimal():
        whole = whole_number(value)
        return value if whole is None else Number(whole)
    if kind == pa.float64():
        whole = whole_number(value)
        vast = whole is None and value.lstrip("-").isdecimal() and value != "-0"
        if vast or (whole is not None and is_lost(whole)):
            raise ValueError(str(value))
    return value


def _differs(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return any(_differs(item, other[name]) for name, item in one.items())
    if isinstance(one, list):
        return any(map(_differs, one, other))
    return type(one) is not type(other) or one != other


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, Number):
        return int(value) if value.lstrip("-").isdecimal() else float(value)
    return value
