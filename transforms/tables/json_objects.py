"""The rows of a table as JSON objects, nested columns included."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from gristmill.dataset.base.errors import RowError


def json_rows(batch: pa.RecordBatch) -> list[bytes]:
    """Returns each row as a JSON object in UTF-8, its fields in the order of columns.

    Structs are objects, and maps too. A null field is left out: tables have every field
    of a struct in each row.

    Args:
        batch: The rows.

    Raises:
        RowError: A row has a value that JSON does not have; `row` is its place in the
            batch.
    """
    types = [field.type for field in batch.schema]
    columns = [column.to_pylist() for column in batch.columns]
    records = []
    for row, values in enumerate(zip(*columns, strict=True)):
        named = zip(batch.schema.names, values, types, strict=True)
        try:
            found = {n: _plain(v, kind) for n, v, kind in named if v is not None}
            text = json.dumps(found, ensure_ascii=False, allow_nan=False)
            records.append(text.encode())
        except (TypeError, ValueError) as error:
            raise RowError(
                "a row has a value that JSON does not have",
                expected="texts, finite numbers, true or false, lists and structs",
                got=str(error),
                cure="take other columns, or write this one as text",
                row=row,
            ) from error
    return records


def _plain(value: Any, kind: Any) -> Any:
    """Returns a value without null fields, and with objects for maps."""
    if value is None:
        return None
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return {
            field.name: _plain(value[field.name], field.type)
            for field in kind
            if value[field.name] is not None
        }
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [_plain(item, kind.value_type) for item in value]
    return value
