"""The global order as a Grain `MapDataset`: the record at each position."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from gristmill.dataset.base.errors import OutOfRangeError
from gristmill.loader.base.indices import IntArray, checked_indices
from gristmill.loader.data.batches import Batches, read_batch
from gristmill.loader.grain.worker_process import allow_unparsed_flags, end_with_trainer
from gristmill.loader.order.step_records import MixedBatch

# Grain asks for single elements. The order of a thousand positions costs as much as
# that of one, and several threads are at about the same place.
_BLOCK_POSITIONS = 1024
_BLOCKS_KEPT = 4


class OrderDataset(grain.MapDataset):  # type: ignore[misc]  # Grain has no types.
    """Element p is the record at position p. Made by `GlobalBatches.map_dataset`.

    Attributes:
        batches: The global batches.
    """

    def __init__(self, batches: Batches):
        super().__init__()
        allow_unparsed_flags()
        end_with_trainer()
        self.batches = batches
        schedule = batches.schedule
        self._blocks: dict[int, MixedBatch] = {}
        self._length = sys.maxsize
        if schedule.steps is not None:
            stop = schedule.start(schedule.steps)
            self._length = min(schedule.stop, stop)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        position = int(self._positions([index])[0])
        block = self._block(position // _BLOCK_POSITIONS)
        place = position % _BLOCK_POSITIONS
        dataset = self.batches.datasets[int(block.datasets[place])]
        return dataset.read_unchecked(block.records[place : place + 1])[0]

    def _getitems(self, indices: Sequence[int]) -> list[bytes]:
        batch = self.batches.schedule.batch_at(self._positions(indices))
        return read_batch(self.batches, batch)

    def _positions(self, indices: Sequence[int]) -> IntArray:
        try:
            return checked_indices(indices, stop=len(self), what="position")
        except OutOfRangeError as e:
            e.add_note("repeat() has no effect on an order: give epochs to it instead")
            raise

    def _block(self, number: int) -> MixedBatch:
        """Returns the records at the positions of a block."""
        found = self._blocks.get(number)
        if found is None:
            first = number * _BLOCK_POSITIONS
            stop = min(first + _BLOCK_POSITIONS, len(self))
            positions = np.arange(first, stop, dtype=np.int64)
            found = self.batches.schedule.batch_at(positions)
            # Replaced as a whole, for other threads that look into it.
            latest = list(self._blocks.items())[1 - _BLOCKS_KEPT :]
            self._blocks = dict([*latest, (number, found)])
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderDataset, (self.batches,)

    def __str__(self) -> str:
        return f"OrderDataset({len(self):,} records)"
