"""Global batches of a dataset or a mixture as a pure function of the step.

The epochs of a dataset, each in its own order, follow one another without a gap. A
mixture deals positions to its datasets; a single dataset is a mixture of one. Step s of
batch size b is the positions [s * b, (s + 1) * b): a batch may hold the end of one
epoch and the beginning of the next, and no record is dropped between epochs. No state
is carried from step to step, so any step costs the same. Hosts take rows of the global
batch; their number changes no batch.

From a step on, datasets may have more records, batches another size, and a mixture
other weights. Batches before that step stay as they are. Changes of different kinds can
be made in any order: each holds from its own step on.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, OutOfRangeError
from gristmill.loader.base.indices import (
    NOTHING,
    POSITION_LIMIT,
    IntArray,
    Removed,
    checked_count,
    checked_indices,
    checked_integer,
)
from gristmill.loader.order.batch_sizes import BatchSizes, Resize, host_rows
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.epochs import ChangedRecords
from gristmill.loader.order.mixture import Mixture, Phase, Weight

Rows: TypeAlias = slice | IntArray
RowsBySize: TypeAlias = Rows | Mapping[int, Rows] | Callable[[int], Rows]
"""Rows of every batch, those of the batches of each size, or those of so many rows."""

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
        records: The record index within that dataset after its last extension; -1 - n
            for a removed record, see `DatasetOrder`.
    """

    datasets: IntArray
    records: IntArray


class Extension(NamedTuple):
    """A change of a dataset's records, from a step on.

    Attributes:
        step: The first step that may have the new records, and has no removed one.
        dataset: Number of the dataset.
        num_records: Records in it from then on, including earlier ones.
        removed: The earlier ones that were removed, by their numbers until then.
    """

    step: int
    dataset: int
    num_records: int
    removed: Removed = NOTHING


def by_dataset(datasets: IntArray) -> list[tuple[int, Rows]]:
    """Returns each dataset of some rows, and its rows."""
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

    Every dataset has its own epochs. The schedule ends where the first dataset whose
    epochs are limited would have to give one record more than it has.

    Attributes:
        orders: The order of each dataset, as it is at step 0; those with the same seed
            differ in name.
        mixture: The mixture of the datasets; None for a single dataset.
        batch_size: Rows of the global batch at step 0, over all hosts.
        drop_remainder: Whether a last batch that is not full is left out. It concerns
            only the end of all epochs, as epochs follow without a gap.
        resizes: Other batch sizes, from later steps on.
        extensions: More or fewer records of datasets, from steps on, in the order of
            the steps.
    """

    orders: tuple[DatasetOrder, ...]
    mixture: Mixture | None = None
    batch_size: int
    drop_remainder: bool = True
    resizes: tuple[Resize, ...] = ()
    extensions: tuple[Extension, ...] = ()

    def __post_init__(self) -> None:
        batch_size = checked_count(self.batch_size, what="batch_size")
        object.__setattr__(self, "batch_size", batch_size)
        if not isinstance(self.drop_remainder, (bool, np.bool_)):
            raise InputError(
                "drop_remainder is neither true nor false",
                got=f"{self.drop_remainder!r:.100}",
                cure="give True or False",
            )
        if len(self.orders) != self._mixture.num_datasets:
            raise InputError(
                "a mixture needs the order of a dataset for each weight",
                expected=self._mixture.num_datasets,
                got=len(self.orders),
                cure="give as many orders as the mixture has weights",
            )
        keys = [(order.seed, order.name) for order in self.orders]
        if len(set(keys)) != len(keys):
            raise InputError(
                "datasets of a mixture share seed and name, so they share their order",
                expected="different names, or different seeds",
                got=keys,
                cure="give the datasets different names, or their orders different "
                "seeds",
            )
        changed = [(old.step, old.dataset) for old in self.extensions]
        if sorted(set(changed)) != changed:
            raise InputError(
                "extensions do not follow one another",
                expected="rising steps, and one of a dataset at a step",
                got=list(self.extensions),
                cure="extend each dataset once at a step, and by rising steps",
            )
        _ = self.sizes, self.grown  # They raise errors for inconsistent arguments.

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a mixture's datasets, empty for a single dataset."""
        return tuple(order.name for order in self.orders) if self.mixture else ()

    @functools.cached_property
    def sizes(self) -> BatchSizes:
        """The positions of each step."""
        return BatchSizes(self.batch_size, self.resizes)

    @functools.cached_property
    def grown(self) -> tuple[DatasetOrder, ...]:
        """The order of each dataset, with its extensions."""
        orders = list(self.orders)
        for step, dataset, num_records, removed in self.extensions:
            position, stop = self.sizes.start(step), self._stop_of(orders)
            if position >= stop:
                raise InputError(
                    "the batches end before the step from which on there are other "
                    "records",
                    expected=f"a step that begins before position {stop:,}",
                    got=f"step {step:,}, which begins at position {position:,}",
                    cure="extend them at an earlier step, or begin new batches",
                )
            place = self._mixture.counts(position)[dataset]
            order, change = orders[dataset], ChangedRecords(place, num_records, removed)
            orders[dataset] = dataclasses.replace(
                order, extensions=(*order.extensions, change)
            )
        return tuple(orders)

    @functools.cached_property
    def stop(self) -> int:
        """Number of positions: 2^63 if there is no end."""
        return self._stop_of(self.grown)

    def _stop_of(self, orders: Sequence[DatasetOrder]) -> int:
        ends = [
            int(self._mixture.select(dataset, [order.stop])[0])
            for dataset, order in enumerate(orders)
            if order.stop < POSITION_LIMIT
        ]
        # A dataset without weight is never exhausted, so it ends nothing.
        return min((end for end in ends if end >= 0), default=POSITION_LIMIT)

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on all hosts; None if there is no end."""
        return None if self.stop == POSITION_LIMIT else self.step_limit

    @functools.cached_property
    def step_limit(self) -> int:
        """Upper bound of steps, exclusive, even without an end."""
        steps, rows = self.sizes.find(self.stop - 1)
        full = rows + 1 == self.sizes.size(steps)
        # Without an end, int64 cuts off the last step: it could not be full.
        drops = self.drop_remainder or self.stop == POSITION_LIMIT
        return steps if drops and not full else steps + 1

    @property
    def remainder(self) -> int:
        """Rows of a partial last batch that is kept; 0 if there is none."""
        rows = self.stop - self.sizes.start(self.step_limit - 1)
        full = self.sizes.size(self.step_limit - 1)
        return rows if self.step_limit and rows < full else 0

    def positions(self, step: int, rows: RowsBySize = ALL_ROWS) -> IntArray:
        """Returns the positions of rows of a step, int64 [rows].

        There are as many rows as the batch size, or fewer in a last step that is not
        dropped.

        Args:
            step: Which step.
            rows: The rows to return, as a slice or by number; by default all. From a
                partial batch, the existing ones; a function gets the number of these.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        step = checked_integer(step, what="step")
        limit = self.step_limit
        if not 0 <= step < limit:
            raise OutOfRangeError(
                "there is no such step",
                expected=f"0 <= step < {limit}",
                got=step,
                cure="give a step in this range; with a last epoch, the steps end "
                "there",
            )
        first, full = self.sizes.start(step), self.sizes.size(step)
        size = min(full, self.stop - first)
        if isinstance(rows, Mapping):
            rows = rows[full]
        elif callable(rows):
            rows = rows(size)
        if isinstance(rows, slice):
            return first + np.arange(*rows.indices(size), dtype=np.int64)
        taken = checked_indices(rows, stop=full, what="row")
        return first + taken[taken < size]

    def batch(self, step: int, rows: RowsBySize = ALL_ROWS) -> MixedBatch:
        """Returns datasets and record indices of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        return self.batch_at(self.positions(step, rows))

    def batch_at(self, positions: IntArray) -> MixedBatch:
        """Returns the records at int64 positions known to be in range."""
        datasets, places = self.locate(positions)
        parts = by_dataset(datasets)
        if len(parts) == 1:
            order = self.grown[parts[0][0]]
            return MixedBatch(datasets, order.records(places))
        records = np.empty_like(places)
        for dataset, rows in parts:
            records[rows] = self.grown[dataset].records(places[rows])
        return MixedBatch(datasets, records)

    def locate(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the dataset at each position, and the position in its own order."""
        return self._mixture.locate(positions)

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns the number of records of each dataset before a position."""
        return self._mixture.counts(position)

    def positions_of(self, dataset: int, places: IntArray) -> IntArray:
        """Undoes `locate`: returns the schedule's positions, int64.

        They are -1 for those that are never reached.
        """
        return self._mixture.select(dataset, places)

    def steps_until(self, dataset: int, *, epoch: int) -> int:
        """Returns the steps after which all records before a dataset's epoch are seen.

        At most `step_limit`, if the schedule ends or the dataset gets no further.
        """
        start = self.grown[dataset].start_of(epoch)
        if not start:
            return 0
        (last,) = self.positions_of(dataset, np.array([start - 1], np.int64)).tolist()
        if last < 0:
            return self.step_limit
        return min(self.sizes.find(last)[0] + 1, self.step_limit)

    def indices(self, step: int, rows: RowsBySize = ALL_ROWS) -> IntArray | MixedBatch:
        """Returns the records of rows of a step's global batch.

        Returns:
            int64 [rows] record indices; for a mixture, a `MixedBatch`.

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
        """Returns where a record is seen: once per epoch, except in the remainder.

        Args:
            record: Index of the record in its dataset.
            dataset: Number of the dataset. Epochs are those of this dataset.
            first_epoch: First epoch to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Raises:
            InputError: There is no such record or dataset, or both the dataset's epochs
                and the range are endless.
        """
        last = len(self.orders) - 1
        dataset = checked_count(dataset, what="dataset", least=0, most=last)
        order = self.grown[dataset]
        epochs = order.epoch_range(first_epoch, stop_epoch)
        places = order.positions(record, epochs=epochs)
        epochs, places = epochs[places >= 0], places[places >= 0]
        positions = self._mixture.select(dataset, places)
        limit = min(self.stop, self.sizes.start(self.step_limit))
        return [
            Sighting(epoch, *self.sizes.find(position))
            for epoch, position in zip(epochs.tolist(), positions.tolist(), strict=True)
            if 0 <= position < limit
        ]

    def reweighted(self, weights: Sequence[Weight], *, step: int) -> Schedule:
        """Returns this schedule with other weights from a step on.

        Batches before the step stay as they are, and every dataset continues where it
        stands there. Earlier changes at that step or later are replaced.

        Raises:
            InputError: This is not a mixture, or the number of weights differs from
                that of datasets.
        """
        if self.mixture is None:
            raise InputError(
                "a single dataset has no weights",
                cure='make a mixture: global_batches({"a": a, "b": b}, weights=...)',
            )
        step = checked_count(step, what="step", least=0)
        mixture = self.mixture.reweighted(weights, from_position=self.sizes.start(step))
        return dataclasses.replace(self, mixture=mixture)

    def resized(self, batch_size: int, *, step: int) -> Schedule:
        """Returns this schedule with batches of another size from a step on.

        Positions continue: step `step + k` begins `k * batch_size` after step `step`.
        Other changes stay at their steps. Earlier changes of the size at that step or
        later are replaced.

        Raises:
            InputError: A number is out of range, or the batches would end before the
                step of an extension.
        """
        step = checked_count(step, what="step", least=0)
        added = Resize(step, checked_count(batch_size, what="batch_size"))
        kept = [old for old in self.resizes if old.step < step]
        first = self.batch_size
        if step == 0:
            first = added.batch_size
        elif (kept[-1].batch_size if kept else first) != added.batch_size:
            kept.append(added)
        mixture = self.mixture
        if mixture is not None:
            sizes = BatchSizes(first, kept)
            phases = []
            for phase in mixture.phases:
                at, row = self.sizes.find(phase.from_position)
                position = sizes.start(at) + min(row, sizes.size(at))
                phases.append(Phase(position, phase.weights))
            mixture = Mixture(tuple(phases))
        return dataclasses.replace(
            self, batch_size=first, resizes=tuple(kept), mixture=mixture
        )

    def extended(
        self,
        num_records: int,
        *,
        step: int,
        dataset: int = 0,
        removed: npt.ArrayLike | Removed = (),
    ) -> Schedule:
        """Returns this schedule with more or fewer records of a dataset from a step on.

        From that step on, the rest of the dataset's running epoch, without the removed
        records, and the new records form one order, in which each is seen once; see
        `epochs`. Later epochs have the new set of records. Earlier extensions of the
        dataset at that step or later are replaced.

        Args:
            num_records: Records of the dataset from then on; those that it had before
                come first, without the removed ones.
            step: The first step that may have new records, and has no removed one.
            dataset: Number of the dataset.
            removed: The earlier records that were removed, by their numbers until then.

        Raises:
            InputError: There is no such dataset or record, the numbers do not add up,
                or the batches end before that step.
        """
        last = len(self.orders) - 1
        dataset = checked_count(dataset, what="dataset", least=0, most=last)
        step = checked_count(step, what="step", least=0)
        records = checked_count(num_records, what="num_records")
        kept = [
            old for old in self.extensions if old.dataset != dataset or old.step < step
        ]
        lost = removed if isinstance(removed, Removed) else Removed(removed)
        kept.append(Extension(step, dataset, records, lost))
        extensions = sorted(kept, key=operator.itemgetter(0, 1))
        return dataclasses.replace(self, extensions=tuple(extensions))

    def host_rows(
        self, *, process_index: int, process_count: int, step: int = 0
    ) -> slice:
        """Returns the rows of a step's global batch that one host takes.

        They are the same in all batches of one size: contiguous, and equally many on
        all hosts. From a partial last batch, the last hosts get fewer rows, or none.

        Raises:
            InputError: The batch does not divide among the hosts, or there is no such
                host.
        """
        size = self.sizes.size(checked_count(step, what="step", least=0))
        return host_rows(size, process_index=process_index, process_count=process_count)

    @property
    def _mixture(self) -> Mixture:
        return self.mixture or _ONE_DATASET
