"""The epochs of a dataset that grows, one after the other, as ranges of positions.

Where a dataset is extended, what the running epoch has left and the new records form
one order. It is a mixture: the records that the epoch began with, and those of each
extension, are a *lane* each. From the extension on, the weights of the lanes are what
each has left, so all of them end together, with the epoch. Nothing is stored but these
few numbers, so any position is found directly. Epochs after that are of all records.

```
records      0 1 2 3 4 5 6 7, extended after position 3 by 8 9 a b c
epoch 0      5 2 7 | 0 9 4 c b 1 8 6 a 3      lanes 0-7 and 8-c, from position 3 on 5:5
epoch 1      b 2 6 0 9 4 1 c 7 a 3 8 5        a lane of 13 records
```
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from gristmill.dataset.errors import InputError
from gristmill.loader.indices import POSITION_LIMIT, IntArray
from gristmill.loader.order.mixture import Mixture, Phase


class Lane(NamedTuple):
    """Consecutive records of a dataset that have an order of their own in an epoch."""

    first_record: int
    num_records: int


class Run(NamedTuple):
    """Epochs of the same records: one that was extended, or all from one on.

    Attributes:
        from_position: Where the first of them begins.
        first_epoch: Its number.
        num_records: Records in each.
        lanes: Numbers of their lanes in `Epochs.lanes`.
        mixture: How the lanes of an extended epoch are mixed; None for a single lane.
    """

    from_position: int
    first_epoch: int
    num_records: int
    lanes: tuple[int, ...]
    mixture: Mixture | None = None


class Places(NamedTuple):
    """What is at some positions, int64 arrays.

    Attributes:
        lanes: The lane of each position, or one for all.
        epochs: The epoch of each, or one for all.
        places: How many records of its lane come before it in the epoch.
    """

    lanes: IntArray
    epochs: IntArray
    places: IntArray


class Epochs:
    """The epochs of a dataset with one length first, and greater ones later.

    Args:
        num_records: Records at position 0.
        extensions: Positions, and the records that there are from each on.
        as_stored: Whether an epoch has its records as they are stored: new ones follow
            the others, and there is nothing to mix.

    Attributes:
        lanes: All lanes, by number.
        runs: All runs, in their order.
    """

    def __init__(
        self,
        num_records: int,
        extensions: Sequence[tuple[int, int]],
        *,
        as_stored: bool,
    ):
        self.lanes = [Lane(0, num_records)]
        self.runs = [Run(0, 0, num_records, (0,))]
        last = 0
        for position, records in extensions:
            known = self.runs[-1].num_records
            if position < last or records <= known:
                raise InputError(
                    "an extension does not follow the one before it",
                    expected=f"more than {known:,} records, from {last:,} or later",
                    got=f"{records:,} records, from position {position:,}",
                    cure="give a longer dataset, at a later step",
                )
            self._extend(position, records, as_stored=as_stored)
            last = position
        self._starts = np.array([run.from_position for run in self.runs], np.int64)

    def _extend(self, position: int, records: int, *, as_stored: bool) -> None:
        run = self._run_of(position)
        epoch = run.first_epoch + (position - run.from_position) // run.num_records
        start = (epoch - run.first_epoch) * run.num_records + run.from_position
        # What was planned to follow the running epoch is replaced.
        while self.runs and self.runs[-1].from_position >= start:
            self.runs.pop()
        if position > start and not as_stored:
            mixed = self._mixed(run, epoch, start, position - start, records)
            self.runs.append(mixed)
            start, epoch = start + records, epoch + 1
        if start < POSITION_LIMIT:
            self.lanes.append(Lane(0, records))
            self.runs.append(Run(start, epoch, records, (len(self.lanes) - 1,)))

    def _mixed(
        self, run: Run, epoch: int, start: int, passed: int, records: int
    ) -> Run:
        """Returns the epoch of a run with new records from `passed` positions on."""
        before = (passed,) if run.mixture is None else run.mixture.counts(passed)
        lanes = [self.lanes[lane] for lane in run.lanes]
        left = [
            lane.num_records - seen for lane, seen in zip(lanes, before, strict=True)
        ]
        self.lanes.append(Lane(run.num_records, records - run.num_records))
        old = (Phase(0, (Fraction(1),)),) if run.mixture is None else run.mixture.phases
        mixture = Mixture(
            tuple(Phase(p.from_position, (*p.weights, Fraction(0))) for p in old)
        ).reweighted([*left, records - run.num_records], from_position=passed)
        numbers = (*run.lanes, len(self.lanes) - 1)
        return Run(start, epoch, records, numbers, mixture)

    def _run_of(self, position: int) -> Run:
        number = bisect.bisect_right(self.runs, position, key=_start_of)
        return self.runs[number - 1]

    def epoch_at(self, position: int) -> int:
        """Returns the epoch of a position."""
        run = self._run_of(position)
        return run.first_epoch + (position - run.from_position) // run.num_records

    def epochs_before(self, position: int) -> Fraction:
        """Returns how many epochs come before a position."""
        run = self._run_of(position)
        passed = position - run.from_position
        return run.first_epoch + Fraction(passed, run.num_records)

    def records_before(self, position: int) -> list[tuple[range, int]]:
        """Returns how many records of which lanes come before a position."""
        starts = [run.from_position for run in self.runs]
        found: list[tuple[range, int]] = []
        for run, end in zip(self.runs, [*starts[1:], POSITION_LIMIT], strict=True):
            if run.from_position >= position:
                break
            passed = min(end, position) - run.from_position
            counts = (passed,) if run.mixture is None else run.mixture.counts(passed)
            for lane, count in zip(run.lanes, counts, strict=True):
                first, records = self.lanes[lane]
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
        """Returns what is at int64 [n] positions that are known to be in range."""
        if positions.size:
            ends = int(positions.min()), int(positions.max())
            first, last = (self._run_of(position) for position in ends)
            if first is last:  # Most batches are in one.
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
        """Returns what is at positions from a first to a last one, all in a run."""
        if run.mixture is not None:
            start = run.from_position
            lanes, places = run.mixture.locate_between(
                positions - start, first - start, last - start
            )
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
        return Places(lane, epochs, within)


def _start_of(run: Run) -> int:
    return run.from_position
