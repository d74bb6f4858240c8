"""Global batches of datasets: an order bound to the records that it is an order of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import InputError
from gristmill.loader.dataset import Dataset
from gristmill.loader.indices import IntArray, checked_indices
from gristmill.loader.order.epochs import RecordStream
from gristmill.loader.order.mixed_schedule import MixedBatch, MixedSchedule
from gristmill.loader.order.mixture import Mixture, Weight
from gristmill.loader.order.schedule import ALL_ROWS, Rows, Schedule, Sighting
from gristmill.loader.order.shuffle import Shuffle, parse_shuffle

if TYPE_CHECKING:
    from gristmill.loader.feed.feed import Feed
    from gristmill.loader.feed.source import Decode
    from gristmill.loader.locate import Location


@dataclasses.dataclass(frozen=True, kw_only=True)
class GlobalBatches:
    """The global batches of a dataset, or of a mixture. Made by `global_batches`.

    It holds no position: `indices`, `read` and `find` are functions of their arguments.
    It pickles as the paths of its datasets and the order.

    Attributes:
        datasets: The datasets, one unless this is a mixture.
        schedule: Which records are in which step and row.
    """

    datasets: tuple[Dataset, ...]
    schedule: Schedule | MixedSchedule

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a mixture's datasets, none for a single dataset."""
        if isinstance(self.schedule, Schedule):
            return ()
        return tuple(stream.name for stream in self.schedule.streams)

    @property
    def batch_size(self) -> int:
        """Rows of the global batch, over all hosts."""
        return self.schedule.batch_size

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

    def host_rows(self, *, process_index: int, process_count: int) -> slice:
        """Returns the rows of every global batch that one host takes.

        Raises:
            InputError: The batch does not divide among the hosts, or there is no such
                host.
        """
        return self.schedule.host_rows(
            process_index=process_index, process_count=process_count
        )

    def read(self, step: int, rows: Rows = ALL_ROWS) -> list[bytes]:
        """Returns the records of rows of a step's global batch.

        Raises:
            OutOfRangeError: There is no such step.
            CorruptShardError: A shard does not hold what was written.
        """
        batch = self.schedule.indices(step, rows)
        if not isinstance(batch, MixedBatch):
            return self.datasets[0].read(batch)
        out = [b""] * len(batch.records)
        for number in np.unique(batch.datasets).tolist():
            places = np.flatnonzero(batch.datasets == number)
            found = self.datasets[number].read(batch.records[places])
            for place, record in zip(places.tolist(), found, strict=True):
                out[place] = record
        return out

    def locate(self, step: int, row: int) -> Location:
        """Returns where a row of a step's global batch comes from.

        That is the record, its shard and, where the dataset knows it, the TFRecord file
        and byte offset that it was converted from; see `Location`.

        Raises:
            OutOfRangeError: There is no such step.
            InputError: There is no such row.
        """
        # Imported here: few ask, and it knows of more than batches do.
        from gristmill.loader.locate import locate

        return locate(self, step, row)

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
        epochs: dict[str, Any] = {"first_epoch": first_epoch, "stop_epoch": stop_epoch}
        if isinstance(self.schedule, MixedSchedule):
            number = self._number_of(dataset)
            return self.schedule.find(record, dataset=number, **epochs)
        if dataset is not None:
            raise InputError(
                "there is one dataset only, it has no name",
                got=f"dataset {dataset!r}",
                cure="leave the dataset out",
            )
        return self.schedule.find(record, **epochs)

    def with_weights(
        self, weights: Mapping[str, Weight], *, step: int
    ) -> GlobalBatches:
        """Returns these batches with other weights from a step on.

        Batches before the step stay as they are, and every dataset goes on where it
        stands there. Earlier changes at that step or later are replaced.

        Raises:
            InputError: This is no mixture, or the names are not those of its datasets.
        """
        if isinstance(self.schedule, Schedule):
            raise InputError(
                "a single dataset has no weights",
                cure='make a mixture: global_batches({"a": a, "b": b}, weights=...)',
            )
        ordered = _in_order(weights, self.names)
        schedule = self.schedule.reweighted(ordered, step=step)
        return dataclasses.replace(self, schedule=schedule)

    def feed(
        self,
        *,
        decode: Decode | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
        topology: str | None = None,
        rows: npt.ArrayLike | None = None,
        workers: int = 0,
        prefetch: int = 2,
        start_step: int = 0,
    ) -> Feed:
        """Returns an iterator of one host's rows of the batches, read ahead.

        Args:
            decode: Called with a batch's records of this host, list[bytes]; what it
                returns is what the feed gives. It must pickle if there are workers.
            process_index: Which host this is, from 0.
            process_count: How many hosts there are.
            topology: "jax" asks JAX for the two numbers above.
            rows: Numbers of the rows to read, instead of a topology, for hosts that
                take no contiguous share; `rows_of` has those of JAX's devices.
            workers: Processes that read and decode; 0 for threads of this one.
            prefetch: Batches that are ready ahead of the trainer. Those being read come
                on top, with workers up to four each.
            start_step: First step to give.

        Raises:
            InputError: Topology is not said, or said twice; the batch does not divide
                among the hosts; or a number is out of range.
        """
        # Imported here: whoever asks for indices needs no Grain.
        from gristmill.loader.feed.feed import Feed
        from gristmill.loader.feed.topology import host_of

        taken: Rows
        if rows is None:
            taken = self.host_rows(**host_of(process_index, process_count, topology))
        elif (process_index, process_count, topology) != (None, None, None):
            raise InputError(
                "the feed is told twice what to read",
                expected="either rows, or the topology",
                got="both",
                cure="leave rows out, or process_index, process_count and topology",
            )
        else:
            taken = checked_indices(rows, stop=self.batch_size, what="row")
        return Feed(
            self,
            rows=taken,
            decode=decode,
            workers=workers,
            prefetch=prefetch,
            start_step=start_step,
        )

    def _number_of(self, dataset: str | None) -> int:
        if dataset not in self.names:
            raise InputError(
                "say which dataset of the mixture"
                if dataset is None
                else "the mixture has no such dataset",
                expected=f"one of {', '.join(self.names)}",
                got=dataset,
            )
        return self.names.index(dataset)


def global_batches(
    datasets: Dataset | Mapping[str, Dataset],
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: str | Shuffle = "global",
    epochs: int | None = None,
    drop_remainder: bool = True,
    weights: Mapping[str, Weight] | None = None,
) -> GlobalBatches:
    """Returns the global batches of a dataset or a mixture, as a function of the step.

    Args:
        datasets: What `gristmill.loader.open` returned; for a mixture, several of them
            by name. A name is part of its dataset's order.
        batch_size: Rows of the global batch, over all hosts.
        seed: Any integer.
        shuffle: "global" (every record anywhere), "block" (near-sequential reading),
            "none", or a shuffle with sizes of its own.
        epochs: How often each dataset is seen, or None for no end.
        drop_remainder: Whether a last batch that is not full is left out.
        weights: Shares of a mixture's datasets in its rows, by name, of any sum. By
            default in proportion to their lengths.

    Raises:
        InputError: An argument is out of range, a dataset is empty, or names of
            datasets and weights differ.
    """
    order: dict[str, Any] = {
        "seed": seed,
        "shuffle": parse_shuffle(shuffle),
        "epochs": epochs,
    }
    cut: dict[str, Any] = {"batch_size": batch_size, "drop_remainder": drop_remainder}
    if not isinstance(datasets, Mapping):
        if weights is not None:
            raise InputError(
                "weights are for a mixture",
                cure='give the datasets by name: {"a": a, "b": b}',
            )
        stream = RecordStream(num_records=_length_of(datasets), **order)
        schedule = Schedule(stream=stream, **cut)
        return GlobalBatches(datasets=(datasets,), schedule=schedule)
    if not datasets:
        raise InputError(
            "a mixture of no datasets",
            cure='give one or more by name: {"a": a, "b": b}',
        )
    streams = tuple(
        RecordStream(num_records=_length_of(dataset), name=name, **order)
        for name, dataset in datasets.items()
    )
    if weights is None:
        weights = {stream.name: stream.num_records for stream in streams}
    mixture = Mixture.of(_in_order(weights, tuple(datasets)))
    return GlobalBatches(
        datasets=tuple(datasets.values()),
        schedule=MixedSchedule(streams=streams, mixture=mixture, **cut),
    )


def _length_of(dataset: Dataset) -> int:
    if not isinstance(dataset, Dataset):
        raise InputError(
            "not a dataset",
            expected="what gristmill.loader.open returns, or several of them by name",
            got=f"{type(dataset).__name__} {dataset!r:.100}",
            cure="open it first, by loader.open(path)",
        )
    if not len(dataset):
        raise InputError(
            "the dataset has no records",
            where=repr(dataset),
            cure="open another split, or leave the dataset out of the mixture",
        )
    return len(dataset)


def _in_order(
    weights: Mapping[str, Weight], names: tuple[str, ...]
) -> tuple[Weight, ...]:
    if set(weights) != set(names):
        raise InputError(
            "the weights are not those of the mixture's datasets",
            expected=f"a weight for each of {', '.join(names)}",
            got=", ".join(weights),
            cure="give weights by these names and no others",
        )
    return tuple(weights[name] for name in names)
