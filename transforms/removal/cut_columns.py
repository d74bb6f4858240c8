"""The columns of an edition that loses records: those that are left keep their values.

Shards that are shared with the edition before share the files of their values, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.columns.column_file import encode_column
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    ColumnTable,
    StoredColumn,
    column_entries,
    read_column_table,
    read_values,
    write_column_table,
)
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.removal.plan_removal import EditionRemoval, Removal


def cut_columns(
    removal: Removal,
    one: EditionRemoval,
    new: ShardTable,
    cut: npt.NDArray[np.int64],
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the columns of a new edition, for `Split.columns`; writes their files.

    Args:
        removal: The removal.
        one: The edition, and the one that it takes the place of.
        new: The shards of the new edition.
        cut: int64 [shards written again], their numbers.

    Raises:
        InvalidDatasetError: A column is damaged, or belongs to other records.
    """
    if not one.base.columns:
        return {}
    before = read_table(removal.dataset, one.base)
    return {
        name: _cut(removal, one, name, entry, before, new, cut).described()
        for name, entry in column_entries(one.base, removal.dataset).items()
    }


def _cut(
    removal: Removal,
    one: EditionRemoval,
    name: str,
    entry: ColumnEntry,
    before: ShardTable,
    new: ShardTable,
    cut: npt.NDArray[np.int64],
) -> ColumnEntry:
    dataset, storage = removal.dataset, storage_for(removal.dataset)
    table = read_column_table(dataset, entry, before)
    ends = np.cumsum(before.records)
    files = [table.file(shard) for shard in range(len(table))]
    for shard in cut.tolist():
        values = read_values(dataset, entry.kind, table, shard)
        begin, end = int(ends[shard] - before.records[shard]), int(ends[shard])
        own = slice(*np.searchsorted(one.records, [begin, end]))
        values = np.delete(values, one.records[own] - begin, axis=0)
        data = encode_column(entry.kind, values, new.digest(shard))
        path = layout.column_path(new.paths[shard], name, one.write.id)
        storage.write(layout.join(dataset, path), data)
        files[shard] = StoredColumn(path, len(data), google_crc32c.value(data))
    return write_column_table(
        dataset,
        layout.column_table_path(removal.name, one.write.key, name, one.write.id),
        entry.kind,
        ColumnTable.of(files, new),
        source=entry.source,
    )
