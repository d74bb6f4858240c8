"""The epochs of a dataset that changes, one after the other, as ranges of positions.

When a dataset is extended, the rest of the running epoch and the new records form one
order. It is a mixture: the records that the epoch began with, and those of each
extension, are a *lane* each. From the extension on, the weight of a lane is its
remaining number of records, so all of them end together, with the epoch. Only these few
numbers are stored, so any position is found directly. Later epochs have all records.

```
records      0 1 2 3 4 5 6 7, extended after position 3 by 8 9 a b c
epoch 0      5 2 7 | 0 9 4 c b 1 8 6 a 3      lanes 0-7 and 8-c, from position 3 on 5:5
epoch 1      b 2 6 0 9 4 1 c 7 a 3 8 5        a lane of 13 records
```

Removed records leave gaps in the rest of their lanes. The order has an inverse, so
their places are computed once; a place is then found by the number of gaps before it.
Records dealt earlier stay.

```
records      0 1 2 3 4 5 6 7, without 2 and 4 after position 3
epoch 0      5 2 7 | 0 . 1 6 3                a lane with a gap at place 4
epoch 1      3 0 5 1 4 2                      a lane of 6 records, numbered anew
```

Within this module a record keeps its number: *lasting* numbers are those that the
records would have if none had been removed. `DatasetOrder` has those of the last
dataset.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import NOTHING, POSITION_LIMIT, IntArray, Removed
from gristmill.loader.order.mixture import Mixture, Phase


class ChangedRecords(NamedTuple):
    """A change of a dataset's records, from a position on.

    Attributes:
        position: The first position that may have new records, and has no removed one.
        num_records: Number of records from then on: the earlier ones without the
            removed ones, then new ones.
        removed: Numbers of the removed ones among the earlier records.
    """

    position: int
    num_records: int
    removed: Removed = NOTHING


class Lane(NamedTuple):
    """Records of a dataset with their own order in an epoch.

    Attributes:
        first_record: The lasting number of the first.
        num_records: Their number, including those removed later.
        gone: Lasting numbers of those that were removed before the lane began.
    """

    first_record: int
    num_records: int
    gone: Removed = NOTHING

    def lasting(self, numbers: IntArray) -> IntArray:
        """Returns the lasting numbers of records, given their numbers in the lane."""
        found = self.gone.opened(numbers)
        return found + self.first_record if self.first_record else found

    def numbers(self, lasting: IntArray) -> IntArray:
        """Returns the lane's numbers of those records that it has."""
        kept = lasting[~self.gone.has(lasting)] - self.first_record
        found = self.gone.closed(kept)
        return found[(found >= 0) & (found < self.num_records)]


PlacesOf: TypeAlias = Callable[[Lane, int, IntArray], IntArray]
"""Returns the places, in an epoch, of records that a lane has, by its numbers."""


class Run(NamedTuple):
    """Epochs of the same records: one that was changed, or all from one on.

    Attributes:
        from_position: Where the first of them begins.
        first_epoch: Its number among all epochs.
        num_records: Records in each.
        lanes: Numbers of their lanes in `Epochs.lanes`.
        gaps: For each lane, the places of records that were removed before their turn.
        mixture: How the lanes of an extended epoch are mixed; None for a single lane.
    """

    from_position: int
    first_epoch: int
    num_records: int
    lanes: tuple[int, ...]
    gaps: tuple[Removed, ...] = (NOTHING,)
    mixture: Mixture | None = None

    def counts(self, passed: int) -> tuple[int, ...]:
        """Returns the number of records of each lane that come first in an epoch."""
        return (passed,) if self.mixture is None else self.mixture.counts(passed)


class Places(NamedTuple):
    """Lanes, epochs and places at some positions, int64 arrays.

    Attributes:
        lanes: The lane of each position, or one for all.
        epochs: The epoch of each, or one for all.
        places: Its place in the lane: the number of the lane's records, removed ones
            included, before it in the epoch.
    """

    lanes: IntArray
    epochs: IntArray
    places: IntArray


class Epochs:
    """The epochs of a dataset with some records first, and others later.

    Args:
        num_records: Records at position 0.
        changes: Changes, in order.
        as_stored: Whether an epoch has its records in stored order: new ones follow the
            others, unmixed.
        places_of: The order of lanes.

    Attributes:
        lanes: All lanes, by number.
        runs: All runs, in their order.
        removed: Lasting numbers of all records that were removed.
        num_records: Records after the last change.
    """

    def __init__(
        self,
        num_records: int,
        changes: Sequence[ChangedRecords],
        *,
        as_stored: bool,
        places_of: PlacesOf,
    ):
        self.lanes = [Lane(0, num_records)]
        self.runs = [Run(0, 0, num_records, (0,))]
        self.removed, self.num_records = NOTHING, num_records
        self._as_stored, self._places_of = as_stored, places_of
        last = 0
        for change in changes:
            self._check(change, last)
            last = change.position
            added = change.num_records + len(change.removed) - self.num_records
            if added or change.removed:
                self._change(change, added)
        self._starts = np.array([run.from_position for run in self.runs], np.int64)

    def _check(self, change: ChangedRecords, last: int) -> None:
        kept = self.num_records - len(change.removed)
        if change.position < last or change.num_records < max(kept, 1):
            raise InputError(
                "an extension does not follow the one before it",
                expected=f"{max(kept, 1):,} records or more, from {last:,} or later",
                got=f"{change.num_records:,} records, from position "
                f"{change.position:,}",
                cure="give a dataset that has the records of the one before, but those "
                "that were removed, and is not empty, at a later step",
            )
        if len(change.removed) and change.removed.numbers[-1] >= self.num_records:
            raise InputError(
                "a removed record is none of the dataset before",
                expected=f"numbers below {self.num_records:,}",
                got=int(change.removed.numbers[-1]),
                cure="give their numbers in the dataset that they were removed from",
            )

    def _change(self, change: ChangedRecords, added: int) -> None:
        """Changes the records of an epoch and later ones."""
        position, records = change.position, change.num_records
        run = self._run_of(position)
        epoch = run.first_epoch + (position - run.from_position) // run.num_records
        start = (epoch - run.first_epoch) * run.num_records + run.from_position
        # The plan after the running epoch is replaced.
        while self.runs and self.runs[-1].from_position >= start:
            self.runs.pop()
        lost = self.removed.opened(change.removed.numbers)
        if position > start:
            changed = self._changed(run, epoch, start, position - start, lost, added)
            self.runs.append(changed)
            start, epoch = start + changed.num_records, epoch + 1
        self.removed, self.num_records = self.removed.joined(lost), records
        if start < POSITION_LIMIT:
            self.lanes.append(Lane(0, records, self.removed))
            self.runs.append(Run(start, epoch, records, (len(self.lanes) - 1,)))

    def _changed(
        self, run: Run, epoch: int, start: int, passed: int, lost: IntArray, added: int
    ) -> Run:
        """Returns the epoch of a run with other records after some positions of it.

        Args:
            run: The run of the epoch as planned.
            epoch: Its number.
            start: Where it begins.
            passed: Number of its positions that stay.
            lost: Lasting numbers of the records that are removed.
            added: Number of new records.
        """
        numbers, gaps, left = [*run.lanes], [*run.gaps], []
        for item, seen in enumerate(run.counts(passed)):
            lane = self.lanes[numbers[item]]
            places = self._places_of(lane, epoch, lane.numbers(lost))
            turn = int(gaps[item].opened(np.array([seen]))[0])
            gaps[item] = gaps[item].joined(places[places >= turn])
            left.append(lane.num_records - len(gaps[item]) - seen)
        mixture = run.mixture
        if added and self._as_stored:
            lane = self.lanes[numbers[0]]
            numbers = [len(self.lanes)]
            self.lanes.append(lane._replace(num_records=lane.num_records + added))
        elif added:
            numbers.append(len(self.lanes))
            gaps.append(NOTHING)
            left.append(added)
            self.lanes.append(Lane(self.num_records + len(self.removed), added))
            phases = (Phase(0, (Fraction(1),)),) if mixture is None else mixture.phases
            mixture = Mixture(
                tuple(
                    Phase(old.from_position, (*old.weights, Fraction(0)))
                    for old in phases
                )
            )
        if mixture is not None and any(left):
            mixture = mixture.reweighted(left, from_position=passed)
        records = passed + sum(left) + (added if self._as_stored else 0)
        return Run(start, epoch, records, tuple(numbers), tuple(gaps), mixture)

    def _run_of(self, position: int) -> Run:
        number = bisect.bisect_right(self.runs, position, key=_start_of)
        return self.runs[number - 1]

    def epoch_at(self, position: int) -> int:
        """Returns the epoch of a position."""
        run = self._run_of(position)
        return run.first_epoch + (position - run.from_position) // run.num_records

    def epochs_before(self, position: int) -> Fraction:
        """Returns the number of epochs before a position."""
        run = self._run_of(position)
        passed = position - run.from_position
        return run.first_epoch + Fraction(passed, run.num_records)

    def records_before(self, position: int) -> list[tuple[range, int]]:
        """Returns the lanes of epochs, with their records before a position."""
        starts = [run.from_position for run in self.runs]
        found: list[tuple[range, int]] = []
        for run, end in zip(self.runs, [*starts[1:], POSITION_LIMIT], strict=True):
            if run.from_position >= position:
                break
            counts = run.counts(min(end, position) - run.from_position)
            for lane, count in zip(run.lanes, counts, strict=True):
                first, records, _ = self.lanes[lane]
                found.append((range(first, first + records), count))
        return found

    def start_of(self, epoch: int) -> int:
        """Returns the first position of an epoch."""
        (run, _), *_ = self.runs_of(np.array([epoch], np.int64))
        return run.from_position + (epoch - run.first_epoch) * run.num_records

    def runs_of(self, epochs: IntArray) -> Iterator[tuple[Run, IntArray]]:
        """Yields each run that has some of the epochs, and which of them it has."""
        firsts = [run.first_epoch for run in self.runs]
        numbers = np.searchsorted(firsts, epochs, side="right") - 1
        for number in np.unique(numbers).tolist():
            yield self.runs[number], np.flatnonzero(numbers == number)

    def locate(self, positions: IntArray) -> Places:
        """Returns lanes, epochs and places at int64 [n] positions, unchecked."""
        if positions.size:
            ends = int(positions.min()), int(positions.max())
            first, last = (self._run_of(position) for position in ends)
            if first is last:  # Most batches are in one run.
                return self._locate_in(first, positions, *ends)
        found = Places(*(np.empty_like(positions) for _ in Places._fields))
        numbers = np.searchsorted(self._starts, positions, side="right") - 1
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            here = positions[rows]
            ends = int(here.min()), int(here.max())
            part = self._locate_in(self.runs[number], here, *ends)
            for column, values in zip(found, part, strict=True):
                column[rows] = values
        return found

    def _locate_in(
        self, run: Run, positions: IntArray, first: int, last: int
    ) -> Places:
        """Returns the same for positions from a first to a last one of a run."""
        if run.mixture is not None:
            start = run.from_position
            lanes, places = run.mixture.locate_between(
                positions - start, first - start, last - start
            )
            for number, gaps in enumerate(run.gaps):
                if len(gaps):
                    rows = np.flatnonzero(lanes == number)
                    places[rows] = gaps.opened(places[rows])
            numbers = np.array(run.lanes, np.int64).take(lanes)
            return Places(numbers, np.array([run.first_epoch], np.int64), places)
        lane = np.array(run.lanes, np.int64)
        epoch = (first - run.from_position) // run.num_records
        start = run.from_position + epoch * run.num_records
        epochs = np.array([run.first_epoch + epoch], np.int64)
        within = positions - start
        if last - start >= run.num_records:
            later, within = np.divmod(within, run.num_records)
            epochs = epochs + later
        return Places(lane, epochs, run.gaps[0].opened(within))


def _start_of(run: Run) -> int:
    return run.from_position
