"""The rows of tables: their keys as numbers, their types, and values for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.commit.attached_split import AttachedSplit
from gristmill.pipelines.columns.attached import SHOWN
from gristmill.pipelines.columns.row_store import RowWriter, key_numbers
from gristmill.pipelines.columns.typed_values import filled

Repeated = Literal["error", "first", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinBy:
    """How the rows of tables find their records.

    Attributes:
        feature: The feature of the records with the key; None for their numbers.
        key: The column of the tables with the key.
        repeated: Which of several rows with a key is taken.
        allow_unmatched: Whether rows may have no record.
        fill: The value for records without a row, or by column; None for an error.
    """

    feature: str | None
    key: str
    repeated: Repeated = "error"
    allow_unmatched: bool = False
    fill: Any = None


def check_feature(target: AttachedSplit, by: JoinBy) -> None:
    """Raises InputError if records have no features to join by."""
    if by.feature is not None and target.split.packed is not None:
        raise InputError(
            "packed rows have no features to join by",
            where=f"{target.dataset}, split {target.name}",
            got=f"the feature {by.feature!r}",
            cure="attach before packing, and pack --select by the column; or give the "
            "number of the row with --number",
        )


def kinds_of(writer: RowWriter, inputs: Sequence[str]) -> dict[str, ColumnType]:
    """Returns the types of columns; raises InputError if one has no value."""
    kinds = {name: kind for name, kind in writer.kinds.items() if kind is not None}
    nothing = [name for name in writer.kinds if name not in kinds]
    if nothing or not kinds:
        raise InputError(
            f"the column {nothing[0]!r} has no value"
            if nothing
            else "the tables have no column besides the key",
            where=some_of(inputs),
            cure="name those to attach with --columns",
        )
    return kinds


def fills_of(kinds: Mapping[str, ColumnType], given: Any) -> dict[str, Any] | None:
    """Returns the values for records without one, by column; None for an error."""
    if given is None:
        return None
    fills = given if isinstance(given, dict) else dict.fromkeys(kinds, given)
    if fills.keys() != kinds.keys():
        raise InputError(
            "the values for missing ones are of other columns",
            expected=", ".join(kinds),
            got=", ".join(fills),
            cure="give a value for each column with --missing, or one for all",
        )
    return {n: filled(kind, fills[n], column=n) for n, kind in kinds.items()}


def has_texts(writer: RowWriter) -> bool:
    """Returns whether keys are texts."""
    return writer.key_kind is not None and writer.key_kind.is_text


def keys_of(writer: RowWriter, by: JoinBy) -> tuple[Any, Any]:
    """Returns the keys of rows as numbers, and the row of each."""
    keys, lost = writer.keys()
    rows = np.flatnonzero(~lost)
    kind = writer.key_kind or ColumnType("int64")
    if by.feature is None and kind.is_text:
        raise InputError(
            "the numbers of records are texts",
            got=f"the column {by.key!r}",
            cure="write them as integers",
        )
    return key_numbers(kind, keys[rows]) if len(rows) else rows, rows


def refused(what: str, shown: Sequence[str], *, cure: str) -> InputError:
    """Returns the error for rows or records that do not fit; some are shown."""
    return InputError(
        what, got=some_of([*shown], SHOWN), cure=f"{cure}; nothing was attached"
    )
