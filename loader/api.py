"""Global batches as trainers use them: read, fed to a host, traced to their source."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.lazy_names import packages_named
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.batches import (
    Batches,
    BatchPlan,
    NamedPhase,
    by_lengths,
    check_dataset,
    named_datasets,
    ordered_weights,
)
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.feed.step_reads import check_mask, checked_columns
from gristmill.loader.order.hosts import Host, checked_host, host_rows
from gristmill.loader.order.mixture import Mixture, Weight
from gristmill.loader.order.schedule import DatasetOrder
from gristmill.loader.order.shuffle import (
    BlockShuffle,
    GlobalShuffle,
    NoShuffle,
    ShuffleName,
    parse_shuffle,
)
from gristmill.loader.packed.packed_rows import check_decode
from gristmill.loader.provenance.trace import (
    FoundDocument,
    Location,
    find_document,
    locate,
)

if TYPE_CHECKING:
    import grain

    from gristmill.loader.feed.feed import Feed
    from gristmill.loader.feed.step_reads import Decode


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class GlobalBatches(Batches):
    """The global batches of a dataset, or of a mixture. Made by `global_batches`.

    They are `Batches` that can be fed to hosts and traced to their sources.
    """

    def locate(self, step: int, row: int, token: int | None = None) -> Location:
        """Returns the origin of a row of a step's global batch.

        This is the record, its shard and, if the dataset stores it, the source file and
        the place in it; see `Location`. For a packed row, it is the source of every
        piece.

        Args:
            step: Number of the step.
            row: Row of the global batch.
            token: Only the piece of a packed row that has this token; none for padding.

        Raises:
            OutOfRangeError: There is no such step.
            InputError: There is no such row or token.
        """
        return locate(self, step, row, token)

    def find_document(
        self,
        path: str,
        place: int,
        dataset: str | None = None,
        *,
        first_epoch: int = 0,
        stop_epoch: int | None = None,
    ) -> list[FoundDocument]:
        """Returns the documents that were made from a record of a source file.

        Each comes with its packed rows, and the steps and rows of global batches where
        they are seen.

        Args:
            path: The file, as it was given to `gristmill pack`.
            place: The place of the record: a byte offset, or the number of a row or
                record, as `locate` gives it.
            dataset: Name of a dataset of a mixture; by default all are searched.
            first_epoch: First epoch of a dataset to look in for its rows.
            stop_epoch: First epoch not to look in. None for all, if there is an end.

        Returns:
            Several documents if a function made them from the record, or if several
            datasets or editions have the file.

        Raises:
            InputError: There is no such file, no document begins there (the nearest are
                named), or the rows are not packed.
        """
        return find_document(
            self, path, place, dataset, first_epoch=first_epoch, stop_epoch=stop_epoch
        )

    def feed(
        self,
        *,
        host: Host | None = None,
        decode: Decode | None = None,
        workers: int = 0,
        prefetch: int = 2,
        start_step: int = 0,
        mask: str | None = None,
        columns: Sequence[str] = (),
    ) -> Feed:
        """Returns an iterator of one host's rows of the batches, read ahead.

        Args:
            host: This host, required: its index, from 0, and the number of hosts, where
                host h takes the h-th part of every batch; "jax" to take both from JAX;
                or a sharding of JAX, for the rows that the devices of this process
                hold.
            decode: Called with this host's records of a batch, list[bytes]; the feed
                yields its result. It must pickle if there are workers.
            workers: Processes that read and decode; 0 for threads of this one.
            prefetch: Batches to keep ready ahead of the trainer, besides those being
                read, of which each worker has up to four.
            start_step: First step to yield.
            mask: For evaluation: name of an array, bool [rows], to add to the dict of
                arrays that decode returns. A partial last batch is padded with rows of
                zeros, whose mask is False, so that all hosts have equally many batches
                of one size.
            columns: Names of columns that all datasets have. Their values, `[rows,
                *shape]` each, are added to the dict of arrays that decode returns; a
                decode with a parameter `columns` gets them as a dict instead.

        Raises:
            InputError: The host is none of these; a batch from the first step on does
                not divide among the hosts; a number is out of range;
                decode is not a function, or does not fit the datasets; a dataset lacks
                a column; or there is a mask and no decode, no end, or no last
                batch that is kept.
        """
        if decode is not None and not callable(decode):
            raise InputError(
                "decode is not a function",
                expected="a function of list[bytes], or None for list[bytes] itself",
                got=f"{type(decode).__name__} {decode!r:.100}",
                cure="give a function that takes the list of records, or leave "
                "decode out",
            )
        check_decode(decode, self.datasets)
        if mask is not None:
            check_mask(mask, decode, self.schedule)
        columns = checked_columns(columns, self, decode)
        # Imported here: `global_batches` without a feed needs no Grain.
        with packages_named():
            from gristmill.loader.feed.feed import Feed

        return Feed(
            self,
            rows_of=functools.partial(host_rows, host=checked_host(host)),
            decode=decode,
            workers=workers,
            prefetch=prefetch,
            start_step=start_step,
            mask=mask,
            columns=columns,
        )

    def records(
        self, *, host: Literal["jax"] | tuple[int, int] | None = None, prefetch: int = 2
    ) -> grain.IterDataset:
        """Returns the records of one host, bytes, one by one in the order of the steps.

        It is the source of a Grain pipeline. A host has the same rows of every step as
        in a feed; a partial last batch is divided evenly. Workers of `mp_prefetch` take
        whole steps: worker w of W the steps w, w + W, ...

        Args:
            host: This host, as in `feed`.
            prefetch: Steps to keep ready ahead of the trainer.

        Raises:
            InputError: A batch does not divide among the hosts, or a number is out of
                range.
        """
        prefetch = checked_count(prefetch, what="prefetch")
        this = checked_host(host)
        if not isinstance(this, tuple):
            raise InputError(
                "records come one by one, not as the devices of a sharding hold them",
                expected='"jax", or (index, number of hosts)',
                got=f"{host!r:.100}",
                cure='give "jax", or make a feed: batches.feed(host=sharding)',
            )
        with packages_named():
            from gristmill.loader.grain.datasets import RecordDataset

        return RecordDataset(self, host=this, prefetch=prefetch)

    def map_dataset(self) -> grain.MapDataset:
        """Returns the records of the whole order, bytes, for random access by Grain.

        Element p is the record at position p, over all hosts and epochs: row r of step
        s is element `s * batch_size + r`, unless the batch size changes. Without an end
        the length is `sys.maxsize`.
        """
        with packages_named():
            from gristmill.loader.grain.datasets import OrderDataset

        return OrderDataset(self)


def global_batches(
    datasets: Dataset | Mapping[str, Dataset],
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: ShuffleName | NoShuffle | GlobalShuffle | BlockShuffle = "global",
    epochs: int | None = None,
    drop_remainder: bool = True,
    weights: Mapping[str, Weight] | None = None,
) -> GlobalBatches:
    """Returns the global batches of a dataset or a mixture, as a function of the step.

    Args:
        datasets: The results of `gristmill.loader.open`; for a mixture, several of them
            by name. A name is part of its dataset's order.
        batch_size: Rows of the global batch, over all hosts.
        seed: Any integer.
        shuffle: "global" (every record anywhere), "block" (near-sequential reading),
            "none", or a shuffle with sizes of its own.
        epochs: How often each dataset is seen, or None for no end.
        drop_remainder: Whether to leave out a partial last batch.
        weights: Shares of a mixture's datasets in its rows, by name, of any sum. By
            default in proportion to their lengths.

    Raises:
        InputError: An argument is out of range or of another kind, a dataset is empty,
            names of datasets and weights differ, or the records of all epochs are fewer
            than one batch.
    """
    mixed, named = isinstance(datasets, Mapping), named_datasets(datasets)
    if not named:
        raise InputError(
            "a mixture of no datasets",
            cure='give one or more by name: {"a": a, "b": b}',
        )
    if weights is not None and not mixed:
        raise InputError(
            "weights are for a mixture",
            cure='give the datasets by name: {"a": a, "b": b}',
        )
    if mixed and "" in named:
        raise InputError(
            "a dataset of a mixture has an empty name",
            cure='give each a name: {"a": a, "b": b}',
        )
    for dataset in named.values():
        check_dataset(dataset)
    mixture = by_lengths(named) if mixed else None
    if weights is not None:
        mixture = Mixture.of(ordered_weights(weights, tuple(named)))
    like = DatasetOrder(
        num_records=1, seed=seed, shuffle=parse_shuffle(shuffle), epochs=epochs
    )
    phase = NamedPhase(0, named, mixture, batch_size)
    return GlobalBatches(BatchPlan((phase,), like, drop_remainder))
