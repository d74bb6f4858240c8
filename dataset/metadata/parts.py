"""The parts of a split that several programs write together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split

PART_COLUMN = "part"  # Column of a table of shards: int64 [shards], the part of each.
PARTS_FIELD = "parts"  # Field of a split's source: the number of parts.


def part_count(split: Split) -> int | None:
    """Returns the number of parts that a split was made in, None if it has none."""
    parts = split.source.get(PARTS_FIELD)
    return parts if type(parts) is int else None


def part_column(table: ShardTable, *, where: str) -> npt.NDArray[np.int64]:
    """Returns the part of each shard, int64 [shards], for a split that has parts.

    Args:
        table: The table of its shards.
        where: The table's path, for messages.

    Raises:
        InvalidDatasetError: It does not have them.
    """
    column = table.columns.get(PART_COLUMN)
    if column is None or column.shape != (len(table),) or column.dtype != np.int64:
        raise InvalidDatasetError(
            "table of shards does not say which part each is of",
            where=where,
            cure="restore it from a copy, or write the split again with overwrite=True",
        )
    return column
