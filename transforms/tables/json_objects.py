"""Records that are JSON objects of rows, or the plain values of one column."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.dataset.base.errors import InputError, RowError, some_of
from gristmill.transforms.tables.leaves import Leaf, leaf_values, leaves_of
from gristmill.transforms.tables.payloads import payloads
from gristmill.transforms.tables.table_features import spec_of


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


NULLS_CURE = "leave out rows without a value, with --nulls skip"


def null_error(name: str, *, nulls: int, rows: int, where: str) -> InputError:
    """Returns the error for a column of records that is null in some rows.

    Args:
        name: The column.
        nulls: Number of rows with a null.
        rows: Number of all rows.
        where: Where they are.
    """
    return InputError(
        f"column {name!r} is null in some rows, which cannot become records",
        where=where,
        expected="a value in each row, which may be empty",
        got=f"null in {nulls:,} of {rows:,} rows",
        cure=NULLS_CURE,
    )


def check_column(schema: pa.Schema, name: str) -> None:
    """Checks that the values of a column can be records.

    Args:
        schema: The columns.
        name: The column, or a field of one by the name that it has as a feature: the
            bytes of images have the name of their column.

    Raises:
        InputError: There is no such column, or a row has another value than one of
            bytes or text.
    """
    _leaf(schema, name)


def one_column(batch: pa.RecordBatch, name: str) -> list[bytes]:
    """Returns the bytes, or the text in UTF-8, that a column has in each row.

    Args:
        batch: The rows.
        name: The column, as in `check_column`.

    Raises:
        InputError: As `check_column`.
        RowError: A row has no value; `row` is its place in the batch.
    """
    values, _ = leaf_values(batch, _leaf(batch.schema, name))
    values = payloads(values, None, "bytes", name)
    if values.null_count:
        raise RowError(
            f"column {name!r} has no value in a row, so there is no record",
            expected="bytes or text, which may be empty",
            got="null",
            cure=NULLS_CURE,
            row=pc.index(pc.is_null(values), True).as_py(),
            column=name,
        )
    records: list[bytes] = values.to_pylist()
    return records


def _leaf(schema: pa.Schema, name: str) -> Leaf:
    def wanted(column: str) -> bool:
        return name == column or name.startswith(f"{column}.")

    found = [leaf for leaf in leaves_of(schema, wanted) if leaf.name == name]
    # A column without values, or of several fields, has no leaf of its name.
    if len(found) != 1 and (found or name not in schema.names):
        raise InputError(
            "two columns have this name" if found else "the table has no such column",
            expected=f"one of {some_of(schema.names, 20)}",
            got=name,
            cure="give the name of a column with one value of bytes or text in each "
            "row",
        )
    column = found[0].path[0] if found else schema.names.index(name)
    got: Any = schema.field(column)
    spec = spec_of(found[0], got.name) if found else None
    if spec is None or spec.kind != "bytes" or spec.shape:
        raise InputError(
            f"the values of column {name!r} cannot be records",
            expected="one value of bytes or text in each row",
            got=got.type,
            cure="choose another column; or leave out --record to make a "
            "tf.train.Example of all columns, or --tokenizer of `gristmill pack` if "
            "the column holds tokens",
        )
    return found[0]
