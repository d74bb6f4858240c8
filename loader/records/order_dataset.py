"""The global order as a Grain `MapDataset`: the record at each position."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import grain

from gristmill.dataset.errors import OutOfRangeError
from gristmill.loader.batches import Batches
from gristmill.loader.feed.grain_flags import allow_unparsed_flags
from gristmill.loader.indices import checked_indices


class OrderDataset(grain.MapDataset):  # type: ignore[misc]  # Grain has no types.
    """Element p is the record at position p. Made by `GlobalBatches.map_dataset`.

    Attributes:
        batches: The global batches.
    """

    def __init__(self, batches: Batches):
        super().__init__()
        allow_unparsed_flags()
        self.batches = batches
        schedule = batches.schedule
        self._length = sys.maxsize
        if schedule.steps is not None:
            stop = schedule.sizes.start(schedule.steps)
            self._length = min(schedule.stop, stop)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[bytes]:
        try:
            positions = checked_indices(indices, stop=len(self), what="position")
        except OutOfRangeError as e:
            e.add_note("repeat() has no effect on an order: give epochs to it instead")
            raise
        return self.batches.read_batch(self.batches.schedule.batch_unchecked(positions))

    def __str__(self) -> str:
        return f"OrderDataset({len(self):,} records)"
