"""Datasets of Grain: the records of one host, or those of all positions."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np

from gristmill.dataset.base.errors import (
    InputError,
    OutOfRangeError,
    StateMismatchError,
)
from gristmill.loader.base.indices import IntArray, checked_count, checked_indices
from gristmill.loader.data.batches import Batches, read_batch
from gristmill.loader.feed.feed import Feed, RootIterator
from gristmill.loader.feed.state import refuse_grains, resumed
from gristmill.loader.grain.record_source import allow_unparsed_flags, end_with_trainer
from gristmill.loader.order.hosts import host_rows
from gristmill.loader.order.schedule import MixedBatch


@dataclasses.dataclass(frozen=True)
class Reader:
    """The reader of a host's records, or of the share of one of its workers.

    Attributes:
        host: Which host.
        hosts: Number of hosts.
        worker: Which worker of the host.
        workers: Number of workers, who take the steps in turn.
    """

    host: int
    hosts: int
    worker: int = 0
    workers: int = 1

    def __str__(self) -> str:
        text = f"host {self.host} of {self.hosts}"
        if self.workers > 1:
            text += f", worker {self.worker} of {self.workers}"
        return text

    def rows(self, count: int) -> slice:
        """Returns this host's rows of a batch, which need not divide among hosts.

        They are consecutive: every n-th row would hit the pattern of a mixture in the
        same places again and again, and give hosts unequal shares of its datasets.
        """
        first, end = self.host * count, (self.host + 1) * count
        return slice(first // self.hosts, end // self.hosts)

    def part(self, worker: int, workers: int) -> Reader:
        """Returns one of the workers that share the steps of this reader."""
        return dataclasses.replace(
            self,
            worker=self.worker + worker * self.workers,
            workers=self.workers * workers,
        )

    def first_step(self, start: int, steps: int | None) -> int:
        """Returns the first step of this reader from a step on, or the end."""
        first = start + (self.worker - start) % self.workers
        return first if steps is None else min(first, steps)

    def state(self, feed: dict[str, Any], row: int) -> dict[str, Any]:
        """Returns the state of records, as JSON values.

        Args:
            feed: The state of the feed before the step.
            row: How many records of the step were yielded.
        """
        return {"feed": feed, "next_row": row, **dataclasses.asdict(self)}

    def place(
        self, batches: Batches, state: Mapping[str, Any]
    ) -> tuple[dict[str, Any], int]:
        """Returns the state for the feed, and the row of its step to give next.

        Args:
            batches: The batches of this reader.
            state: What `state` returned, or the state of a feed of whole batches.

        Raises:
            StateMismatchError: It is of other datasets, of another order or reader.
            FormatVersionError: Another version wrote it.
            InputError: It is not the state of records.
        """
        refuse_grains(state, "batches.records()")
        of_all = isinstance(state, Mapping) and "version" in state
        if of_all:
            state = self.state(dict(state), 0)
        names = [*self.state({}, 0)]
        if not isinstance(state, Mapping) or {*state} != {*names}:
            raise _not_a_state("state", names, state)
        row, *numbers = (
            checked_count(state[name], what=f"{name} of the state", least=0)
            for name in names[1:]
        )
        if not isinstance(state["feed"], Mapping):
            raise _not_a_state("feed", "the state of a feed", state["feed"])
        of_feed, theirs = dict(state["feed"]), Reader(*numbers)
        self._check(theirs, of_feed.get("step"), row)
        going, step = resumed(batches, of_feed)
        first = self.first_step(step, going.steps)
        if of_all or self.workers != theirs.workers:
            # The latter is the beginning, as a process that has no workers wrote it.
            return of_feed | {"step": first}, 0
        if step != first:
            raise _not_a_state("feed.step", f"a step of {self}", step)
        there = step < going.schedule.step_limit
        count = len(going.schedule.positions(step, self.rows)) if there else 0
        if row and row >= count:
            raise _not_a_state("next_row", f"an integer from 0 to {count - 1}", row)
        return of_feed, row

    def _check(self, theirs: Reader, step: Any, row: int) -> None:
        """Raises StateMismatchError for the state of another host or worker."""
        begins = (step, row, theirs.worker, theirs.workers) == (0, 0, 0, 1)
        if theirs == self or (
            begins and theirs.part(self.worker, self.workers) == self
        ):
            return
        if theirs.hosts != self.hosts:
            cure = f"run {theirs.hosts} hosts: no state says where all of them are. "
            cure += "Another number can continue from the state of a feed, "
            cure += "batches.feed()"
        elif theirs.host != self.host:
            cure = "give each host the state that it wrote itself"
        else:
            cure = f"run {theirs.workers} workers, which each wrote a state"
            if theirs.workers == 1:
                cure = "run one worker, or none, as in the run that wrote the state"
        raise StateMismatchError(
            "the state is of the records of another host or worker",
            where=f"step {step}, next row {row}",
            expected=self,
            got=theirs,
            cure=cure,
        )


def _not_a_state(field: str, expected: object, got: object) -> InputError:
    return InputError(
        "not the state of the records of a host",
        where=field,
        expected=expected,
        got=f"{got!r:.200}",
        cure="give the whole state, as get_state of batches.records() returned it",
    )


@dataclasses.dataclass(slots=True)
class _Step:
    """The records of a step, some of which were yielded.

    Attributes:
        state: The feed's state before these records.
        next_row: Which of them comes next.
        records: All of the step; none before it is read.
        after: The feed's state after them; None before they are read.
    """

    state: dict[str, Any]
    next_row: int
    records: Sequence[bytes] = ()
    after: dict[str, Any] | None = None

    @property
    def place(self) -> tuple[dict[str, Any], int]:
        """The feed's state at the step of the next record, and its row there."""
        if self.after is None or self.next_row < len(self.records):
            return self.state, self.next_row
        return self.after, 0


class RecordDataset(grain.IterDataset):  # type: ignore[misc]  # Grain has no types.
    """The records of one host, step after step. Made by `GlobalBatches.records`.

    It holds no position: each iterator begins at the first step.

    Attributes:
        batches: The global batches.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        host: tuple[int, int],
        prefetch: int,
    ):
        super().__init__()
        allow_unparsed_flags()
        self.batches = batches
        self._reader = Reader(*host)
        self._prefetch = prefetch
        for size in batches.schedule.sizes_from(0):
            host_rows(size, host)  # Raises if it does not divide among the hosts.

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps the steps of one worker only; Grain's `mp_prefetch` calls it there.

        Worker w of W gives the whole steps w, w + W, w + 2 * W, ...

        Raises:
            InputError: The slice is of another form than `slice(w, None, W)`.
        """
        worker, stop, workers = sl.start or 0, sl.stop, sl.step or 1
        if sequential_slice or stop is not None or not 0 <= worker < workers:
            raise InputError(
                "workers take steps in turn, not other parts of the records",
                expected="slice(w, None, W) for worker w of W",
                got=f"{sl}, sequential_slice={sequential_slice}",
                cure="leave sequential_slice out of mp_prefetch",
            )
        self._reader = self._reader.part(worker, workers)

    def __iter__(self) -> RecordIterator:
        return RecordIterator(self.batches, self._reader, self._prefetch)

    def __str__(self) -> str:
        return f"RecordDataset({self._reader})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In a worker process, which may start more of them.
        allow_unparsed_flags()
        end_with_trainer()
        self.__dict__.update(state)


class RecordIterator(RootIterator):
    """An iterator of a `RecordDataset`; threads start with the first record."""

    def __init__(self, batches: Batches, reader: Reader, prefetch: int):
        super().__init__()
        self._reader = reader
        self._feed = Feed(
            batches,
            rows_of=reader.rows,
            decode=None,
            workers=0,
            prefetch=prefetch,
            start_step=reader.first_step(0, batches.steps),
            every=reader.workers,
            divides_last=True,
        )
        self._step = _Step(self._feed.get_state(), 0)

    @property
    def batches(self) -> Batches:
        """The global batches; of the editions of the state that was set."""
        return self._feed.batches

    def __next__(self) -> bytes:
        """Returns the next record; it raises what a feed raises."""
        while True:
            step = self._step
            row = step.next_row
            if row < len(step.records):
                step.next_row = row + 1
                return step.records[row]
            self._read_step()

    def _read_step(self) -> None:
        (state, row), feed = self._step.place, self._feed
        # It is at another step if Ctrl-C came before the step that it yielded was kept.
        if feed.get_state()["step"] != state["step"]:
            feed.set_state(state)
        records = next(feed)
        self._step = _Step(state, row, records, feed.get_state())

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the feed and the place in its step, as JSON values."""
        return self._reader.state(*self._step.place)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes to the record of a state that the same host and worker wrote.

        It also takes the state of a feed of whole batches, which all hosts share.

        Raises:
            StateMismatchError: It is of other datasets, of another order, or of another
                host or worker. The iterator stays as it is.
            FormatVersionError: Another version wrote the state.
            InputError: It is not the state of such an iterator.
        """
        of_feed, next_row = self._reader.place(self._feed.batches, state)
        self._feed.set_state(of_feed)
        self._step = _Step(self._feed.get_state(), next_row)

    def start_prefetch(self) -> None:
        """Starts to read ahead; asking for a record does it too."""
        self._feed.start_prefetch()

    def close(self) -> None:
        """Ends the threads, and with them the iterator. It may be called again."""
        super().close()
        if "_step" in self.__dict__:  # Grain closes it too where it was not made.
            self._feed.close()
            # Frees the records. Python may be exiting: no name of this module is there.
            step = self._step
            step.state, step.next_row = step.place
            step.records, step.after = (), None

    def __str__(self) -> str:
        return f"RecordIterator({self._reader})"


# Grain asks for single elements. The order of a thousand positions costs as much as
# that of one, and several threads are at about the same place.
_BLOCK_POSITIONS = 1024
_BLOCKS_KEPT = 4


class OrderDataset(grain.MapDataset):  # type: ignore[misc]  # Grain has no types.
    """Element p is the record at position p. Made by `GlobalBatches.map_dataset`.

    Attributes:
        batches: The global batches.
    """

    def __init__(self, batches: Batches):
        super().__init__()
        allow_unparsed_flags()
        end_with_trainer()
        self.batches = batches
        schedule = batches.schedule
        self._blocks: dict[int, MixedBatch] = {}
        self._length = sys.maxsize
        if schedule.steps is not None:
            stop = schedule.start(schedule.steps)
            self._length = min(schedule.stop, stop)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        position = int(self._positions([index])[0])
        block = self._block(position // _BLOCK_POSITIONS)
        place = position % _BLOCK_POSITIONS
        dataset = self.batches.datasets[int(block.datasets[place])]
        return dataset.stored.read(block.records[place : place + 1])[0]

    def _getitems(self, indices: Sequence[int]) -> list[bytes]:
        batch = self.batches.schedule.batch_at(self._positions(indices))
        return read_batch(self.batches, batch)

    def _positions(self, indices: Sequence[int]) -> IntArray:
        try:
            return checked_indices(indices, stop=len(self), what="position")
        except OutOfRangeError as e:
            e.add_note("repeat() has no effect on an order: give epochs to it instead")
            raise

    def _block(self, number: int) -> MixedBatch:
        """Returns the records at the positions of a block."""
        found = self._blocks.get(number)
        if found is None:
            first = number * _BLOCK_POSITIONS
            stop = min(first + _BLOCK_POSITIONS, len(self))
            positions = np.arange(first, stop, dtype=np.int64)
            found = self.batches.schedule.batch_at(positions)
            # Replaced as a whole, for other threads that look into it.
            latest = list(self._blocks.items())[1 - _BLOCKS_KEPT :]
            self._blocks = dict([*latest, (number, found)])
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderDataset, (self.batches,)

    def __str__(self) -> str:
        return f"OrderDataset({len(self):,} records)"
