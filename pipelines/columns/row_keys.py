"""The rows of tables: their keys as numbers, their types, and values for others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.commit.attached_split import AttachedSplit
from gristmill.pipelines.columns.attached import SHOWN
from gristmill.pipelines.columns.row_store import RowWriter, key_numbers
from gristmill.pipelines.columns.typed_values import filled
from gristmill.pipelines.removal.find_places import find_places
from gristmill.pipelines.text.location import FilePlace

Repeated = Literal["error", "first", "last"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JoinBy:
    """How the rows of tables find their records.

    Attributes:
        feature: The feature of the records with the key; None to find them otherwise.
        key: The columns of the tables with the key: one, or file and place.
        repeated: Which of several rows with a key is taken.
        allow_unmatched: Whether rows may have no record.
        fill: The value for records without a row, or by column; None for an error.
    """

    feature: str | None
    key: tuple[str, ...]
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
            cure="give the number of the row with --number, or compute the column with "
            "--map",
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
    kind = writer.key_kinds[0]
    return kind is not None and kind.is_text


def keys_of(target: AttachedSplit, writer: RowWriter, by: JoinBy) -> tuple[Any, Any]:
    """Returns the keys of rows as numbers, and the row of each."""
    columns, lost = writer.keys()
    rows = np.flatnonzero(~lost)
    kinds = [kind or ColumnType("int64") for kind in writer.key_kinds]
    if len(by.key) == 1:
        if by.feature is None and kinds[0].is_text:
            raise InputError(
                "the numbers of records are texts",
                got=f"the column {by.key[0]!r}",
                cure="write them as integers",
            )
        return key_numbers(kinds[0], columns[0][rows]) if len(rows) else rows, rows
    if not kinds[0].is_text or kinds[1].is_text:
        raise InputError(
            "rows do not name places in files",
            expected="a text with the file, and an integer with the place in it",
            got=f"{kinds[0]} and {kinds[1]}",
            cure="give the columns in this order: --place FILE,PLACE",
        )
    pairs = zip(columns[0][rows].tolist(), columns[1][rows].tolist(), strict=True)
    places = [FilePlace(path, int(at)) for path, at in pairs]
    found = [*find_places(target.dataset, target.split, places)]
    # Rows without a record get a number that no record has.
    numbers = [record for _, record in found]
    of = [int(rows[place]) for place, _ in found]
    nothing = sorted({*range(len(places))} - {place for place, _ in found})
    numbers += [-1 - place for place in nothing]
    of += rows[nothing].tolist()
    return np.array(numbers, np.int64), np.array(of, np.int64)


def refused(what: str, shown: Sequence[str], *, cure: str) -> InputError:
    """Returns the error for rows or records that do not fit; some are shown."""
    return InputError(
        what, got=some_of([*shown], SHOWN), cure=f"{cure}; nothing was attached"
    )
