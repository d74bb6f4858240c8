"""The records made from rows, by `--record`."""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.features import encode_features
from gristmill.transforms.sources.lines.row_lines import MakeRecords
from gristmill.transforms.tables import (
    check_column,
    encode_rows,
    features_of,
    one_column,
)


def column_of(record: str) -> str | None:
    """Returns the column whose values are the records, None for other records."""
    kind, _, column = record.partition(":")
    return column if kind == "column" else None


def make_records(record: str, fields: pa.Schema) -> MakeRecords:
    """Returns the maker of records from rows; None for plain lines.

    Args:
        record: `example`, `column:NAME` or `line`.
        fields: The columns.

    Raises:
        InputError: The columns do not fit such records.
    """
    if record == "line":
        return None
    column = column_of(record)
    if column is not None:
        check_column(fields, column)
        return functools.partial(one_column, name=column)
    return functools.partial(encode_rows, features=features_of(fields))


def described(record: str, fields: pa.Schema) -> dict[str, Any] | None:
    """Returns the features of such records, for `dataset.json`."""
    return encode_features(features_of(fields)) if record == "example" else None


def refuse_columns(record: str, columns: tuple[str, ...]) -> None:
    """Raises InputError if columns were chosen for records that are not examples."""
    if columns and record != "example":
        raise InputError(
            f"--columns is not for --record {record}",
            expected="--columns with records that are examples, the default",
            got=f"--columns {','.join(columns)}",
            cure="leave out one of them",
        )
