"""Global batches as a pure function of the step.

The epochs of a dataset, each in its own order, follow one another without a gap in one
stream. Step s of batch size b is the stream's positions [s * b, (s + 1) * b): a batch
may hold the end of one epoch and the beginning of the next, and no record is dropped
between epochs. Nothing is carried from step to step, so any step costs the same. Hosts
take rows of the global batch; how many hosts there are changes no batch.
"""

from __future__ import annotations

import abc
import dataclasses
import operator
from typing import NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.errors import InputError, OutOfRangeError
from gristmill.loader.indices import (
    POSITION_LIMIT,
    IntArray,
    checked_count,
    checked_indices,
)
from gristmill.loader.order.epochs import RecordStream

Rows: TypeAlias = slice | IntArray

ALL_ROWS = slice(None)


class Sighting(NamedTuple):
    """Where a record is seen: row `row` of the global batch of step `step`."""

    epoch: int
    step: int
    row: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batches(abc.ABC):
    """A stream of positions cut into steps.

    Attributes:
        batch_size: Rows of the global batch, over all hosts.
        drop_remainder: Whether a last batch that is not full is left out. It concerns
            the end of all epochs only, for epochs follow without a gap.
    """

    batch_size: int
    drop_remainder: bool = True

    def __post_init__(self) -> None:
        batch_size = checked_count(self.batch_size, what="batch_size")
        object.__setattr__(self, "batch_size", batch_size)

    @property
    @abc.abstractmethod
    def stop(self) -> int:
        """Number of positions in the stream: 2^63 if it has no end."""

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on all hosts; None if there is no end."""
        return None if self.stop == POSITION_LIMIT else self._step_limit()

    def positions(self, step: int, rows: Rows = ALL_ROWS) -> IntArray:
        """Returns the stream's positions in a step, int64 [rows].

        There are `batch_size` rows, or fewer in a last step that is not dropped.

        Args:
            step: Which step.
            rows: The rows wanted, a slice or their numbers, of the whole batch by
                default. Of a batch that is not full they are those that there are.

        Raises:
            OutOfRangeError: There is no such step, or no such row in a full batch.
        """
        step = operator.index(step)
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

    def _sightings(self, epochs: IntArray, positions: IntArray) -> list[Sighting]:
        """The steps and rows of positions, without those that are in no step."""
        limit = min(self.stop, self._step_limit() * self.batch_size)
        return [
            Sighting(epoch, *divmod(position, self.batch_size))
            for epoch, position in zip(epochs.tolist(), positions.tolist(), strict=True)
            if 0 <= position < limit
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule(Batches):
    """The global batches of one dataset.

    Attributes:
        stream: The dataset's epochs.
    """

    stream: RecordStream

    @property
    def stop(self) -> int:
        """Number of positions in the stream: 2^63 if it has no end."""
        return self.stream.stop

    def indices(self, step: int, rows: Rows = ALL_ROWS) -> IntArray:
        """Returns the record indices of rows of a step's global batch, int64 [rows].

        Raises:
            OutOfRangeError: There is no such step.
        """
        return self.stream.records(self.positions(step, rows))

    def find(
        self, record: int, *, first_epoch: int = 0, stop_epoch: int | None = None
    ) -> list[Sighting]:
        """Returns where a record is seen: once an epoch, unless it is in the remainder.

        Args:
            record: Index of the record.
            first_epoch: First epoch to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Raises:
            InputError: There is no such record, or neither epochs nor range
                have an end.
        """
        epochs = self.stream.epoch_range(first_epoch, stop_epoch)
        return self._sightings(epochs, self.stream.positions(record, epochs=epochs))
