"""The order of one dataset: its epochs, each shuffled, one after the other."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import cast

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import (
    NOTHING,
    POSITION_LIMIT,
    IntArray,
    Removed,
    checked_count,
    checked_integer,
)
from gristmill.loader.order.block_layout import LaneKey
from gristmill.loader.order.epochs import ChangedRecords, Epochs, Lane
from gristmill.loader.order.shuffle import (
    GlobalShuffle,
    NoShuffle,
    Shuffle,
    ShuffleKey,
)
from gristmill.loader.order.whole_epochs import WholeEpochs, whole_epochs

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
        extensions: Positions from which there are other records, their number, and
            which earlier ones were removed. The rest of the running epoch and the new
            records form one order, see `epochs`; later epochs have the current records.

    Records have the numbers that they have after the last extension. A removed one has
    a negative number: `-1 - n`, where n is its number if none had been removed.
    """

    num_records: int
    seed: int = 0
    shuffle: Shuffle = dataclasses.field(default_factory=GlobalShuffle)
    epochs: int | None = None
    name: str = ""
    extensions: tuple[ChangedRecords | tuple[int, int], ...] = ()

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
        changes = tuple(ChangedRecords(*one) for one in self.extensions)
        object.__setattr__(self, "extensions", changes)
        _ = self._layout  # It refuses extensions out of order.

    @property
    def stop(self) -> int:
        """Number of positions: 2^63 without a last epoch."""
        if self.epochs is None:
            return POSITION_LIMIT
        return min(self._layout.start_of(self.epochs), POSITION_LIMIT)

    def records(self, positions: IntArray) -> IntArray:
        """Returns the record index, int64, at each of int64 positions below `stop`."""
        layout = self._layout
        lanes, epochs, places = layout.locate(positions.ravel())
        if lanes.size == 1:
            lane = layout.lanes[int(lanes[0])]
            found = self.shuffle.map(places, self._lane_key(lane, epochs))
            if lane.gone is not layout.removed:
                found = self._renumbered(lane.lasting(found))
            elif lane.first_record:
                found = found + lane.first_record
        else:
            found = self.shuffle.map_lanes(
                places, self._lane_keys, lanes=lanes, epochs=epochs
            )
            found = found + self._first_records.take(lanes)
            for number, lane in enumerate(layout.lanes):
                if len(lane.gone):
                    rows = np.flatnonzero(lanes == number)
                    found[rows] = lane.gone.opened(found[rows])
            found = self._renumbered(found)
        return found.reshape(positions.shape)

    def _renumbered(self, lasting: IntArray) -> IntArray:
        """Returns the numbers of records, given their lasting ones."""
        removed = self._layout.removed
        if not len(removed):
            return lasting
        before = np.searchsorted(removed.numbers, lasting)
        found = lasting - before
        lost = removed.numbers.take(before, mode="clip") == lasting
        if lost.any():
            found[lost] = -1 - lasting[lost]
        return found

    def positions(self, record: int, *, epochs: IntArray) -> IntArray:
        """Returns the position of one record in each of some epochs, int64.

        It is -1 for epochs without this record: before it was added, or after it was
        removed.
        """
        layout = self._layout
        lasting = self._lasting(record)
        found = np.full(len(epochs), -1, np.int64)
        for run, rows in layout.runs_of(epochs):
            for number, gaps in enumerate(run.gaps):
                lane = layout.lanes[run.lanes[number]]
                own = lane.numbers(lasting)
                if not own.size:
                    continue
                places = self.shuffle.map(
                    np.full(len(rows), own[0], np.int64),
                    self._lane_key(lane, epochs[rows]),
                    inverse=True,
                )
                there = ~gaps.has(places)
                here, within = rows[there], gaps.closed(places[there])
                if run.mixture is not None:
                    within = run.mixture.select(number, within)
                start = (epochs[here] - run.first_epoch) * run.num_records
                found[here] = run.from_position + start + within
        return found

    @property
    def removes(self) -> bool:
        """Whether records are removed, so that some have negative numbers."""
        return len(self._layout.removed) > 0

    def before_removal(
        self, records: IntArray
    ) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Yields the original numbers of removed records, by extension.

        Args:
            records: int64 [n], negative numbers.

        Yields:
            The number of the extension, which of the records it removed, and their
            numbers before it.
        """
        lasting, gone = -1 - records, NOTHING
        for number, change in enumerate(self._changes):
            lost = gone.opened(change.removed.numbers)
            rows = np.flatnonzero(Removed(lost).has(lasting))
            if rows.size:
                yield number, rows, gone.closed(lasting[rows])
            gone = gone.joined(lost)

    def number_now(self, record: int, *, changes: int) -> int:
        """Returns the number of a record, given its number after some extensions.

        Raises InputError if there is no such record.
        """
        records, gone = self.num_records, NOTHING
        for change in self._changes[:changes]:
            records = change.num_records
            gone = gone.joined(gone.opened(change.removed.numbers))
        record = checked_count(record, what="record", least=0, most=records - 1)
        lasting = gone.opened(np.array([record], np.int64))
        return int(self._renumbered(lasting)[0])

    def _lasting(self, record: int) -> IntArray:
        """Returns the lasting number of a record, int64 [1]; it is checked."""
        removed, number = self._layout.removed, checked_integer(record, what="record")
        if -POSITION_LIMIT <= number < 0:
            lasting = np.array([-1 - number], np.int64)
            if removed.has(lasting)[0]:
                return lasting
        most = self._layout.num_records - 1
        checked_count(number, what="record", least=0, most=most)
        return removed.opened(np.array([number], np.int64))

    def epoch_at(self, position: int) -> int:
        """Returns the epoch of a position."""
        return self._layout.epoch_at(position)

    def start_of(self, epoch: int) -> int:
        """Returns the position at which an epoch begins, at most 2^63."""
        return min(self._layout.start_of(epoch), POSITION_LIMIT)

    def epochs_before(self, position: int) -> Fraction:
        """Returns the number of epochs before a position."""
        return self._layout.epochs_before(position)

    def records_before(self, position: int) -> list[tuple[range, int]]:
        """Returns the ranges of records of epochs, and their counts before a position.

        A range has records with their own order in an epoch: all of them, or the old or
        the new ones of an extended epoch. The counts are over all epochs.
        """
        return self._layout.records_before(position)

    def shuffle_key(self, epochs: IntArray) -> ShuffleKey:
        """Returns the shuffle keys of some epochs of the dataset."""
        return ShuffleKey(self.num_records, self.seed, epochs, self.name)

    def epoch_range(self, first_epoch: int, stop_epoch: int | None) -> IntArray:
        """Returns the numbers of the whole epochs in a range, int64.

        Raises:
            InputError: Both the dataset's epochs and the range are endless.
        """
        first = checked_count(first_epoch, what="first_epoch", least=0)
        if stop_epoch is None and self.epochs is None:
            raise InputError("the schedule never ends", cure="give stop_epoch")
        run = self._layout.runs[-1]
        last = run.first_epoch + (self.stop - run.from_position) // run.num_records
        stop = last
        if stop_epoch is not None:
            stop = min(checked_integer(stop_epoch, what="stop_epoch"), last)
        return np.arange(first, max(first, stop), dtype=np.int64)

    @property
    def _changes(self) -> tuple[ChangedRecords, ...]:
        return cast("tuple[ChangedRecords, ...]", self.extensions)

    @functools.cached_property
    def _layout(self) -> Epochs:
        as_stored = isinstance(self.shuffle, NoShuffle)
        return Epochs(
            self.num_records,
            self._changes,
            as_stored=as_stored,
            places_of=self._places_of,
        )

    def _places_of(self, lane: Lane, epoch: int, numbers: IntArray) -> IntArray:
        key = self._lane_key(lane, np.array([epoch], np.int64))
        return self.shuffle.map(numbers, key, inverse=True)

    def _lasting_at(self, lane: Lane, epoch: int, places: IntArray) -> IntArray:
        key = self._lane_key(lane, np.array([epoch], np.int64))
        return lane.lasting(self.shuffle.map(places, key))

    @functools.cached_property
    def _first_records(self) -> IntArray:
        return np.array([lane.first_record for lane in self._layout.lanes], np.int64)

    @functools.cached_property
    def _lane_keys(self) -> tuple[LaneKey, ...]:
        return tuple(map(self._static_key, self._layout.lanes))

    def _static_key(self, lane: Lane) -> LaneKey:
        # Lanes of new records differ in name: they may be of the same length.
        name = f"{self.name}\0{lane.first_record}" if lane.first_record else self.name
        return LaneKey(lane.num_records, self.seed, name)

    def _lane_key(self, lane: Lane, epochs: IntArray) -> ShuffleKey:
        num_records, seed, name = self._static_key(lane)
        return ShuffleKey(num_records, seed, epochs, name)


def whole_epochs_of(order: DatasetOrder, position: int) -> WholeEpochs:
    """Returns how often each record was seen in the whole epochs before a position."""
    return whole_epochs(order._layout, position, order._lasting_at)


def begun_epoch_of(order: DatasetOrder, position: int) -> Iterator[IntArray]:
    """Yields the records of the epoch of a position that come before it, in any order.

    They are taken lane by lane, which is faster than as they are mixed.
    """
    layout = order._layout
    epoch = layout.epoch_at(position)
    (run, _), *_ = layout.runs_of(np.array([epoch], np.int64))
    counts = run.counts(position - layout.start_of(epoch))
    for number, gaps, count in zip(run.lanes, run.gaps, counts, strict=True):
        for begin in range(0, count, _BLOCK):
            places = np.arange(begin, min(begin + _BLOCK, count), dtype=np.int64)
            lane = layout.lanes[number]
            found = order._lasting_at(lane, epoch, gaps.opened(places))
            yield order._renumbered(found)
