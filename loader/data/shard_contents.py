"""The contents of the first shards of a dataset, as its tables have them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.loader.base.state_fields import Content
from gristmill.loader.reading.shard_list import ShardList


class ShardContents:
    """Identifies the records of the first shards, and counts packed rows in them.

    Args:
        shards: All shards of the dataset.
        tables: For each dataset that was joined, its table, None for one without, and
            its number of shards.
    """

    def __init__(
        self, shards: ShardList, tables: Sequence[tuple[ShardTable | None, int]]
    ):
        self._shards, self._tables = shards, tables

    def content(self, shards: int) -> Content:
        """Returns the identity of the records of the first shards, in their order."""
        tables = self._tables_of(shards)
        columns = [np.diff(self._shards.ends[:shards], prepend=0)]
        known = [(table, rows) for table, rows in tables if table is not None]
        digest = None
        if len(known) == len(tables):
            for name in ("digest_low", "digest_high"):
                found = [table.columns[name][rows] for table, rows in known]
                columns.append(np.concatenate(found))
            total = sum((t.digest(rows) for t, rows in known), RecordsDigest())
            digest = total.hex
        else:
            sizes = self._shards.starts, self._shards.file_bytes
            columns += [column[:shards] for column in sizes]
        hasher = hashlib.sha256()
        for column in columns:
            hasher.update(column.astype("<u8").tobytes())
        return Content(None, int(columns[0].sum()), digest, hasher.hexdigest()[:32])

    def begin_with(self, content: Content) -> bool:
        """Returns whether the first shards have these records, by their digests."""
        ends = self._shards.ends
        first = int(np.searchsorted(ends, content.records, side="left")) + 1
        last = int(np.searchsorted(ends, content.records, side="right"))
        # More than one where shards are empty.
        return any(
            self.content(shards).is_same(content) for shards in range(first, last + 1)
        )

    def packed_counts(self) -> PackedCounts | None:
        """Returns the counts of packed rows, None for other records."""
        totals = [
            None if table is None else table.packed_total(rows)
            for table, rows in self._tables_of(len(self._shards.ends))
        ]
        found = [total for total in totals if total is not None]
        return sum(found, PackedCounts()) if len(found) == len(totals) else None

    def _tables_of(self, shards: int) -> list[tuple[ShardTable | None, slice]]:
        """Returns the tables that have the first shards, and which rows of each."""
        tables: list[tuple[ShardTable | None, slice]] = []
        for table, num_shards in self._tables:
            if shards > 0 or not tables:
                tables.append((table, slice(shards)))
            shards -= num_shards
        return tables
