"""The batches of datasets in an order: what is in each step, and its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple, Self, cast

import numpy as np

from gristmill.dataset.base.errors import InputError, OutOfRangeError, SystemLimitError
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.base.state_fields import Content
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.past_states import removed_since
from gristmill.loader.order.mixture import Weight
from gristmill.loader.order.step_records import (
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
        datasets: The datasets, one unless this is a mixture; for those that were
            extended, the newest. Records have the numbers that they have in these.
        schedule: Which records are in which step and row. It is internal.
        contents: Content of each dataset at step 0 and after each extension; empty if
            none was extended.
    """

    datasets: tuple[Dataset, ...]
    schedule: Schedule
    contents: tuple[tuple[Content, ...], ...] = ()

    def __repr__(self) -> str:
        datasets = ", ".join(map(repr, self.datasets))
        if self.names:
            named = zip(self.names, self.datasets, strict=True)
            datasets = ", ".join(f"{name}={dataset!r}" for name, dataset in named)
        return f"<{type(self).__name__} of {datasets}: {self.order_text}>"

    @property
    def order_text(self) -> str:
        """The order in one line for people; for a mixture, with its shares."""
        steps = "without end" if self.steps is None else f"{self.steps:,}"
        schedule, text = self.schedule, f"batch_size {self.batch_size:,}, steps {steps}"
        first = schedule.orders[0]
        sizes = ", ".join(f"{name} {n:,}" for name, n in vars(first.shuffle).items())
        sizes = sizes and f" ({sizes})"
        text += f", {first.shuffle.kind} shuffle{sizes}, seed {first.seed}"
        for what, shares in (
            ("rows", self._row_shares()),
            ("tokens", self._token_shares()),
        ):
            parts = zip(self.names, shares, strict=False)
            told = ", ".join(f"{name} {float(share):.2%}" for name, share in parts)
            text += told and f", of {what} {told}"
        phases = () if schedule.mixture is None else schedule.mixture.phases
        if len(phases) > 1 or schedule.resizes or schedule.extensions:
            text += ", until the first change at a step"
        return text

    def _row_shares(self) -> tuple[Fraction, ...]:
        """Returns the shares of a mixture's datasets in its rows, at step 0."""
        mixture = self.schedule.mixture
        return () if mixture is None else mixture.phases[0].weights

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
            int64 [rows] record indices; for a mixture, int64 [rows] numbers of datasets
            and int64 [rows] record indices in them. A record that was removed later has
            a negative one: -1 - n, where n is the number that it would have if none had
            been removed.

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

        Those that were removed later are read from the edition before, if it is kept.

        Raises:
            OutOfRangeError: There is no such step, or a record was removed.
            CorruptShardError: A shard does not hold what was written.
        """
        return self.read_batch(self.schedule.batch(step, rows))

    def read_batch(self, batch: MixedBatch) -> list[bytes]:
        """Returns the records of what `schedule.batch` returned."""
        out = [b""] * len(batch.records)
        for number, rows in by_dataset(batch.datasets):
            found = self.read_records(number, batch.records[rows])
            if isinstance(rows, slice):
                return found
            for row, record in zip(rows.tolist(), found, strict=True):
                out[row] = record
        return out

    def read_records(self, number: int, records: IntArray) -> list[bytes]:
        """Returns records of a dataset by their numbers in batches, negative ones too.

        Raises:
            OutOfRangeError: One was removed, and is not kept.
        """
        dataset, order = self.datasets[number], self.schedule.grown[number]
        if not order.removes or not (records < 0).any():
            return dataset.read_unchecked(records)
        out = np.empty(len(records), object)
        there, lost = np.flatnonzero(records >= 0), np.flatnonzero(records < 0)
        out[there] = dataset.read_unchecked(records[there])
        for extension, rows, numbers in order.before_removal(records[lost]):
            before = self.dataset_before(number, extension)
            out[lost[rows]] = before.read_unchecked(numbers)
        return cast("list[bytes]", out.tolist())

    def dataset_before(self, number: int, extension: int) -> Dataset:
        """Returns a dataset as it was before one of its extensions.

        Raises:
            OutOfRangeError: Its editions are not known, as it is not a single split.
        """
        dataset = self.datasets[number]
        edition = self.contents_of(number)[extension].edition
        if edition is None:
            raise OutOfRangeError(
                "a record was removed from the dataset",
                where=repr(dataset),
                expected="an edition of one split, to read it as it was before",
                got="joined datasets",
                cure="continue from a later step, or join the editions from before",
            )
        return dataset.as_of(edition)

    def number_of(self, dataset: str | None) -> int:
        """Returns the number of a dataset by its name; a single dataset has none.

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
        edition: int | None = None,
    ) -> list[Sighting]:
        """Returns the steps and rows where a record is seen, without reading anything.

        Args:
            record: Number of the record in its dataset.
            dataset: Name of the dataset, of a mixture only.
            first_epoch: First epoch of the dataset to look in.
            stop_epoch: First epoch not to look in. None for all, if there is an end.
            edition: The edition of the dataset in which the record has that number:
                one that the batches began with, or were extended to. By default the
                last. A record that was removed has one in an edition before.

        Raises:
            InputError: There is no such record, dataset or edition, or neither epochs
                nor range have an end.
        """
        number = self.number_of(dataset)
        if edition is not None:
            record = self._number_now(record, number, edition)
        return self.schedule.find(
            record,
            dataset=number,
            first_epoch=first_epoch,
            stop_epoch=stop_epoch,
        )

    def _number_now(self, record: int, number: int, edition: int) -> int:
        """Returns the number of a record, given that in an edition of its dataset."""
        known = [content.edition for content in self.contents_of(number)]
        if edition not in known:
            raise InputError(
                "the batches have no such edition of the dataset",
                where=repr(self.datasets[number]),
                expected=f"one of {', '.join(str(one) for one in known)}",
                got=edition,
                cure="give one of these, or leave it out for the number in the last",
            )
        order = self.schedule.grown[number]
        return order.number_now(record, changes=known.index(edition))

    def with_weights(self, weights: Mapping[str, Weight], *, step: int) -> Self:
        """Returns these batches with other weights from a step on.

        Batches before the step stay as they are, and every dataset continues where it
        stands there. Earlier changes at that step or later are replaced.

        Raises:
            InputError: This is not a mixture, or the names are not those of its
                datasets.
        """
        schedule = self.schedule.reweighted(
            ordered_weights(weights, self.names) if self.names else (), step=step
        )
        return dataclasses.replace(self, schedule=schedule)

    def resized(self, batch_size: int, *, step: int) -> Self:
        """Returns these batches with another batch size from a step on.

        Batches before the step stay as they are, and no record is left out or repeated:
        positions continue. Weights and datasets that change at other steps still do.
        Earlier changes of the size at that step or later are replaced.

        Raises:
            InputError: A number is out of range, or the batches end before the step of
                an extension now.
        """
        schedule = self.schedule.resized(batch_size, step=step)
        return dataclasses.replace(self, schedule=schedule)

    def extended(self, dataset: Dataset | Mapping[str, Dataset], *, step: int) -> Self:
        """Returns these batches with more or fewer records from a step on.

        Batches before the step stay as they are. From there on, what the running epoch
        of the dataset has left, without removed records, and the new records form one
        order, in which each is seen once. Later epochs are of the records that there
        are then. Earlier extensions of the dataset at that step or later are replaced.

        Args:
            dataset: The other dataset: a newer edition of the one before, or what
                `open` joined to it. It has the records of the one before, but those
                that were removed, and then new ones. For a mixture, one or more of its
                datasets, by name.
            step: The first step that may have new records, and has no removed one.

        Raises:
            InputError: The dataset does not begin with what is left of the records of
                the one before, or has the same; the mixture has no such dataset; or the
                batches end before that step.
            InvalidDatasetError: The list of removed records is damaged.
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
            removed = removed_since(longer, kept[-1])
            schedule = schedule.extended(
                len(longer), step=step, dataset=number, removed=removed
            )
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


class SeenRow(NamedTuple):
    """The record in a row of a step.

    Attributes:
        dataset: The dataset; of a record that was removed, as it was before.
        name: Its name in a mixture; its path otherwise.
        epoch: The epoch of the dataset.
        record: The record's number in the dataset.
        removed_from: The edition that it was removed from, None if it was not.
    """

    dataset: Dataset
    name: str
    epoch: int
    record: int
    removed_from: int | None = None


def row_at(batches: Batches, step: int, row: int) -> SeenRow:
    """Returns the record in a row of a step; opens at most an earlier edition."""
    schedule = batches.schedule
    (number,), position = schedule.locate(schedule.positions(step, slice(row, row + 1)))
    order = schedule.grown[number]
    epoch = order.epoch_at(int(position[0]))
    record = int(order.records(position)[0])
    dataset, removed_from = batches.datasets[number], None
    if record < 0:
        lost = np.array([record], np.int64)
        for extension, _, numbers in order.before_removal(lost):
            dataset, record = batches.dataset_before(number, extension), int(numbers[0])
            removed_from = dataset.edition
    name = batches.names[number] if batches.names else dataset.path
    return SeenRow(dataset, name, epoch, record, removed_from)


def describe_row(batches: Batches, step: int, row: int) -> str:
    """Returns the record in a row of a step, for messages."""
    seen = row_at(batches, step, row)
    at = f"row {row:,} of step {step:,}"
    if seen.removed_from is not None:
        return (
            f"{seen.name}, record {seen.record:,} of edition {seen.removed_from}, "
            f"which was removed since, {at}"
        )
    shards, in_shard = seen.dataset.find([seen.record])
    return (
        f"{seen.name}, record {seen.record:,} (record {int(in_shard[0]):,} of "
        f"{seen.dataset.shard(int(shards[0])).path}), {at}"
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
