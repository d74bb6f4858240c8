"""Global batches of several datasets as a pure function of the step."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.errors import InputError
from gristmill.loader.indices import POSITION_LIMIT, IntArray, checked_count
from gristmill.loader.order.epochs import RecordStream
from gristmill.loader.order.mixture import Mixture, Weight
from gristmill.loader.order.schedule import ALL_ROWS, Batches, Rows, Sighting


class MixedBatch(NamedTuple):
    """A global batch of several datasets, int64 [rows] each.

    Attributes:
        datasets: The dataset of each row.
        records: The record index within that dataset.
    """

    datasets: IntArray
    records: IntArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixedSchedule(Batches):
    """The global batches of a mixture of datasets.

    Every dataset has epochs of its own. The schedule ends where the first dataset
    whose epochs are limited would have to give one record more than it has.

    Attributes:
        streams: The datasets' epochs; streams that share a seed differ in name.
        mixture: Which dataset each row is of.
    """

    streams: tuple[RecordStream, ...]
    mixture: Mixture

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.streams) != self.mixture.num_datasets:
            raise InputError(
                "a mixture needs one stream for each weight",
                expected=self.mixture.num_datasets,
                got=len(self.streams),
            )
        keys = [(stream.seed, stream.name) for stream in self.streams]
        if len(set(keys)) != len(keys):
            raise InputError(
                "streams of a mixture share seed and name, so they share their order",
                expected="different names, or different seeds",
                got=keys,
            )

    @functools.cached_property
    def stop(self) -> int:
        """Number of positions in the mixed stream: 2^63 if it has no end."""
        ends = [
            int(self.mixture.select(dataset, [stream.stop])[0])
            for dataset, stream in enumerate(self.streams)
            if stream.stop < POSITION_LIMIT
        ]
        # A dataset that is never exhausted, for want of weight, ends nothing.
        return min((end for end in ends if end >= 0), default=POSITION_LIMIT)

    def indices(self, step: int, rows: Rows = ALL_ROWS) -> MixedBatch:
        """Returns datasets and record indices of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step.
        """
        datasets, places = self.mixture.locate(self.positions(step, rows))
        records = np.empty_like(places)
        for dataset in np.unique(datasets).tolist():
            own = datasets == dataset
            records[own] = self.streams[dataset].records(places[own])
        return MixedBatch(datasets, records)

    def find(
        self,
        record: int,
        *,
        dataset: int,
        first_epoch: int = 0,
        stop_epoch: int | None = None,
    ) -> list[Sighting]:
        """Returns where a record of a dataset is seen; epochs are the dataset's own.

        Args:
            record: Index of the record in its dataset.
            dataset: Which dataset.
            first_epoch: First epoch to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Raises:
            InputError: There is no such record or dataset, or neither the dataset's
                epochs nor the range have an end.
        """
        last = len(self.streams) - 1
        dataset = checked_count(dataset, what="dataset", least=0, most=last)
        stream = self.streams[dataset]
        epochs = stream.epoch_range(first_epoch, stop_epoch)
        places = stream.positions(record, epochs=epochs)
        return self._sightings(epochs, self.mixture.select(dataset, places))

    def reweighted(self, weights: Sequence[Weight], *, step: int) -> MixedSchedule:
        """Returns this schedule with other weights from a step on.

        Batches before the step stay as they are, and every dataset continues where it
        stands there. Earlier changes at that step or later are replaced.
        """
        mixture = self.mixture.reweighted(
            weights, from_position=operator.index(step) * self.batch_size
        )
        return dataclasses.replace(self, mixture=mixture)
