"""A dataset as it was before records were removed that are not kept.

It has the numbers that records had then, and reads those that are still there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import OutOfRangeError
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.loader.base.indices import (
    NOTHING,
    IntArray,
    Removed,
    checked_index,
    checked_indices,
)
from gristmill.loader.base.state_fields import Content
from gristmill.loader.columns.column import Column
from gristmill.loader.data.dataset import Dataset, reader_of, table_of
from gristmill.loader.data.past_states import PastStates
from gristmill.loader.data.selected_dataset import selected


class PastDataset(Dataset):
    """An earlier state of a dataset, some of whose files are gone.

    Args:
        now: The dataset as it is.
        content: Identity of its records.
        removed: Numbers of those that are gone.
    """

    def __init__(self, now: Dataset, content: Content, removed: Removed):
        table: ShardTable | None = table_of(now)
        super().__init__(
            path=now.path,
            reader=reader_of(now),
            recipe=lambda dataset: (_as_of, (now, dataset.edition)),
            split=now.split,
            table=table,
            manifest=now.manifest,
            editions=now.as_of,
            parts=now.parts,
            select=selected,
        )
        self._now, self._content, self._removed = now, content, removed

    def __len__(self) -> int:
        return self._content.records

    def __repr__(self) -> str:
        return (
            f"<Dataset {self._shards.name}, as edition {self.edition}: {len(self):,} "
            f"records, {len(self._removed):,} of them removed>"
        )

    @property
    def edition(self) -> int | None:
        """The edition that was the newest then."""
        return self._content.edition

    @property
    def content(self) -> Content:
        """What is known of the records of then."""
        return self._content

    def begins_with(self, content: Content) -> bool:
        """Returns whether the first records are these, by their digests."""
        return self._content.is_same(content)

    def find(self, records: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Returns the shard of each record, and its number in the shard, as of now.

        Raises OutOfRangeError if one was removed.
        """
        checked = checked_indices(records, stop=len(self), what="record")
        return self._now.find(self._numbers_now(np.atleast_1d(checked)))

    def shards_of(self, records: IntArray) -> IntArray:
        """Returns the shard of each record that batches have, -1 if it was removed."""
        lost = (records < 0) | self._removed.has(records)
        return self._now.shards_of(
            np.where(lost, -1, self._removed.closed(np.maximum(records, 0)))
        )

    def is_removed(self, record: int) -> bool:
        """Returns whether a record cannot be read, as it was removed since."""
        return bool(self._removed.has(np.array([record], np.int64))[0])

    def column(self, name: str) -> Column:
        """Returns a column, as of now, for the records of then; see `Dataset`."""
        return self._now.column(name).renumbered(self._numbers_now, len(self))

    def part_of(self, shard: int) -> tuple[Dataset, int]:
        """Returns the dataset as it is now that has a shard, and its number there."""
        return self._now.part_of(shard)

    def offset_bytes(self, record: int) -> int:
        """Returns the offset, in its shard, of the chunk that holds a record."""
        checked = checked_index(record, stop=len(self), what="record")
        (now,) = self._numbers_now(np.array([checked], np.int64)).tolist()
        return self._now.offset_bytes(now)

    def read_unchecked(self, records: IntArray, *, threads: int = 1) -> list[bytes]:
        """As `read`, of int64 [n] numbers that are known to be in range.

        Raises OutOfRangeError if one was removed.
        """
        return self._now.read_unchecked(self._numbers_now(records), threads=threads)

    def _numbers_now(self, records: IntArray) -> IntArray:
        lost = self._removed.has(records)
        if lost.any():
            raise OutOfRangeError(
                "a record was removed from the dataset, and is not kept",
                where=self._shards.name,
                expected=f"a record that is still there in edition {self._now.edition}",
                got=f"record {int(records[lost][0]):,} of edition {self.edition}",
                cure="continue from a later step, with batches.extended(dataset, "
                "step=s) at the first step s that the run has not seen",
            )
        return self._removed.closed(records)


def present(dataset: Dataset) -> tuple[Dataset, Removed]:
    """Returns a dataset of which all records can be read, and what it lacks.

    That is the dataset as it is now for an earlier state of which files are gone, with
    the numbers, in that state, of the records that were removed since; or itself.
    """
    if isinstance(dataset, PastDataset):
        return dataset._now, dataset._removed
    return dataset, NOTHING


def past_dataset(now: Dataset, edition: int) -> PastDataset | None:
    """Returns a dataset as it was when an edition was the newest, None for no such."""
    states = PastStates(now)
    depths, last = states.at(edition), states.find(now.content)
    if depths is None or last is None:
        return None
    removed = states.lost(depths, last)
    if removed is None:
        return None
    return PastDataset(now, states.content(depths), removed)


def _as_of(now: Dataset, edition: int) -> Any:
    return now.as_of(edition)
