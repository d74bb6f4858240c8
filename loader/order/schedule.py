"""Global batches of a dataset or a mixture as a pure function of the step.

The epochs of a dataset, each in its own order, follow one another without a gap. A
mixture deals positions to its datasets; a single dataset is a mixture of one. Step s of
batch size b is the positions [s * b, (s + 1) * b): a batch may hold the end of one
epoch and the beginning of the next, and no record is dropped between epochs. Nothing is
carried from step to step, so any step costs the same. Hosts take rows of the global
batch; how many hosts there are changes no batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.errors import InputError, OutOfRangeError
from gristmill.loader.indices import (
    POSITION_LIMIT,
    IntArray,
    checked_count,
    checked_indices,
    checked_integer,
)
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.mixture import Mixture, Weight

Rows: TypeAlias = slice | IntArray

ALL_ROWS = slice(None)

_ONE_DATASET = Mixture.of([1])


class Sighting(NamedTuple):
    """Where a record is seen: row `row` of the global batch of step `step`."""

    epoch: int
    step: int
    row: int


class MixedBatch(NamedTuple):
    """A global batch of a mixture, int64 [rows] each.

    Attributes:
        datasets: The dataset of each row.
        records: The record index within that dataset.
    """

    datasets: IntArray
    records: IntArray


def by_dataset(datasets: IntArray) -> list[tuple[int, Rows]]:
    """Returns each dataset among those of some rows, and which rows it has."""
    if not datasets.size:
        return []
    first = int(datasets[0])
    if (datasets == first).all():
        return [(first, ALL_ROWS)]
    return [
        (dataset, np.flatnonzero(datasets == dataset))
        for dataset in np.unique(datasets).tolist()
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The global batches of a dataset, or of a mixture of datasets.

    Every dataset has epochs of its own. The schedule ends where the first dataset
    whose epochs are limited would have to give one record more than it has.

    Attributes:
        orders: The order of each dataset; those with the same seed differ in name.
        mixture: Which dataset each row is of; None for a single dataset.
        batch_size: Rows of the global batch, over all hosts.
        drop_remainder: Whether a last batch that is not full is left out. It concerns
            the end of all epochs only, for epochs follow without a gap.
    """

    orders: tuple[DatasetOrder, ...]
    mixture: Mixture | None = None
    batch_size: int
    drop_remainder: bool = True

    def __post_init__(self) -> None:
        batch_size = checked_count(self.batch_size, what="batch_size")
        object.__setattr__(self, "batch_size", batch_size)
        if not isinstance(self.drop_remainder, (bool, np.bool_)):
            raise InputError(
                "drop_remainder is neither true nor false",
                got=f"{self.drop_remainder!r:.100}",
            )
        if len(self.orders) != self._mixture.num_datasets:
            raise InputError(
                "a mixture needs the order of a dataset for each weight",
                expected=self._mixture.num_datasets,
                got=len(self.orders),
            )
        keys = [(order.seed, order.name) for order in self.orders]
        if len(set(keys)) != len(keys):
            raise InputError(
                "datasets of a mixture share seed and name, so they share their order",
                expected="different names, or different seeds",
                got=keys,
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a mixture's datasets, none for a single dataset."""
        return tuple(order.name for order in self.orders) if self.mixture else ()

    @functools.cached_property
    def stop(self) -> int:
        """Number of positions: 2^63 if there is no end."""
        ends = [
            int(self._mixture.select(dataset, [order.stop])[0])
            for dataset, order in enumerate(self.orders)
            if order.stop < POSITION_LIMIT
        ]
        # A dataset that is never exhausted, for want of weight, ends nothing.
        return min((end for end in ends if end >= 0), default=POSITION_LIMIT)

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on all hosts; None if there is no end."""
        return None if self.stop == POSITION_LIMIT else self._step_limit()

    def positions(self, step: int, rows: Rows = ALL_ROWS) -> IntArray:
        """Returns the positions of rows of a step, int64 [rows].

        There are `batch_size` rows, or fewer in a last step that is not dropped.

        Args:
            step: Which step.
            rows: The rows wanted, a slice or their numbers, of the whole batch by
                default. Of a batch that is not full they are those that there are.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        step = checked_integer(step, what="step")
        limit = self._step_limit()
        if not 0 <= step < limit:
            raise OutOfRangeError(
                "there is no such step", expected=f"0 <= step < {limit}", got=step
            )
        first = step * self.batch_size
        size = min(self.batch_size, self.stop - first)
        if isinstance(rows, slice):
            return first + np.arange(*rows.indices(size), dtype=np.int64)
        taken = checked_indices(rows, stop=self.batch_size, what="row")
        return first + taken[taken < size]

    def batch(self, step: int, rows: Rows = ALL_ROWS) -> MixedBatch:
        """Returns datasets and record indices of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        return self.batch_unchecked(self.positions(step, rows))

    def batch_unchecked(self, positions: IntArray) -> MixedBatch:
        """Returns what is seen at int64 positions that are known to be in range."""
        datasets, places = self.locate_unchecked(positions)
        parts = by_dataset(datasets)
        if len(parts) == 1:
            order = self.orders[parts[0][0]]
            return MixedBatch(datasets, order.records_unchecked(places))
        records = np.empty_like(places)
        for dataset, rows in parts:
            records[rows] = self.orders[dataset].records_unchecked(places[rows])
        return MixedBatch(datasets, records)

    def locate_unchecked(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the dataset at each position, and the position in its own order."""
        return self._mixture.locate_unchecked(positions)

    def indices(self, step: int, rows: Rows = ALL_ROWS) -> IntArray | MixedBatch:
        """Returns the records of rows of a step's global batch.

        Returns:
            int64 [rows] record indices; of a mixture, both arrays of a `MixedBatch`.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        batch = self.batch(step, rows)
        return batch.records if self.mixture is None else batch

    def find(
        self,
        record: int,
        *,
        dataset: int = 0,
        first_epoch: int = 0,
        stop_epoch: int | None = None,
    ) -> list[Sighting]:
        """Returns where a record is seen: once an epoch, unless it is in the remainder.

        Args:
            record: Index of the record in its dataset.
            dataset: Number of the dataset. Epochs are those of this dataset.
            first_epoch: First epoch to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Raises:
            InputError: There is no such record or dataset, or neither the dataset's
                epochs nor the range have an end.
        """
        last = len(self.orders) - 1
        dataset = checked_count(dataset, what="dataset", least=0, most=last)
        order = self.orders[dataset]
        epochs = order.epoch_range(first_epoch, stop_epoch)
        places = order.positions(record, epochs=epochs)
        positions = self._mixture.select(dataset, places)
        limit = min(self.stop, self._step_limit() * self.batch_size)
        return [
            Sighting(epoch, *divmod(position, self.batch_size))
            for epoch, position in zip(epochs.tolist(), positions.tolist(), strict=True)
            if 0 <= position < limit
        ]

    def reweighted(self, weights: Sequence[Weight], *, step: int) -> Schedule:
        """Returns this schedule with other weights from a step on.

        Batches before the step stay as they are, and every dataset continues where it
        stands there. Earlier changes at that step or later are replaced.

        Raises:
            InputError: This is no mixture, or the weights are not as many as datasets.
        """
        if self.mixture is None:
            raise InputError(
                "a single dataset has no weights",
                cure='make a mixture: global_batches({"a": a, "b": b}, weights=...)',
            )
        mixture = self.mixture.reweighted(
            weights, from_position=checked_integer(step, what="step") * self.batch_size
        )
        return dataclasses.replace(self, mixture=mixture)

    def host_rows(self, *, process_index: int, process_count: int) -> slice:
        """Returns the rows of every global batch that one host takes.

        The rows are contiguous and equally many on all hosts. Of a last batch that is
        not full the slice takes what there is: the last hosts get fewer rows, or none.

        Raises:
            InputError: The batch does not divide among the hosts, or there is no such
                host.
        """
        process_count = checked_count(process_count, what="process_count")
        process_index = checked_count(
            process_index, what="process_index", least=0, most=process_count - 1
        )
        rows, left = divmod(self.batch_size, process_count)
        if left:
            raise InputError(
                "the global batch does not divide among the hosts",
                expected=f"a multiple of {process_count} rows",
                got=self.batch_size,
                cure="choose another batch_size or number of hosts",
            )
        return slice(process_index * rows, (process_index + 1) * rows)

    def _step_limit(self) -> int:
        # Without an end the last step is cut off where int64 is: it could not be full.
        if self.drop_remainder or self.stop == POSITION_LIMIT:
            return self.stop // self.batch_size
        return -(-self.stop // self.batch_size)

    @property
    def _mixture(self) -> Mixture:
        return self.mixture or _ONE_DATASET
