"""The places of the blocks and windows of a block shuffle in each epoch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.order.permutation import Permutation, Permutations

# Number of epochs for which the short blocks of all lanes are cached.
_FEW_EPOCHS = 16
# Positions plus a block must fit int64.
_MAX_RECORDS = 1 << 62


class LaneKey(NamedTuple):
    """The parameters of a lane's order, besides the shuffle and the epoch.

    Attributes:
        num_records: Records in the lane.
        seed: Any integer.
        name: Lanes with the same seed and different names differ in their order.
    """

    num_records: int
    seed: int
    name: str


class Blocks:
    """Blocks and windows of one or more lanes, whatever the epoch. Arrays are [lanes].

    Attributes:
        block_records: Records in a block.
        num_blocks: Blocks of a lane.
        missing: Records that the last block lacks.
        fewer: Blocks in a window; the first `longer` windows have one more.
        longer: See `fewer`.
        blocks: How the blocks of each lane are permuted.
        windows: How records are permuted in windows: for each lane, in windows of
            `fewer` blocks, then the same with the short block; then in those with one
            more.
    """

    def __init__(
        self, keys: tuple[LaneKey, ...], block_records: int, window_blocks: int
    ):
        columns: list[tuple[int, ...]] = []
        blocks, windows = [], []
        for key in keys:
            size = checked_count(key.num_records, what="num_records", most=_MAX_RECORDS)
            block = min(block_records, size)
            count = -(-size // block)
            fewer, longer = divmod(count, -(-count // window_blocks))
            missing = count * block - size
            columns.append((block, count, missing, fewer, longer))
            name = f"block/blocks/{key.name}"
            blocks.append(Permutation(count, seed=key.seed, name=name))
            name = f"block/window/{key.name}"
            windows += [
                Permutation(window * block - lacking, seed=key.seed, name=name)
                for window in (fewer, fewer + 1)
                for lacking in (0, missing)
            ]
        self.columns = np.array(columns, np.int64).T
        self.blocks, self.windows = Permutations(blocks), Permutations(windows)
        self._short_slots = functools.lru_cache(maxsize=256)(self._short_slots_of)

    def _short_slots_of(self, epoch: int) -> IntArray:
        lanes = np.arange(self.columns.shape[1])
        last = self.columns[1] - 1
        return self.blocks.map(
            last, lanes, epoch=np.array([epoch], np.int64), inverse=True
        )

    def layout(self, lanes: IntArray | None, epochs: IntArray) -> BlockLayout:
        """Returns the layout of the lane and epoch of each index.

        Args:
            lanes: The lane of each index, None if there is one.
            epochs: The epoch of each, or one for all.
        """
        columns = self.columns[:, 0] if lanes is None else self.columns[:, lanes]
        own = np.zeros(1, np.int64) if lanes is None else lanes
        first, last = (int(epochs.min()), int(epochs.max())) if epochs.size else (0, 0)
        if last - first < _FEW_EPOCHS:
            table = np.stack([self._short_slots(n) for n in range(first, last + 1)])
            short = table[epochs - first, own]
        else:
            everywhere = np.broadcast_to(own, epochs.shape)
            short = self.blocks.map(
                self.columns[1, everywhere] - 1, everywhere, epoch=epochs, inverse=True
            )
        return BlockLayout(self, own, epochs, short, *columns)


blocks_of = functools.lru_cache(maxsize=64)(Blocks)


class BlockLayout(NamedTuple):
    """Where blocks (at slots of the permuted order) and windows start in an epoch.

    All slots are `block_records` long but the one with the last block, which lacks
    `missing` records; whatever follows it starts that much earlier. All but the first
    have one value for each index, or one for all.
    """

    blocks: Blocks
    lanes: IntArray
    epochs: IntArray
    short_slot: IntArray
    block_records: IntArray
    num_blocks: IntArray
    missing: IntArray
    fewer: IntArray
    longer: IntArray

    def record_at(self, indices: IntArray) -> IntArray:
        """Returns the records at positions of an epoch."""
        window = self.window_of(self.slot_at(indices))
        place = self.mix(indices, window, inverse=False)
        slot = self.slot_at(place)
        record: IntArray = self.block_at(slot) * self.block_records
        return record + place - self.slot_start(slot)

    def position_of(self, indices: IntArray) -> IntArray:
        """Returns the positions of records in an epoch."""
        block, offset = np.divmod(indices, self.block_records)
        slot = self.block_at(block, inverse=True)
        place = self.slot_start(slot) + offset
        return self.mix(place, self.window_of(slot), inverse=True)

    def block_at(self, slot: IntArray, *, inverse: bool = False) -> IntArray:
        """Returns the block at a slot, or the slot of a block."""
        return self.blocks.blocks.map(
            slot, self.lanes, epoch=self.epochs, inverse=inverse
        )

    def slot_start(self, slot: IntArray) -> IntArray:
        """First place of a slot; for the slot past the last, `num_records`."""
        start: IntArray = slot * self.block_records
        return start - self.missing * (slot > self.short_slot)

    def slot_at(self, place: IntArray) -> IntArray:
        """Returns the slot that holds a place."""
        behind = place >= self.slot_start(self.short_slot + 1)
        slot: IntArray = (place + self.missing * behind) // self.block_records
        return slot

    def window_of(self, slot: IntArray) -> IntArray:
        """Returns the window that has a slot."""
        border = self.longer * (self.fewer + 1)
        window: IntArray = np.where(
            slot < border,
            slot // (self.fewer + 1),
            self.longer + (slot - border) // self.fewer,
        )
        return window

    def window_slot(self, window: IntArray) -> IntArray:
        """First slot of a window; for the window past the last, all slots."""
        slot: IntArray = window * self.fewer + np.minimum(window, self.longer)
        return slot

    def mix(self, place: IntArray, window: IntArray, *, inverse: bool) -> IntArray:
        """Permutes places within their windows, one lane a window."""
        start = self.slot_start(self.window_slot(window))
        which = 4 * self.lanes + 2 * (window < self.longer)
        which = which + (window == self.window_of(self.short_slot))
        mixed = self.blocks.windows.map(
            place - start, which, epoch=self.epochs, lane=window, inverse=inverse
        )
        moved: IntArray = start + mixed
        return moved
