"""A column of all editions of a dataset, and of all datasets that were joined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.metadata.column_table import (
    column_entries,
    common_columns,
    missing_column,
    read_column_table,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.loader.base.indices import IntArray
from gristmill.loader.columns.column import Column, ColumnFiles


class ColumnPart(NamedTuple):
    """A dataset that was joined with others, or one alone.

    Attributes:
        path: The dataset's directory.
        split: Its split in `dataset.json`, None if there is none.
        shards: The table of its shards, None if there is none.
        name: What messages call it.
    """

    path: str
    split: Split | None
    shards: ShardTable | None
    name: str

    @property
    def types(self) -> dict[str, ColumnType]:
        """The types of the columns that all its editions have alike, by name."""
        if self.split is None or self.shards is None:
            return {}
        return common_columns(self.split, self.path)

    def files(self, column: str) -> Iterator[ColumnFiles]:
        """Yields the files of a column of each edition, compared with its shards."""
        first = 0
        for edition in () if self.split is None else self.split.parts:
            entry = column_entries(edition, self.path)[column]
            rows = slice(first, first + edition.shards)
            table = read_column_table(self.path, entry, self.shards, rows)
            yield ColumnFiles(self.path, table)
            first += edition.shards


def column_types(parts: Sequence[ColumnPart]) -> dict[str, ColumnType]:
    """Returns the types of the columns that all parts have alike, by name."""
    first, *others = [part.types for part in parts]
    return {
        name: kind
        for name, kind in first.items()
        if all(other.get(name) == kind for other in others)
    }


def joined_column(
    name: str, parts: Sequence[ColumnPart], ends: IntArray, *, where: str
) -> Column:
    """Returns a column of all parts.

    Args:
        name: The column's name.
        parts: Its datasets, in order.
        ends: int64 [shards], one past the last record of each shard of all parts.
        where: The dataset of all parts, for messages.

    Raises:
        InputError: There is no such column, or not for all records.
        InvalidDatasetError: It was attached to other records, or is damaged.
    """
    known = column_types(parts)
    if (kind := known.get(name)) is None:
        for part in parts:
            if name not in part.types:
                raise missing_column(part.split, name, where=part.name, known=known)
        raise InputError(
            f"joined datasets have the column {name!r} with other types",
            where=where,
            got=", ".join(str(part.types[name]) for part in parts),
            cure="attach it again with one type for all",
        )
    files = [file for part in parts for file in part.files(name)]
    return Column(name, kind, files, ends)
