"""The columns beside the records of a split that is converted, a shard at a time."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.columns.expression import Expression
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    column_entries,
    common_columns,
    read_column_table,
    read_values,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.sources.formats import SourceSpec

BoolArray = npt.NDArray[np.bool_]
Described = Sequence[tuple[int, dict[str, Any]]]
"""Of each edition the number of its shards, and its columns as `dataset.json` has."""


class SplitColumns:
    """Columns that all editions of a split have alike.

    Args:
        dataset: The dataset's directory.
        editions: What describes them, also as JSON gives it back.
        shards: The split's shards, to which they have to belong; None if that is known.

    Attributes:
        editions: The same.
        entries: The columns of the first edition, by name.
    """

    def __init__(
        self, dataset: str, editions: Described, shards: ShardTable | None = None
    ):
        self._dataset, self.editions, self._shards = dataset, editions, shards
        self._entries = [
            {name: ColumnEntry.parse(fields) for name, fields in columns.items()}
            for _, columns in editions
        ]
        self.entries = self._entries[0]
        self._firsts = [*itertools.accumulate((n for n, _ in editions), initial=0)]
        self._table = functools.cache(self._read_table)
        # Shards of the output that follow each other are of one shard, or of two.
        self.values = functools.lru_cache(maxsize=2)(self._values)

    @classmethod
    def of(
        cls,
        dataset: str,
        split: Split,
        shards: ShardTable,
        names: Collection[str] | None = None,
    ) -> Self:
        """Returns some columns of a split, or all that its editions have alike."""
        if names is None:
            names = common_columns(split, dataset)
        editions = [
            (part.shards, {name: entries[name].described() for name in names})
            for part in split.parts
            if (entries := column_entries(part, dataset)) is not None
        ]
        return cls(dataset, editions, shards)

    def check(self) -> None:
        """Raises InvalidDatasetError if one belongs to other records."""
        for edition, entries in enumerate(self._entries):
            for name in entries:
                self._table(edition, name)

    def _read_table(self, edition: int, name: str) -> Any:
        rows = slice(*self._firsts[edition : edition + 2])
        entry = self._entries[edition][name]
        return read_column_table(self._dataset, entry, self._shards, rows)

    def _values(self, name: str, shard: int) -> npt.NDArray[Any]:
        """Returns the values of a shard of the split, by its number."""
        edition = int(np.searchsorted(self._firsts, shard, side="right")) - 1
        kind, table = self.entries[name].kind, self._table(edition, name)
        return read_values(self._dataset, kind, table, shard - self._firsts[edition])


@functools.lru_cache(maxsize=4)
def _selection_of(schema: str) -> tuple[Expression, SplitColumns] | None:
    fields = json.loads(schema) if schema else {}
    if not (selection := fields.get("selection")):
        return None
    columns = SplitColumns(fields["directory"], selection["editions"])
    kinds = {name: entry.kind for name, entry in columns.entries.items()}
    return Expression(selection["expression"], kinds), columns


@functools.lru_cache(maxsize=2)  # Ranges of a file follow each other.
def selected_records(spec: SourceSpec, shard: int) -> BoolArray | None:
    """Returns which records of a shard are selected: bool [records]; None for all.

    Args:
        spec: That of a `SourceSplit`.
        shard: The number of the shard in the split.

    Raises:
        InvalidDatasetError: A column is damaged, or was replaced meanwhile.
    """
    if (found := _selection_of(spec.schema)) is None:
        return None
    expression, columns = found
    values = {name: columns.values(name, shard) for name in expression.names}
    (records,) = {len(each) for each in values.values()}
    return np.broadcast_to(expression.evaluate(values), records)
