"""The batches of datasets in an order: what is in each step, and its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, Self

from gristmill.dataset.errors import InputError, SystemLimitError
from gristmill.loader.content import Content
from gristmill.loader.dataset import Dataset
from gristmill.loader.indices import IntArray, checked_count
from gristmill.loader.notebook import table_html
from gristmill.loader.order.mixture import Weight
from gristmill.loader.order.schedule import (
    ALL_ROWS,
    MixedBatch,
    RowsBySize,
    Schedule,
    Sighting,
    by_dataset,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Batches:
    """The batches of a dataset, or of a mixture, in an order.

    It holds no position: `indices`, `read` and `find` are functions of their arguments.
    It pickles as the paths of its datasets and the order.

    Attributes:
        datasets: The datasets, one unless this is a mixture; of those that were
            extended the longest.
        schedule: Which records are in which step and row.
        contents: Of each dataset, its content at step 0 and after each extension; empty
            if none was extended.
    """

    datasets: tuple[Dataset, ...]
    schedule: Schedule
    contents: tuple[tuple[Content, ...], ...] = ()

    def __repr__(self) -> str:
        datasets = ", ".join(map(repr, self.datasets))
        if self.names:
            named = zip(self.names, self.datasets, strict=True)
            datasets = ", ".join(f"{name}={dataset!r}" for name, dataset in named)
        steps = "without end" if self.steps is None else f"{self.steps:,}"
        first = self.schedule.orders[0]
        text = (
            f"<{type(self).__name__} of {datasets}: batch_size {self.batch_size:,}, "
            f"steps {steps}, {first.shuffle.kind} shuffle, seed {first.seed}"
        )
        if shares := self._token_shares():
            parts = zip(self.names, shares, strict=True)
            told = (f"{name} {float(share):.2%}" for name, share in parts)
            text += f", of tokens {', '.join(told)}"
        return text + ">"

    def _repr_html_(self) -> str:
        return table_html(type(self).__name__, self._facts())

    def _facts(self) -> Iterator[tuple[str, Any]]:
        """Yields what notebooks show of it."""
        names = self.names or ("dataset",) * len(self.datasets)
        for name, dataset in zip(names, self.datasets, strict=True):
            yield name, repr(dataset)[1:-1]
        first = self.schedule.orders[0]
        yield "batch size", f"{self.batch_size:,} rows"
        yield "steps", "without end" if self.steps is None else f"{self.steps:,}"
        yield "shuffle", f"{first.shuffle.kind}, seed {first.seed}"
        shares = zip(self.names, self._token_shares(), strict=False)
        for name, share in shares:
            yield f"tokens of {name}", f"{float(share):.2%}"

    def _token_shares(self) -> list[Fraction]:
        """Returns the shares of a mixture's datasets in its tokens, as far as known."""
        counts = [dataset.packed_counts() for dataset in self.datasets]
        mixture = self.schedule.mixture
        if mixture is None or None in counts:
            return []
        tokens = [
            weight * Fraction(held.tokens, len(dataset))
            for weight, held, dataset in zip(
                mixture.phases[0].weights, counts, self.datasets, strict=True
            )
            if held is not None
        ]
        return [share / sum(tokens) for share in tokens]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a mixture's datasets, none for a single dataset."""
        return self.schedule.names

    @property
    def batch_size(self) -> int:
        """Rows of the global batch, over all hosts; of step 0 if it changes."""
        return self.schedule.batch_size

    def batch_size_at(self, step: int) -> int:
        """Returns the rows of a step's global batch, if it is full."""
        return self.schedule.sizes.size(checked_count(step, what="step", least=0))

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on all hosts; None if there is no end."""
        return self.schedule.steps

    def indices(self, step: int) -> IntArray | MixedBatch:
        """Returns the records of a step's global batch, in constant time.

        Returns:
            int64 [rows] record indices; of a mixture, int64 [rows] numbers of datasets
            and int64 [rows] record indices in them.

        Raises:
            OutOfRangeError: There is no such step.
        """
        return self.schedule.indices(step)

    def host_rows(
        self, *, process_index: int, process_count: int, step: int = 0
    ) -> slice:
        """Returns the rows of a step's global batch that one host takes.

        They are the same in all batches of one size.

        Raises:
            InputError: The batch does not divide among the hosts, or there is no such
                host.
        """
        return self.schedule.host_rows(
            process_index=process_index, process_count=process_count, step=step
        )

    def read(self, step: int, rows: RowsBySize = ALL_ROWS) -> list[bytes]:
        """Returns the records of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step.
            CorruptShardError: A shard does not hold what was written.
        """
        return self.read_batch(self.schedule.batch(step, rows))

    def read_batch(self, batch: MixedBatch) -> list[bytes]:
        """Returns the records of what `schedule.batch` returned."""
        out = [b""] * len(batch.records)
        for number, rows in by_dataset(batch.datasets):
            found = self.datasets[number].read_unchecked(batch.records[rows])
            if isinstance(rows, slice):
                return found
            for row, record in zip(rows.tolist(), found, strict=True):
                out[row] = record
        return out

    def number_of(self, dataset: str | None) -> int:
        """Returns the number of a dataset by its name, which a single one has not.

        Raises:
            InputError: There is no such dataset.
        """
        if dataset is None and not self.names:
            return 0
        if dataset in self.names:
            return self.names.index(dataset)
        if not self.names:
            raise InputError(
                "a single dataset has no name",
                got=f"dataset {dataset!r}",
                cure="leave the dataset out",
            )
        raise InputError(
            "say which dataset of the mixture"
            if dataset is None
            else "the mixture has no such dataset",
            expected=f"one of {', '.join(self.names)}",
            got=dataset,
            cure="give the name of one of these",
        )

    def find(
        self,
        record: int,
        dataset: str | None = None,
        *,
        first_epoch: int = 0,
        stop_epoch: int | None = None,
    ) -> list[Sighting]:
        """Returns the steps and rows where a record is seen, without reading anything.

        Args:
            record: Number of the record in its dataset.
            dataset: Name of the dataset, of a mixture only.
            first_epoch: First epoch of the dataset to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Raises:
            InputError: There is no such record or dataset, or neither epochs nor range
                have an end.
        """
        return self.schedule.find(
            record,
            dataset=self.number_of(dataset),
            first_epoch=first_epoch,
            stop_epoch=stop_epoch,
        )

    def with_weights(self, weights: Mapping[str, Weight], *, step: int) -> Self:
        """Returns these batches with other weights from a step on.

        Batches before the step stay as they are, and every dataset goes on where it
        stands there. Earlier changes at that step or later are replaced.

        Raises:
            InputError: This is no mixture, or the names are not those of its datasets.
        """
        schedule = self.schedule.reweighted(
            ordered_weights(weights, self.names) if self.names else (), step=step
        )
        return dataclasses.replace(self, schedule=schedule)

    def resized(self, batch_size: int, *, step: int) -> Self:
        """Returns these batches with another batch size from a step on.

        Batches before the step stay as they are, and no record is left out or repeated:
        positions go on. Weights and datasets that change at other steps still do.
        Earlier changes of the size at that step or later are replaced.

        Raises:
            InputError: A number is out of range, or the batches end before the step of
                an extension now.
        """
        schedule = self.schedule.resized(batch_size, step=step)
        return dataclasses.replace(self, schedule=schedule)

    def extended(self, dataset: Dataset | Mapping[str, Dataset], *, step: int) -> Self:
        """Returns these batches with more records from a step on.

        Batches before the step stay as they are. From there on, what the running epoch
        of the dataset has left and the new records form one order, in which each is
        seen once. Later epochs are of all records. Earlier extensions of the dataset at
        that step or later are replaced.

        Args:
            dataset: The longer dataset, which begins with the records of the one
                before: a newer edition of it, or what `open` joined to it. Of a
                mixture, one or more of its datasets, by name.
            step: The first step that may have new records.

        Raises:
            InputError: The dataset does not begin with the records of the one before,
                or has no others; the mixture has no such dataset; or the batches end
                before that step.
        """
        step = checked_count(step, what="step", least=0)
        named = dataset if isinstance(dataset, Mapping) else {None: dataset}
        datasets, schedule = list(self.datasets), self.schedule
        contents = [self.contents_of(number) for number in range(len(datasets))]
        for name, longer in named.items():
            number = self.number_of(name)
            # Later extensions of this dataset are replaced.
            steps = [old.step for old in schedule.extensions if old.dataset == number]
            kept = contents[number][: 1 + sum(old < step for old in steps)]
            check_begins_with(longer, kept[-1])
            schedule = schedule.extended(len(longer), step=step, dataset=number)
            datasets[number], contents[number] = longer, (*kept, longer.content)
        return dataclasses.replace(
            self,
            datasets=tuple(datasets),
            schedule=schedule,
            contents=tuple(contents),
        )

    def contents_of(self, number: int) -> tuple[Content, ...]:
        """Returns a dataset's content at step 0, and after each of its extensions."""
        if self.contents:
            return self.contents[number]
        return (self.datasets[number].content,)


def check_begins_with(longer: Dataset, before: Content) -> None:
    """Raises InputError unless a dataset has the records of another, and more."""
    if not isinstance(longer, Dataset):
        raise InputError(
            "not a dataset",
            expected="what gristmill.loader.open returns, or some of them by name",
            got=f"{type(longer).__name__} {longer!r:.100}",
            cure="open it first, by loader.open(path)",
        )
    if len(longer) <= before.records:
        raise InputError(
            "the dataset has no more records than before",
            where=repr(longer),
            expected=f"more than {before.records:,} records",
            got=f"{len(longer):,}",
            cure="open the longer dataset, or leave this extension out",
        )
    if not longer.begins_with(before):
        raise InputError(
            "the dataset does not begin with the records of the one before",
            where=repr(longer),
            expected=f"{before.records:,} records with digest {before.records_digest} "
            f"and order digest {before.order_digest} in its first shards",
            got="other records, or others first",
            cure="open a newer edition of the same dataset, or join the new one behind "
            "it: loader.open([old, new])",
        )


class SeenRow(NamedTuple):
    """The record in a row of a step: its number in its dataset, and the epoch."""

    dataset: Dataset
    name: str  # In a mixture; the dataset's path otherwise.
    epoch: int
    record: int


def row_at(batches: Batches, step: int, row: int) -> SeenRow:
    """Returns the record in a row of a step; opens nothing."""
    schedule = batches.schedule
    (number,), position = schedule.locate_unchecked(
        schedule.positions(step, slice(row, row + 1))
    )
    dataset, order = batches.datasets[number], schedule.grown[number]
    return SeenRow(
        dataset=dataset,
        name=batches.names[number] if batches.names else dataset.path,
        epoch=order.epoch_at(int(position[0])),
        record=int(order.records_unchecked(position)[0]),
    )


def describe_row(batches: Batches, step: int, row: int) -> str:
    """Returns which record a row of a step is, for messages; opens nothing."""
    seen = row_at(batches, step, row)
    shards, in_shard = seen.dataset.find([seen.record])
    return (
        f"{seen.name}, record {seen.record:,} (record {int(in_shard[0]):,} of "
        f"{seen.dataset.shard(int(shards[0])).path}), row {row:,} of step {step:,}"
    )


def noted(error: BaseException, step: int) -> BaseException:
    """Returns an error that says in which step it was."""
    named: BaseException = error
    if isinstance(error, Exception):
        named = SystemLimitError.of(error) or error
        if named is not error:
            named.__cause__ = error
    named.add_note(f"in the batch of step {step:,}")
    return named


def ordered_weights(
    weights: Mapping[str, Weight], names: tuple[str, ...]
) -> tuple[Weight, ...]:
    """Returns the weights in the order of the names, which must be theirs."""
    if not isinstance(weights, Mapping) or set(weights) != set(names):
        raise InputError(
            "the weights are not those of the mixture's datasets",
            expected=f"a weight for each of {', '.join(names)}",
            got=f"{weights!r:.200}",
            cure="give weights by these names and no others",
        )
    return tuple(weights[name] for name in names)
