"""The epochs of one dataset as one stream of records, without a gap between them."""

from __future__ import annotations

import dataclasses
import operator

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import InputError
from gristmill.loader.indices import (
    POSITION_LIMIT,
    IntArray,
    checked_count,
    checked_indices,
)
from gristmill.loader.order.shuffle import GlobalShuffle, Shuffle


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordStream:
    """The epochs of one dataset, one after the other.

    Attributes:
        num_records: Records in the dataset, at least 1.
        seed: Any integer.
        shuffle: The order within an epoch.
        epochs: How many epochs, or None for as many as positions below 2^63 allow.
        name: Tells apart streams of one seed; the dataset's name in a mixture.
    """

    num_records: int
    seed: int = 0
    shuffle: Shuffle = dataclasses.field(default_factory=GlobalShuffle)
    epochs: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", operator.index(self.seed))
        num_records = checked_count(self.num_records, what="num_records")
        object.__setattr__(self, "num_records", num_records)
        if self.epochs is not None:
            most = POSITION_LIMIT // num_records
            epochs = checked_count(self.epochs, what="epochs", most=most)
            object.__setattr__(self, "epochs", epochs)

    @property
    def stop(self) -> int:
        """The number of positions: 2^63 for a stream without end."""
        if self.epochs is None:
            return POSITION_LIMIT
        return self.epochs * self.num_records

    def records(self, positions: npt.ArrayLike) -> IntArray:
        """Returns the record index, int64, at each position in [0, stop)."""
        place = checked_indices(positions, stop=self.stop, what="position")
        epochs, within = np.divmod(place, self.num_records)
        if epochs.size and epochs.min() == epochs.max():
            epochs = epochs.ravel()[:1]  # one key for all: most batches, and faster
        return self.shuffle.records(
            within,
            num_records=self.num_records,
            seed=self.seed,
            epochs=epochs,
            stream=self.name,
        )

    def positions(self, record: int, *, epochs: IntArray) -> IntArray:
        """Returns the position of one record in each of some epochs, int64."""
        record = checked_count(
            record, what="record", least=0, most=self.num_records - 1
        )
        within = self.shuffle.positions(
            np.full(len(epochs), record, dtype=np.int64),
            num_records=self.num_records,
            seed=self.seed,
            epochs=epochs,
            stream=self.name,
        )
        place: IntArray = epochs * self.num_records + within
        return place

    def epoch_range(self, first_epoch: int, stop_epoch: int | None) -> IntArray:
        """Returns the numbers of the whole epochs in a range, int64.

        Raises:
            InputError: The stream has no end and neither has the range.
        """
        first = checked_count(first_epoch, what="first_epoch", least=0)
        if stop_epoch is None and self.epochs is None:
            raise InputError(
                "a record is seen in endlessly many epochs",
                cure="say up to which with stop_epoch",
            )
        last = self.stop // self.num_records
        stop = last if stop_epoch is None else min(operator.index(stop_epoch), last)
        return np.arange(first, max(first, stop), dtype=np.int64)
