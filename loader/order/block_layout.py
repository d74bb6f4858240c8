"""The places of the blocks and windows of a block shuffle in each epoch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.order.permutation import Permutation, Permutations

# Number of epochs for which the places of the short block are cached.
_FEW_EPOCHS = 16
# Positions plus a block must fit int64.
_MAX_RECORDS = 1 << 62


class Blocks:
    """Blocks and windows, whatever the epoch.

    Attributes:
        block_records: Records in a block.
        missing: Records that the last block lacks.
        fewer: Blocks in a window; the first `longer` windows have one more.
        longer: See `fewer`.
        blocks: How the blocks are permuted.
        windows: How records are permuted in windows: in those of `fewer` blocks, then
            in one with the short block; then the same with one block more.
    """

    def __init__(
        self,
        num_records: int,
        seed: int,
        name: str,
        block_records: int,
        window_blocks: int,
    ):
        size = checked_count(num_records, what="num_records", most=_MAX_RECORDS)
        self.block_records = block = min(block_records, size)
        count = -(-size // block)
        self.fewer, self.longer = divmod(count, -(-count // window_blocks))
        self.missing = count * block - size
        self.blocks = Permutation(count, seed=seed, name=f"block/blocks/{name}")
        self.windows = Permutations(
            [
                Permutation(
                    window * block - lacking, seed=seed, name=f"block/window/{name}"
                )
                for window in (self.fewer, self.fewer + 1)
                for lacking in (0, self.missing)
            ]
        )
        self._short_slot = functools.lru_cache(maxsize=256)(self._short_slot_of)

    def _short_slot_of(self, epoch: int) -> int:
        return int(self._short_slots(np.array([epoch], np.int64))[0])

    def _short_slots(self, epochs: IntArray) -> IntArray:
        last = np.full(epochs.shape, self.blocks.size - 1, np.int64)
        return self.blocks.map(last, epoch=epochs, inverse=True)

    def layout(self, epochs: IntArray) -> BlockLayout:
        """Returns the layout of the epoch of each index, or of one for all."""
        first, last = (int(epochs.min()), int(epochs.max())) if epochs.size else (0, 0)
        if last - first >= _FEW_EPOCHS:
            return BlockLayout(self, epochs, self._short_slots(epochs))
        slots = [self._short_slot(epoch) for epoch in range(first, last + 1)]
        return BlockLayout(self, epochs, np.array(slots, np.int64)[epochs - first])


blocks_of = functools.lru_cache(maxsize=64)(Blocks)


class BlockLayout(NamedTuple):
    """Where blocks (at slots of the permuted order) and windows start in an epoch.

    All slots are `block_records` long but the one with the last block, which lacks
    `missing` records; whatever follows it starts that much earlier.
    """

    blocks: Blocks
    epochs: IntArray
    short_slot: IntArray

    def record_at(self, indices: IntArray) -> IntArray:
        """Returns the records at positions of an epoch."""
        window = self.window_of(self.slot_at(indices))
        place = self.mix(indices, window, inverse=False)
        slot = self.slot_at(place)
        record: IntArray = self.block_at(slot) * self.blocks.block_records
        return record + place - self.slot_start(slot)

    def position_of(self, indices: IntArray) -> IntArray:
        """Returns the positions of records in an epoch."""
        block, offset = np.divmod(indices, self.blocks.block_records)
        slot = self.block_at(block, inverse=True)
        place = self.slot_start(slot) + offset
        return self.mix(place, self.window_of(slot), inverse=True)

    def block_at(self, slot: IntArray, *, inverse: bool = False) -> IntArray:
        """Returns the block at a slot, or the slot of a block."""
        return self.blocks.blocks.map(slot, epoch=self.epochs, inverse=inverse)

    def slot_start(self, slot: IntArray) -> IntArray:
        """First place of a slot; for the slot past the last, `num_records`."""
        start: IntArray = slot * self.blocks.block_records
        return start - self.blocks.missing * (slot > self.short_slot)

    def slot_at(self, place: IntArray) -> IntArray:
        """Returns the slot that holds a place."""
        behind = place >= self.slot_start(self.short_slot + 1)
        slot: IntArray = (
            place + self.blocks.missing * behind
        ) // self.blocks.block_records
        return slot

    def window_of(self, slot: IntArray) -> IntArray:
        """Returns the window that has a slot."""
        border = self.blocks.longer * (self.blocks.fewer + 1)
        window: IntArray = np.where(
            slot < border,
            slot // (self.blocks.fewer + 1),
            self.blocks.longer + (slot - border) // self.blocks.fewer,
        )
        return window

    def window_slot(self, window: IntArray) -> IntArray:
        """First slot of a window; for the window past the last, all slots."""
        slot: IntArray = window * self.blocks.fewer + np.minimum(
            window, self.blocks.longer
        )
        return slot

    def mix(self, place: IntArray, window: IntArray, *, inverse: bool) -> IntArray:
        """Permutes places within their windows."""
        start = self.slot_start(self.window_slot(window))
        which = 2 * (window < self.blocks.longer)
        which = which + (window == self.window_of(self.short_slot))
        mixed = self.blocks.windows.map(
            place - start, which, epoch=self.epochs, lane=window, inverse=inverse
        )
        moved: IntArray = start + mixed
        return moved
