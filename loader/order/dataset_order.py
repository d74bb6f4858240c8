"""The order of one dataset: its epochs, each shuffled, one after the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import InputError
from gristmill.loader.indices import (
    POSITION_LIMIT,
    IntArray,
    checked_count,
    checked_indices,
    checked_integer,
)
from gristmill.loader.order.shuffle import (
    GlobalShuffle,
    Shuffle,
    ShuffleKey,
    check_shuffle,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOrder:
    """The order in which the records of one dataset are seen, over all epochs.

    Attributes:
        num_records: Records in the dataset, at least 1.
        seed: Any integer.
        shuffle: The order within an epoch.
        epochs: How many epochs, or None for as many as positions below 2^63 allow.
        name: The dataset's name in a mixture: datasets with the same seed and
            different names are shuffled differently.
    """

    num_records: int
    seed: int = 0
    shuffle: Shuffle = dataclasses.field(default_factory=GlobalShuffle)
    epochs: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", checked_integer(self.seed, what="seed"))
        check_shuffle(self.shuffle)
        try:
            self.name.encode()
        except (AttributeError, UnicodeEncodeError):
            raise InputError(
                "the name of a dataset is not a text",
                expected="a text of Unicode characters",
                got=f"{self.name!a:.100}",
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
        if self.epochs is None:
            return POSITION_LIMIT
        return self.epochs * self.num_records

    def records(self, positions: npt.ArrayLike) -> IntArray:
        """Returns the record index, int64, at each position in [0, stop)."""
        return self.records_unchecked(
            checked_indices(positions, stop=self.stop, what="position")
        )

    def records_unchecked(self, positions: IntArray) -> IntArray:
        """As `records`, of int64 positions that are known to be in range."""
        epochs, within = np.divmod(positions, self.num_records)
        if epochs.size and epochs.min() == epochs.max():
            epochs = epochs.ravel()[:1]  # one key for all: most batches, and faster
        return self.shuffle.map_unchecked(within, self.shuffle_key(epochs))

    def positions(self, record: int, *, epochs: IntArray) -> IntArray:
        """Returns the position of one record in each of some epochs, int64."""
        record = checked_count(
            record, what="record", least=0, most=self.num_records - 1
        )
        repeated = np.full(len(epochs), record, dtype=np.int64)
        key = self.shuffle_key(epochs)
        within = self.shuffle.map_unchecked(repeated, key, inverse=True)
        place: IntArray = epochs * self.num_records + within
        return place

    def shuffle_key(self, epochs: IntArray) -> ShuffleKey:
        """Returns what the shuffle of some epochs of the dataset depends on."""
        return ShuffleKey(self.num_records, self.seed, epochs, self.name)

    def epoch_range(self, first_epoch: int, stop_epoch: int | None) -> IntArray:
        """Returns the numbers of the whole epochs in a range, int64.

        Raises:
            InputError: Neither the dataset's epochs nor the range have an end.
        """
        first = checked_count(first_epoch, what="first_epoch", least=0)
        if stop_epoch is None and self.epochs is None:
            raise InputError("the schedule never ends", cure="give stop_epoch")
        last = self.stop // self.num_records
        stop = last
        if stop_epoch is not None:
            stop = min(checked_integer(stop_epoch, what="stop_epoch"), last)
        return np.arange(first, max(first, stop), dtype=np.int64)
