"""The order of one dataset: its epochs, each shuffled, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import (
    POSITION_LIMIT,
    IntArray,
    checked_count,
    checked_integer,
)
from gristmill.loader.order.shuffle import GlobalShuffle, Shuffle, ShuffleKey

_BLOCK = 1 << 16  # Positions that are mapped at once.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOrder:
    """The order in which the records of one dataset are seen, over all epochs.

    Attributes:
        num_records: Records in the dataset, at least 1.
        seed: Any integer.
        shuffle: The order within an epoch.
        epochs: Number of epochs, or None for as many as positions below 2^63 allow.
        name: The dataset's name in a mixture: datasets with the same seed and
            different names are shuffled differently.
        first_epoch: The number of the epoch that position 0 begins.
    """

    num_records: int
    seed: int = 0
    shuffle: Shuffle = dataclasses.field(default_factory=GlobalShuffle)
    epochs: int | None = None
    name: str = ""
    first_epoch: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_integer(self.seed, what="seed"))
        try:
            self.name.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InputError(
                "the name of a dataset is not a text",
                expected="a text of Unicode characters",
                got=f"{self.name!a:.100}",
                cure="give the dataset a name of Unicode characters",
            ) from None
        num_records = checked_count(self.num_records, what="num_records")
        object.__setattr__(self, "num_records", num_records)
        if self.epochs is not None:
            most = POSITION_LIMIT // num_records
            epochs = checked_count(self.epochs, what="epochs", most=most)
            object.__setattr__(self, "epochs", epochs)

    @property
    def stop(self) -> int:
        """Number of positions: 2^63 without a last epoch."""
        return POSITION_LIMIT if self.epochs is None else self.epochs * self.num_records

    def records(self, positions: IntArray) -> IntArray:
        """Returns the record index at each position below `stop`: int64 [n]."""
        if not positions.size:
            return positions
        count = self.num_records
        first = int(positions.min()) // count
        places = positions - first * count if first else positions
        epochs = np.array([first + self.first_epoch], np.int64)
        if int(positions.max()) // count > first:
            later, places = np.divmod(places, count)
            epochs = epochs + later
        return self.shuffle.map(places, self.shuffle_key(epochs))

    def positions(self, record: int, *, epochs: IntArray) -> IntArray:
        """Returns the position of one record in each of some epochs, int64."""
        most = self.num_records - 1
        record = checked_count(record, what="record", least=0, most=most)
        records = np.full(len(epochs), record, np.int64)
        places = self.shuffle.map(records, self.shuffle_key(epochs), inverse=True)
        return (epochs - self.first_epoch) * self.num_records + places

    def epoch_at(self, position: int) -> int:
        """Returns the epoch of a position."""
        return self.first_epoch + position // self.num_records

    def shuffle_key(self, epochs: IntArray) -> ShuffleKey:
        """Returns the shuffle keys of some epochs of the dataset."""
        return ShuffleKey(self.num_records, self.seed, epochs, self.name)

    def running_epoch(self, position: int) -> Iterator[IntArray]:
        """Yields the records of the epoch of a position that come before it."""
        begin = position - position % self.num_records
        for start in range(begin, position, _BLOCK):
            stop = min(start + _BLOCK, position)
            yield self.records(np.arange(start, stop, dtype=np.int64))
