"""The order of the records within an epoch.

A shuffle is pure configuration. Its `map` maps positions in an epoch to record indices,
or back: a pure function of the arguments, computed index by index in constant time.

=========  ======================================  ================================
shuffle    order                                   reading
=========  ======================================  ================================
`none`     as stored                               sequential
`global`   every record anywhere                   random
`block`    blocks anywhere, then every record      a window's blocks at a time, each
           anywhere within its window of blocks    a run of consecutive records
=========  ======================================  ================================
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import FormatVersionError, InputError
from gristmill.loader.base.indices import IntArray, by_value, checked_count
from gristmill.loader.order.permutation import (
    PERMUTATION_VERSION,
    Permutation,
)

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
        name = f"block/window/{name}"
        self.windows = [
            Permutation(window * block - lacking, seed=seed, name=name)
            for window in (self.fewer, self.fewer + 1)
            for lacking in (0, self.missing)
        ]
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
        offsets, epochs = place - start, self.epochs
        mixed = np.empty_like(offsets)
        for kind, own in by_value(which):
            mixed[own] = self.blocks.windows[kind].map(
                offsets[own],
                epoch=epochs if epochs.size == 1 else epochs[own],
                lane=window[own],
                inverse=inverse,
            )
        moved: IntArray = start + mixed
        return moved


ShuffleName: TypeAlias = Literal["none", "global", "block"]

BLOCK_SHUFFLE_VERSION = 1
"""Version of `BlockShuffle`; its permutations have a version of their own."""


class ShuffleKey(NamedTuple):
    """The parameters of an epoch's order, besides the shuffle.

    Attributes:
        num_records: Records in the dataset.
        seed: Any integer.
        epochs: int64, the epoch of all positions, or one for every position.
        name: Datasets with the same seed and different names differ in their order.
    """

    num_records: int
    seed: int
    epochs: IntArray
    name: str = ""


class Shuffle(abc.ABC):
    """An order of the records of an epoch, for any dataset, seed and epoch."""

    kind: ClassVar[ShuffleName]
    _versions: ClassVar[Mapping[str, int]] = {}

    @abc.abstractmethod
    def map(
        self, indices: IntArray, key: ShuffleKey, *, inverse: bool = False
    ) -> IntArray:
        """Maps positions in an epoch to the records seen there, or back.

        Args:
            indices: int64 in [0, num_records).
            key: What the order depends on, besides the shuffle.
            inverse: Whether to map records to positions.
        """

    def to_state(self) -> dict[str, Any]:
        """Returns the state of this order for a checkpoint, as JSON values."""
        return {"kind": self.kind, **vars(self), **self._versions}


@dataclasses.dataclass(frozen=True)
class NoShuffle(Shuffle):
    """Records in the order in which they are stored."""

    kind = "none"

    def map(
        self, indices: IntArray, key: ShuffleKey, *, inverse: bool = False
    ) -> IntArray:
        """See `Shuffle`."""
        return indices


@dataclasses.dataclass(frozen=True)
class GlobalShuffle(Shuffle):
    """Every record anywhere in the epoch, in a different order in every epoch."""

    kind = "global"
    _versions: ClassVar = {"permutation_version": PERMUTATION_VERSION}

    def map(
        self, indices: IntArray, key: ShuffleKey, *, inverse: bool = False
    ) -> IntArray:
        """See `Shuffle`."""
        order = Permutation(key.num_records, seed=key.seed, name=f"global/{key.name}")
        return order.map(indices, epoch=key.epochs, inverse=inverse)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockShuffle(Shuffle):
    """Blocks of consecutive records anywhere, their records mixed within a window.

    The epoch's blocks are permuted, then cut into windows of at most `window_blocks`,
    as few and as equal as possible: a small one at the end would hardly be mixed. The
    records of a window are permuted among each other. The dataset's last block may be
    short and lands anywhere:

    ```
    stored       0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15 | 16 17
    blocks       4 5 6 7 | 8 9 10 11 | 0 1 2 3 | 12 13 14 15 | 16 17
    windows      4 5 6 7   8 9 10 11 | 0 1 2 3   12 13 14 15 | 16 17
    epoch        4 10 5 6 11 9 7 8   | 1 2 0 14 13 12 15 3   | 16 17
    ```

    While a window is in memory, every block is read once, in one piece.

    Attributes:
        block_records: Records in a block; a multiple of the records in a compressed
            chunk lets every chunk be decompressed once.
        window_blocks: Maximum blocks in a window. A window is like a shuffle buffer of
            its size, but with records from all over the dataset.
    """

    kind = "block"
    _versions: ClassVar = {
        "version": BLOCK_SHUFFLE_VERSION,
        **GlobalShuffle._versions,
    }
    # A window of 65,536 records. Many small blocks mix better than a few large ones.
    block_records: int = 64
    window_blocks: int = 1024

    def __post_init__(self) -> None:
        for field in ("block_records", "window_blocks"):
            value = checked_count(getattr(self, field), what=field)
            object.__setattr__(self, field, value)

    def map(
        self, indices: IntArray, key: ShuffleKey, *, inverse: bool = False
    ) -> IntArray:
        """See `Shuffle`."""
        layout = self._layout(key)
        if inverse:
            return layout.position_of(indices)
        return layout.record_at(indices)

    def window(self, position: int, key: ShuffleKey) -> tuple[int, int]:
        """Returns the half-open positions of the window that holds one of an epoch."""
        layout = self._layout(key)
        place = np.array([position], np.int64)
        window = layout.window_of(layout.slot_at(place))
        ends = [layout.slot_start(layout.window_slot(window + i)) for i in (0, 1)]
        return int(ends[0][0]), int(ends[1][0])

    def _layout(self, key: ShuffleKey) -> BlockLayout:
        sizes = self.block_records, self.window_blocks
        blocks = blocks_of(key.num_records, key.seed, key.name, *sizes)
        return blocks.layout(key.epochs)


_NAMED: dict[str, Shuffle] = {
    shuffle.kind: shuffle for shuffle in (NoShuffle(), GlobalShuffle(), BlockShuffle())
}


def parse_shuffle(shuffle: object) -> Shuffle:
    """Returns the shuffle of a name; shuffles themselves are passed through.

    Args:
        shuffle: "none", "global", "block" (with default sizes), or a shuffle.

    Raises:
        InputError: There is no shuffle of that name.
    """
    if isinstance(shuffle, str) and shuffle in _NAMED:
        return _NAMED[shuffle]
    if isinstance(shuffle, Shuffle):
        return shuffle
    names = ", ".join(map(repr, _NAMED))
    cure = "pass one of the names, or a shuffle such as BlockShuffle()"
    if shuffle is True:
        cure = "pass 'global' for every record anywhere, 'block' for faster reading"
    elif shuffle is False or shuffle is None:
        cure = "pass 'none' for the records as they are stored"
    elif isinstance(shuffle, type) and issubclass(shuffle, Shuffle):
        cure = f"pass {shuffle.__name__}(), with its sizes in the parentheses"
    raise InputError(
        "unknown shuffle",
        expected=f"one of {names}, or a shuffle",
        got=f"{shuffle!r:.100}",
        cure=cure,
    )


def shuffle_from_state(state: Mapping[str, Any]) -> Shuffle:
    """Returns the shuffle whose `to_state` gave `state`.

    Raises:
        FormatVersionError: Another version of the arithmetic wrote it, so the order
            cannot be continued.
    """
    shuffle = _NAMED.get(state["kind"])
    if shuffle is not None:
        shuffle = type(shuffle)(**{name: state[name] for name in vars(shuffle)})
    if shuffle is None or shuffle.to_state() != state:
        raise FormatVersionError(
            "another version wrote the shuffle's state, its order cannot be continued",
            expected=shuffle and shuffle.to_state(),
            got=dict(state),
            cure="resume with the version that wrote it, or start again at step 0",
        )
    return shuffle
