"""The batches of datasets in an order: what is in each step, and its records."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal, NamedTuple, NoReturn, Self, TypeVar

from gristmill.dataset.base.errors import InputError, SystemLimitError
from gristmill.loader.base.indices import (
    ALL_ROWS,
    IntArray,
    by_value,
    checked_count,
    not_opened,
)
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.order.mixture import Mixture, Weight
from gristmill.loader.order.schedule import (
    DatasetOrder,
    MixedBatch,
    Phase,
    RowsBySize,
    Schedule,
    Sighting,
)

_log = logging.getLogger(__name__)


class NamedPhase(NamedTuple):
    """A phase of batches, with its datasets by name."""

    step: int
    datasets: dict[str, Dataset]
    mixture: Mixture | None
    batch_size: int

    def mixture_of(self, datasets: Mapping[str, Dataset]) -> Mixture | None:
        """Returns its mixture for others of these names: by lengths if it is so."""
        by_length = self.mixture == by_lengths(self.datasets)
        return by_lengths(datasets) if by_length else self.mixture


class BatchPlan(NamedTuple):
    """The facts from which all batches follow.

    Attributes:
        phases: Their phases, by rising steps, the first from step 0.
        like: An order with the seed, the shuffle and the epochs of all datasets.
        drop_remainder: Whether to leave out a partial last batch.
    """

    phases: tuple[NamedPhase, ...]
    like: DatasetOrder
    drop_remainder: bool = True


@dataclasses.dataclass(frozen=True, repr=False)
class Batches:
    """The batches of a dataset, or of a mixture, in an order.

    It holds no position: `indices`, `read` and `find` are functions of their arguments.
    It pickles as the paths of its datasets and the order.
    """

    _plan: BatchPlan

    def __post_init__(self) -> None:
        if self.steps == 0:
            raise InputError(
                "there is no batch: all records together are fewer than batch_size",
                expected=f"at least {self.batch_size:,} records, over all epochs",
                got=f"{self.schedule.stop:,}",
                cure="choose a smaller batch_size or more epochs, or keep the part of "
                "a batch that there is with drop_remainder=False",
            )

    @functools.cached_property
    def _numbered(self) -> list[tuple[str, Dataset]]:
        """The datasets of all phases with their names, by their numbers."""
        found = [pair for phase in self._plan.phases for pair in phase.datasets.items()]
        return [*{(name, id(one)): (name, one) for name, one in found}.values()]

    @functools.cached_property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets of all phases: a single one unless mixed or after `then`."""
        return tuple(dataset for _, dataset in self._numbered)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each dataset of a mixture; empty for a single dataset."""
        mixed = self._plan.phases[0].mixture is not None
        return tuple(name for name, _ in self._numbered) if mixed else ()

    @functools.cached_property
    def schedule(self) -> Schedule:
        """Which records are in which step and row. It is internal."""
        pairs = enumerate(self._numbered)
        numbers = {(name, id(one)): number for number, (name, one) in pairs}
        schedule = Schedule(phases=(), drop_remainder=self._plan.drop_remainder)
        for step, datasets, mixture, batch_size in self._plan.phases:
            orders = [
                dataclasses.replace(self._plan.like, num_records=len(one), name=name)
                for name, one in datasets.items()
            ]
            phase = Phase(
                step=step,
                orders=tuple(orders),
                numbers=tuple(numbers[name, id(one)] for name, one in datasets.items()),
                mixture=mixture,
                batch_size=batch_size,
            )
            schedule = schedule.then(phase)
        _tell_repeats(phase)
        return schedule

    def __repr__(self) -> str:
        datasets = ", ".join(map(repr, self.datasets))
        if self.names:
            named = zip(self.names, self.datasets, strict=True)
            datasets = ", ".join(f"{name}={dataset!r}" for name, dataset in named)
        return f"<{type(self).__name__} of {datasets}: {order_text(self)}>"

    def __getitem__(self, step: object) -> NoReturn:
        # Python's `for` calls it, too.
        raise InputError(
            "batches can be neither iterated nor indexed",
            where=repr(self),
            cure="iterate over a feed, as in `for rows in batches.feed(host=(0, 1))`, "
            "or read one step with `batches.read(step)`",
        )

    @property
    def batch_size(self) -> int:
        """Rows of the global batch, over all hosts; of step 0 if it changes."""
        return self.schedule.batch_size(0)

    @property
    def steps(self) -> int | None:
        """Number of steps, the same on all hosts; None if there is no end."""
        return self.schedule.steps

    def indices(self, step: int) -> IntArray | MixedBatch:
        """Returns the records of a step's global batch, in constant time.

        Returns:
            int64 [rows] record indices; for a mixture, int64 [rows] numbers of datasets
            and int64 [rows] record indices in them.

        Raises:
            OutOfRangeError: There is no such step.
        """
        batch = self.schedule.batch(step)
        return batch.records if self._plan.phases[0].mixture is None else batch

    def read(self, step: int, rows: RowsBySize = ALL_ROWS) -> list[bytes]:
        """Returns the records of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step.
            InputError: The edition of the step is gone.
            CorruptShardError: A shard does not hold what was written.
        """
        return read_batch(self, self.schedule.batch(step, rows))

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
            edition: Look only in phases with this edition of the dataset. By default in
                all, which is refused if the record has different numbers in them.

        Raises:
            InputError: There is no such record, dataset or edition, or neither epochs
                nor range have an end.
        """
        numbers = dataset_numbers(self, dataset)
        if edition is not None:
            known = {self.datasets[n].stored.edition: n for n in reversed(numbers)}
            if edition not in known:
                raise InputError(
                    "the batches have no such edition of the dataset",
                    where=repr(self.datasets[numbers[0]]),
                    expected=f"one of {', '.join(map(str, known))}",
                    got=edition,
                    cure="give one of these, or leave it out",
                )
            numbers = [known[edition]]
        last = self.datasets[numbers[0]]
        for number in numbers[1:]:
            if not last.stored.begins_with(self.datasets[number].stored.content):
                raise InputError(
                    "records have other numbers in an earlier phase of the batches",
                    where=repr(self.datasets[number]),
                    expected=f"the first records of {last!r}",
                    cure="give the edition in which the record has this number",
                )
        checked_count(record, what="record", least=0, most=len(last) - 1)
        return sorted(
            sighting
            for number in numbers
            if record < len(self.datasets[number])
            for sighting in self.schedule.find(
                record, dataset=number, first_epoch=first_epoch, stop_epoch=stop_epoch
            )
        )

    def then(
        self,
        datasets: Dataset | Mapping[str, Dataset] | None = None,
        *,
        step: int,
        at: Literal["step", "epoch"] = "step",
        weights: Mapping[str, Weight] | None = None,
        batch_size: int | None = None,
    ) -> Self:
        """Returns these batches up to a step, and others from there on.

        The others begin new epochs. What is not given stays as it was before the step.
        Phases that began at that step or later are replaced.

        Args:
            datasets: Another dataset, such as a newer edition or a longer one; in a
                mixture, those that change or are added, by name.
            step: The first step of the others.
            at: "epoch" waits, from that step on, for the end of the running epoch of
                the dataset that changes, so that all its records are seen.
            weights: Other weights of a mixture, by name. Weights that are the lengths
                of the datasets, as by default, stay so.
            batch_size: Other rows of the global batch, over all hosts.

        Raises:
            InputError: An argument is out of range or of another kind, the batches end
                before the step, or a mixture has other datasets or weights.
        """
        step = checked_count(step, what="step", least=0)
        part = [one for one in self._plan.phases if one.step < max(step, 1)][-1]
        given = self._named(datasets)
        named = part.datasets | given
        if at == "epoch":
            changed = [name for name in part.datasets if name in given]
            changed = changed or [*part.datasets]
            if len(changed) > 1:
                raise InputError(
                    "each dataset of a mixture has epochs of its own",
                    expected="one dataset that changes",
                    got=", ".join(changed),
                    cure="give the step, without at",
                )
            step = self.schedule.end_of_epoch(changed[0], step=step)
        elif at != "step":
            raise InputError(
                "unknown place of a change",
                expected="'step' or 'epoch'",
                got=f"{at!r:.100}",
                cure="give one of these",
            )
        part = NamedPhase(
            step=step,
            datasets=named,
            mixture=self._mixture(part, named, weights),
            batch_size=part.batch_size if batch_size is None else batch_size,
        )
        kept = (one for one in self._plan.phases if one.step < step)
        return with_phases(self, (*kept, part))

    def _named(
        self, datasets: Dataset | Mapping[str, Dataset] | None
    ) -> dict[str, Dataset]:
        """Returns datasets by their names, "" for a single one."""
        named = {} if datasets is None else named_datasets(datasets)
        for name, dataset in named.items():
            if bool(name) != bool(self.names):
                dataset_numbers(self, None if self.names else name)
            check_dataset(dataset)
        return named

    def _mixture(
        self,
        before: NamedPhase,
        named: Mapping[str, Dataset],
        weights: Mapping[str, Weight] | None,
    ) -> Mixture | None:
        """Returns the mixture of the phase that follows `before`."""
        if weights is not None:
            if not self.names:
                raise InputError(
                    "a single dataset has no weights",
                    cure='make a mixture: global_batches({"a": a, "b": b})',
                )
            return Mixture.of(ordered_weights(weights, tuple(named)))
        mixture = before.mixture_of(named)
        if mixture == before.mixture and named.keys() != before.datasets.keys():
            raise InputError(
                "a dataset is added to a mixture, and its weight is not given",
                expected=f"weights of {', '.join(named)}",
                cure="give weights too",
            )
        return mixture


AnyBatches = TypeVar("AnyBatches", bound=Batches)


def plan_of(batches: Batches) -> BatchPlan:
    """Returns the facts from which all batches follow."""
    return batches._plan


def with_phases(batches: AnyBatches, phases: tuple[NamedPhase, ...]) -> AnyBatches:
    """Returns batches of other phases, otherwise like these."""
    return dataclasses.replace(batches, _plan=batches._plan._replace(phases=phases))


def named_datasets(datasets: Dataset | Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Returns datasets by their names, a single one under ""."""
    return dict(datasets) if isinstance(datasets, Mapping) else {"": datasets}


def _tell_repeats(phase: Phase) -> None:
    """Warns of datasets that have fewer records than each batch has rows of them."""
    rows = phase.dealing.counts(phase.batch_size)
    for order, own in zip(phase.orders, rows, strict=True):
        if own > order.num_records and order.epochs != 1:
            text = f"{own:,} of its {phase.batch_size:,} rows are from "
            text += f"{order.name or 'the dataset'}, which has {order.num_records:,}"
            _log.warning("each global batch repeats records: %s records", text)


def order_text(batches: Batches) -> str:
    """Returns a one-line description of the order, with the shares of a mixture."""
    steps = "without end" if batches.steps is None else f"{batches.steps:,}"
    schedule = batches.schedule
    phase = schedule.phases[0]
    first = phase.orders[0]
    shuffle = f"{first.shuffle.kind} shuffle"
    if sizes := vars(first.shuffle):
        shown = ", ".join(f"{name} {count:,}" for name, count in sizes.items())
        shuffle += f" ({shown})"
    facts = [f"batch_size {batches.batch_size:,}", f"steps {steps}", shuffle]
    facts.append(f"seed {first.seed}")
    rows = () if phase.mixture is None else phase.mixture.weights
    for what, shares in (("rows", rows), ("tokens", _token_shares(batches))):
        if shares:
            parts = zip(phase.orders, shares, strict=True)
            shown = ", ".join(f"{one.name} {float(share):.2%}" for one, share in parts)
            facts.append(f"of {what} {shown}")
    if len(schedule.phases) > 1:
        facts.append(f"until step {schedule.phases[1].step:,}")
    return ", ".join(facts)


def _token_shares(batches: Batches) -> list[Fraction]:
    """Returns the shares of a mixture's datasets in its tokens, as far as known."""
    phase, shares = batches.schedule.phases[0], []
    if phase.mixture is None:
        return []
    for number, weight in zip(phase.numbers, phase.mixture.weights, strict=True):
        dataset = batches.datasets[number]
        counts = dataset.stored.packed
        if counts is None:
            return []
        shares.append(weight * Fraction(counts.tokens, len(dataset)))
    return [share / sum(shares) for share in shares]


def read_batch(batches: Batches, batch: MixedBatch) -> list[bytes]:
    """Returns the records that a batch of a schedule names."""
    if len(batches.datasets) == 1:
        return batches.datasets[0].stored.read(batch.records)
    out = [b""] * len(batch.records)
    for number, rows in by_value(batch.datasets):
        found = batches.datasets[number].stored.read(batch.records[rows])
        if isinstance(rows, slice):
            return found
        for row, record in zip(rows.tolist(), found, strict=True):
            out[row] = record
    return out


def dataset_numbers(batches: Batches, name: str | None) -> list[int]:
    """Returns the numbers of the datasets with a name, the latest first.

    The name of a single dataset is None.

    Raises:
        InputError: There is no such dataset.
    """
    if name is None and not batches.names:
        return [*range(len(batches.datasets))][::-1]
    if name in batches.names:
        found = [n for n, own in enumerate(batches.names) if own == name]
        return found[::-1]
    if not batches.names:
        raise InputError(
            "a single dataset has no name",
            got=f"dataset {name!r}",
            cure="leave the dataset out",
        )
    raise InputError(
        "say which dataset of the mixture"
        if name is None
        else "the mixture has no such dataset",
        expected=f"one of {', '.join(dict.fromkeys(batches.names))}",
        got=name,
        cure="give the name of one of these",
    )


class SeenRow(NamedTuple):
    """The record in a row of a step.

    Attributes:
        dataset: The dataset.
        name: Its name in a mixture; its path otherwise.
        epoch: The epoch of the dataset.
        record: The record's number in the dataset.
    """

    dataset: Dataset
    name: str
    epoch: int
    record: int


def row_at(batches: Batches, step: int, row: int) -> SeenRow:
    """Returns the record in a row of a step."""
    schedule = batches.schedule
    position = schedule.positions(step, slice(row, row + 1))
    (number,), (record,) = schedule.batch_at(position)
    dataset = batches.datasets[number]
    name = batches.names[number] if batches.names else dataset.path
    return SeenRow(dataset, name, schedule.epoch_at(int(position[0])), int(record))


def describe_row(batches: Batches, step: int, row: int) -> str:
    """Returns the record in a row of a step, for messages."""
    seen = row_at(batches, step, row)
    shards, in_shard = seen.dataset.find([seen.record])
    return (
        f"{seen.name}, record {seen.record:,} (record {int(in_shard[0]):,} of "
        f"{seen.dataset.shard(int(shards[0])).path}), row {row:,} of step {step:,}"
    )


def noted(error: BaseException, step: int) -> BaseException:
    """Returns the error with a note of its step, as a SystemLimitError if it is one."""
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
    """Returns the weights in the order of the names; raises if these differ."""
    if not isinstance(weights, Mapping) or set(weights) != set(names):
        raise InputError(
            "the weights are not those of the mixture's datasets",
            expected=f"a weight for each of {', '.join(names)}",
            got=f"{weights!r:.200}",
            cure="give weights by these names and no others",
        )
    return tuple(weights[name] for name in names)


def by_lengths(datasets: Mapping[str, Dataset]) -> Mixture | None:
    """Returns the mixture of datasets by their lengths, None for a single dataset."""
    if "" in datasets:
        return None
    return Mixture.of([len(dataset) for dataset in datasets.values()])


def check_dataset(dataset: object) -> None:
    """Raises InputError for anything but a dataset that has records."""
    if not isinstance(dataset, Dataset):
        raise not_opened(dataset)
    if not len(dataset):
        raise InputError(
            "the dataset has no records",
            where=repr(dataset),
            cure="open another split, or leave the dataset out of the mixture",
        )
