"""Global batches of a dataset or a mixture as a pure function of the step.

The epochs of a dataset, each in its own order, follow one another without a gap. A
mixture deals positions to its datasets; a single dataset is a mixture of one. Step s of
batch size b is the positions [s * b, (s + 1) * b): a batch may hold the end of one
epoch and the beginning of the next, and no record is dropped between epochs. No state
is carried from step to step, so any step costs the same. Hosts take rows of the global
batch; their number changes no batch.

A run has phases, each with datasets, weights and a batch size of its own from a step
on. A phase begins new epochs: the rest of the epochs before it is not seen.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import InputError, OutOfRangeError
from gristmill.loader.base.indices import (
    ALL_ROWS,
    POSITION_LIMIT,
    IntArray,
    Rows,
    by_value,
    checked_count,
    checked_indices,
    checked_integer,
)
from gristmill.loader.order.hosts import Host, checked_host, host_rows
from gristmill.loader.order.mixture import Mixture
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


RowsBySize: TypeAlias = Rows | Mapping[int, Rows] | Callable[[int], Rows]
"""Rows of every batch; rows by batch size; or a function of the number of rows."""


def rows_of(rows: RowsBySize, full: int, size: int) -> Rows:
    """Returns the rows of a batch that has `size` of `full` rows."""
    if isinstance(rows, Mapping):
        return rows[full]
    return rows(size) if callable(rows) else rows


_ONE_DATASET = Mixture.of([1])


class Sighting(NamedTuple):
    """Where a record is seen: row `row` of the global batch of step `step`."""

    epoch: int
    step: int
    row: int


class MixedBatch(NamedTuple):
    """A global batch of a mixture, int64 [rows] each.

    Attributes:
        datasets: The number of each row's dataset.
        records: The record index within that dataset.
    """

    datasets: IntArray
    records: IntArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """Batches of the same datasets, weights and size, from a step on.

    Attributes:
        step: The first step.
        orders: The order of each dataset; those with the same seed differ in name.
        numbers: The number of each dataset among those of the whole run.
        mixture: The mixture of the datasets; None for a single dataset.
        batch_size: Rows of the global batch, over all hosts.
    """

    step: int = 0
    orders: tuple[DatasetOrder, ...]
    numbers: tuple[int, ...] = (0,)
    mixture: Mixture | None = None
    batch_size: int

    def __post_init__(self) -> None:
        batch_size = checked_count(self.batch_size, what="batch_size")
        object.__setattr__(self, "batch_size", batch_size)

    @property
    def dealing(self) -> Mixture:
        """How positions are dealt to the datasets."""
        return self.mixture or _ONE_DATASET

    @functools.cached_property
    def stop(self) -> int:
        """Number of positions, if no other phase follows: 2^63 if there is no end."""
        ends = [
            int(self.dealing.select(dataset, [order.stop])[0])
            for dataset, order in enumerate(self.orders)
            if order.stop < POSITION_LIMIT
        ]
        # A dataset without weight is never exhausted, so it ends nothing.
        return min((end for end in ends if end >= 0), default=POSITION_LIMIT)

    def batch(self, positions: IntArray) -> MixedBatch:
        """Returns the records at positions of the phase."""
        if len(self.orders) == 1:
            numbers = np.full_like(positions, self.numbers[0])
            return MixedBatch(numbers, self.orders[0].records(positions))
        datasets, places = self.dealing.locate(positions)
        records = np.empty_like(places)
        for dataset, rows in by_value(datasets):
            records[rows] = self.orders[dataset].records(places[rows])
        return MixedBatch(np.array(self.numbers, np.int64).take(datasets), records)


class Passed(NamedTuple):
    """How far a phase has got in the order of a dataset.

    Attributes:
        number: The number of the dataset.
        order: Its order in the phase.
        places: How many places of that order were passed.
    """

    number: int
    order: DatasetOrder
    places: int

    @property
    def epochs(self) -> int:
        """How many epochs were whole."""
        return self.places // self.order.num_records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The global batches of a run: the phases, one after the other.

    Every dataset has its own epochs. The schedule ends where the first dataset of the
    last phase whose epochs are limited would have to give one record more than it has.
    Positions count the rows of all steps.

    Attributes:
        phases: By rising steps, the first from step 0.
        drop_remainder: Whether to leave out a partial last batch. Only the end of all
            epochs can have one, as epochs follow without a gap.
    """

    phases: tuple[Phase, ...]
    drop_remainder: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.drop_remainder, (bool, np.bool_)):
            raise InputError(
                "drop_remainder is neither true nor false",
                got=f"{self.drop_remainder!r:.100}",
                cure="give True or False",
            )

    def then(self, phase: Phase) -> Schedule:
        """Returns this schedule with another phase, which replaces those from its step.

        The phase continues the epochs of datasets by their names: its first ones have
        the numbers after those that have begun before, and those that were seen as a
        whole are taken from a limited number.

        Args:
            phase: The phase; its orders are those of datasets that begin at epoch 0.

        Raises:
            InputError: The batches end before that step.
        """
        step = checked_count(phase.step, what="step", least=0)
        if step == 0:
            return dataclasses.replace(self, phases=(phase,))
        kept = tuple(old for old in self.phases if old.step < step)
        earlier = dataclasses.replace(self, phases=kept)
        if earlier.start(step) >= earlier.stop:
            raise InputError(
                "the batches end before the step from which on there are others",
                expected=f"a step that begins before position {earlier.stop:,}",
                got=f"step {step:,}, which begins at position {earlier.start(step):,}",
                cure="choose an earlier step, or more epochs",
            )
        begun, whole = dict[str, int](), dict[str, int]()
        for _, order, places in earlier.passed(earlier.start(step)):
            over, rest = divmod(places, order.num_records)
            begun[order.name] = order.first_epoch + over + (rest > 0)
            whole[order.name] = whole.get(order.name, 0) + over
        orders = []
        for order in phase.orders:
            epochs, name = order.epochs, order.name
            if epochs is not None:
                epochs -= whole.get(name, 0)
            if epochs == 0:
                raise InputError(
                    "all epochs of a dataset are over before the step",
                    where=name,
                    got=f"step {step:,}",
                    cure="choose an earlier step, or more epochs",
                )
            first = begun.get(name, 0)
            orders.append(dataclasses.replace(order, first_epoch=first, epochs=epochs))
        phase = dataclasses.replace(phase, step=step, orders=tuple(orders))
        return dataclasses.replace(self, phases=(*kept, phase))

    def end_of_epoch(self, name: str, *, step: int) -> int:
        """Returns the first step, from `step` on, where no epoch is unfinished.

        It is `step` itself if an epoch ends there, and `step_limit` at most.

        Args:
            name: The name of a dataset of the step's phase.
            step: The first step that it can be.
        """
        phase = self.phases[self._phase_of(max(step - 1, 0))]
        which = [order.name for order in phase.orders].index(name)
        passed = phase.dealing.counts((step - phase.step) * phase.batch_size)[which]
        left = -passed % phase.orders[which].num_records
        if not left:
            return step
        last = int(phase.dealing.select(which, [passed + left - 1])[0])
        if last < 0:
            return self.step_limit
        return min(phase.step + last // phase.batch_size + 1, self.step_limit)

    def batch_size(self, step: int) -> int:
        """Returns the rows of a step's batch, if it is full."""
        return self.phases[self._phase_of(step)].batch_size

    def start(self, step: int) -> int:
        """Returns the first position of a step."""
        number = self._phase_of(step)
        phase = self.phases[number]
        return self._starts[number] + (step - phase.step) * phase.batch_size

    def find_step(self, position: int) -> tuple[int, int]:
        """Returns the step that has a position, and its row there."""
        number = bisect.bisect_right(self._starts, position) - 1
        phase = self.phases[number]
        steps, row = divmod(position - self._starts[number], phase.batch_size)
        return phase.step + steps, row

    def sizes_from(self, step: int) -> list[int]:
        """Returns the batch sizes that hold at a step or later."""
        return [phase.batch_size for phase in self.phases[self._phase_of(step) :]]

    def _phase_of(self, step: int) -> int:
        return (
            bisect.bisect_right(self.phases, step, key=operator.attrgetter("step")) - 1
        )

    @functools.cached_property
    def _starts(self) -> list[int]:
        """The first position of each phase."""
        starts = [0]
        for phase, following in zip(self.phases, self.phases[1:], strict=False):
            rows = (following.step - phase.step) * phase.batch_size
            starts.append(starts[-1] + rows)
        return starts

    @functools.cached_property
    def stop(self) -> int:
        """Number of positions: 2^63 if there is no end."""
        return min(self._starts[-1] + self.phases[-1].stop, POSITION_LIMIT)

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on all hosts; None if there is no end."""
        return None if self.stop == POSITION_LIMIT else self.step_limit

    @functools.cached_property
    def step_limit(self) -> int:
        """Upper bound of steps, exclusive, even without an end."""
        steps, rows = self.find_step(self.stop - 1)
        full = rows + 1 == self.batch_size(steps)
        # Without an end, int64 cuts off the last step: it could not be full.
        drops = self.drop_remainder or self.stop == POSITION_LIMIT
        return steps if drops and not full else steps + 1

    @property
    def remainder(self) -> int:
        """Rows of a partial last batch, if it is kept; otherwise 0."""
        rows = self.stop - self.start(max(self.step_limit - 1, 0))
        full = self.batch_size(max(self.step_limit - 1, 0))
        return rows if self.step_limit and rows < full else 0

    def positions(self, step: int, rows: RowsBySize = ALL_ROWS) -> IntArray:
        """Returns the positions of rows of a step, int64 [rows].

        There are as many rows as the batch size, or fewer in a last step that is not
        dropped.

        Args:
            step: Which step.
            rows: The rows to return, a slice or numbers; by default all. A partial
                batch gives those that exist, whose number a function gets.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        limit = self.step_limit
        if type(step) is not int:
            step = checked_integer(step, what="step")
        if not 0 <= step < limit:
            raise OutOfRangeError(
                "there is no such step",
                expected=f"0 <= step < {limit}",
                got=step,
                cure="give a step in this range; with a last epoch, the steps end "
                "there",
            )
        first, full = self.start(step), self.batch_size(step)
        size = min(full, self.stop - first)
        own = rows_of(rows, full, size)
        if isinstance(own, slice):
            return first + np.arange(*own.indices(size), dtype=np.int64)
        taken = checked_indices(own, stop=full, what="row")
        return first + taken[taken < size]

    def batch(self, step: int, rows: RowsBySize = ALL_ROWS) -> MixedBatch:
        """Returns datasets and record indices of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        return self.batch_at(self.positions(step, rows))

    def batch_at(self, positions: IntArray) -> MixedBatch:
        """Returns the records at int64 positions known to be in range."""
        if len(self.phases) == 1 or not positions.size:
            return self.phases[0].batch(positions)
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        found = MixedBatch(np.empty_like(positions), np.empty_like(positions))
        for number, rows in by_value(numbers):
            part = self.phases[number].batch(positions[rows] - self._starts[number])
            for column, values in zip(found, part, strict=True):
                column[rows] = values
        return found

    def epoch_at(self, position: int) -> int:
        """Returns the epoch of the record at a position."""
        number = bisect.bisect_right(self._starts, position) - 1
        phase = self.phases[number]
        within = np.array([position - self._starts[number]], np.int64)
        (which,), (place,) = phase.dealing.locate(within)
        return phase.orders[int(which)].epoch_at(int(place))

    def passed(self, position: int) -> Iterator[Passed]:
        """Yields how far each phase has got in each dataset before a position."""
        ends = [*self._starts[1:], POSITION_LIMIT]
        for phase, start, end in zip(self.phases, self._starts, ends, strict=True):
            if start < position:
                counts = phase.dealing.counts(min(end, position) - start)
                yield from map(Passed, phase.numbers, phase.orders, counts)

    def find(
        self,
        record: int,
        *,
        dataset: int = 0,
        first_epoch: int = 0,
        stop_epoch: int | None = None,
    ) -> list[Sighting]:
        """Returns where a record is seen, by rising steps.

        Args:
            record: Index of the record in its dataset.
            dataset: Number of the dataset. Epochs are those of this dataset.
            first_epoch: First epoch to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Raises:
            InputError: There is no such record or dataset, or both the dataset's epochs
                and the range are endless.
        """
        first = checked_count(first_epoch, what="first_epoch", least=0)
        limit = min(self.stop, self.start(self.step_limit))
        ends = [*self._starts[1:], limit]
        found: list[Sighting] = []
        for phase, start, end in zip(self.phases, self._starts, ends, strict=True):
            if dataset not in phase.numbers:
                continue
            which = phase.numbers.index(dataset)
            order, count = phase.orders[which], phase.dealing.counts(end - start)[which]
            stop = order.first_epoch - (-count // order.num_records)
            if stop_epoch is not None:
                stop = min(stop, checked_integer(stop_epoch, what="stop_epoch"))
            elif phase is self.phases[-1] and self.steps is None:
                raise InputError("the schedule never ends", cure="give stop_epoch")
            begin = max(first, order.first_epoch)
            epochs = np.arange(begin, max(begin, stop), dtype=np.int64)
            places = order.positions(record, epochs=epochs)
            there = places < count
            positions = phase.dealing.select(which, places[there]) + start
            found += [
                Sighting(epoch, *self.find_step(position))
                for epoch, position in zip(
                    epochs[there].tolist(), positions.tolist(), strict=True
                )
            ]
        return found

    def host_rows(self, host: Host, *, step: int = 0) -> Rows:
        """Returns the rows of a step's global batch that one host takes.

        They are the same in all batches of one size. From a partial last batch, the
        last hosts get fewer rows, or none.

        Raises:
            InputError: The batch does not divide among the hosts, or there is no such
                host.
        """
        size = self.batch_size(checked_count(step, what="step", least=0))
        return host_rows(size, checked_host(host))
