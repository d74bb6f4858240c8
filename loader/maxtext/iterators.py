"""Makes MaxText's data iterators, of packed rows or of single records."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grain
import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.loader.maxtext.restore import ElasticRecords
from gristmill.loader.maxtext.settings import (
    Options,
    Side,
    Sources,
    are_packed,
    batches_of,
    check,
    open_sources,
    refused,
)

_VOCABULARY_CURE = "set vocab_size as the tokenizer that packed the rows has it"
# The vocabulary of documents that were already ids may not be known.
_UNKNOWN_VOCABULARY = 1 << 31

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MaxTextRows:
    """Makes the arrays that MaxText trains on.

    Attributes:
        decode: Decodes the rows that there are.
        rows: Rows of this host. A partial last batch is padded with empty rows, which
            have no segments.
        vocabulary: Ids must be below it; None for any.
    """

    decode: loader.PackedRows
    rows: int
    vocabulary: int | None = None

    def __call__(self, records: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
        """Returns int32 arrays [rows, length].

        Raises:
            InputError: A row has an id beyond the vocabulary of MaxText's model.
        """
        arrays = self.decode(records)
        largest = 0 if self.vocabulary is None else arrays["inputs"].max(initial=0)
        if self.vocabulary is not None and largest >= self.vocabulary:
            raise InputError(
                "a packed row has a token beyond vocab_size of MaxText",
                expected=f"below {self.vocabulary:,}",
                got=f"{largest:,}",
                cure=_VOCABULARY_CURE,
            )
        if missing := self.rows - len(records):
            fill = (0, missing), (0, 0)
            return {name: np.pad(array, fill) for name, array in arrays.items()}
        return dict(arrays)


@dataclasses.dataclass
class PackedBatches:
    """The batches of this host; each `iter` of it begins with the first.

    Attributes:
        batches: The global batches.
        decode: Makes the arrays of this host.
        sharding: Sharding of the arrays.
        workers: Processes, 0 for threads.
        prefetch: Batches ahead.
    """

    batches: loader.GlobalBatches
    decode: MaxTextRows
    sharding: NamedSharding
    workers: int
    prefetch: int

    def __iter__(self) -> loader.Feed:
        return self.batches.feed(
            decode=self.decode,
            host=self.sharding,
            workers=self.workers,
            prefetch=self.prefetch,
        )

    def global_arrays(self, batch: Mapping[str, npt.NDArray[Any]]) -> Any:
        """Returns the arrays of all hosts, of the rows of this one."""
        return jax.make_array_from_process_local_data(self.sharding, dict(batch))


def packed_batches(
    config: Any, mesh: Mesh, side: Side, sources: Sources, options: Options
) -> PackedBatches:
    """Returns the batches of packed rows, for the devices of this host.

    Raises:
        InputError: The rows are of another length, or stored in several ways.
    """
    batches = batches_of(sources, side, options, rows=side.rows)
    on_all = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    rows = np.arange(side.rows)[batches.schedule.host_rows(on_all)]
    datasets = [part.dataset for part in sources]
    decode = loader.PackedRows.of(*datasets, length=config.max_target_length)
    # A single process would do no more than a thread, and imports MaxText first.
    workers = side.workers if side.workers > 1 else 0
    ahead = side.batches_ahead(len(rows))
    return PackedBatches(
        batches=batches,
        decode=MaxTextRows(decode, len(rows), vocabulary=config.vocab_size),
        sharding=on_all,
        workers=workers,
        prefetch=max(2, workers * side.worker_batches) if workers else ahead,
    )


def check_rows(config: Any, side: Side, sources: Sources) -> None:
    """Checks settings whose values are compared with the rows.

    Raises:
        InputError: MaxText would not train on all rows, or lacks some of their tokens.
    """
    if side.rows != side.trained:
        raise refused(
            config,
            "per_device_batch_size",
            "1 or more",
            "train on every row that is read",
        )
    if side.workers < -1:
        name = "grain_worker_count" + ("" if side.name == "train" else "_eval")
        raise refused(config, name, "-1 or more", "correct it")
    lengths, most_pieces, supervised = set(), 0, False
    for part in sources:
        for edition in part.dataset.stored.parts[0].editions:
            rows = PackedSplit.parse(edition.packed or {}, where=part.path)
            lengths.add(rows.length)
            supervised |= rows.supervised
            most_pieces = max(most_pieces, rows.counts.most_pieces)
            _check_tokens(config, part.path, rows, edition.options)
    if config.use_sft and not supervised:
        raise refused(
            config,
            "use_sft",
            "False, for rows of plain text, which are trained on as a whole",
            "set it so, or make rows of conversations by `gristmill pack --chat`",
        )
    if len(lengths) == 1 and lengths != {config.max_target_length}:
        raise refused(
            config,
            "max_target_length",
            f"{lengths.pop()}, the length of the rows",
            "set it so, or pack the documents again with another --length",
        )
    allowed = config.max_segments_per_seq
    if allowed is not None and 0 < allowed < most_pieces:
        raise refused(
            config,
            "max_segments_per_seq",
            f"{most_pieces:,} or more, the most pieces of a row",
            "set it so, or leave it out",
        )


def _check_tokens(config: Any, path: str, rows: PackedSplit, made: Any) -> None:
    """Compares the tokens of an edition with what MaxText is told of them."""
    if config.vocab_size < rows.vocabulary_size <= _UNKNOWN_VOCABULARY:
        raise refused(
            config,
            "vocab_size",
            f"{rows.vocabulary_size:,} or more, for the tokens of {path}",
            _VOCABULARY_CURE,
        )
    options = made.get("pack") or {}
    # For documents that were already ids, the added tokens are not known; those of
    # conversations are in the template.
    told = options.get("found") and not rows.supervised
    for end in ("bos", "eos") if told else ():
        asked = getattr(config, f"add_{end}")
        if asked != bool(options[end]) and not options["add_special_tokens"]:
            _log.warning(
                "add_%s is %s, and %s was packed %s such a token, which counts",
                *(end, asked, path, "with" if options[end] else "without"),
            )


@dataclasses.dataclass(frozen=True)
class RecordDatasets:
    """Stands in for `get_datasets`: what MaxText's preprocessing starts with.

    It pickles: with colocated python, MaxText calls it on another host.

    Attributes:
        side: What MaxText's settings ask for.
        sources: The data.
        options: How it is read.
        rows: Records of a host that make one step of the order.
        made: The records that were asked for in this process, those of single hosts.
        elastic: The batches whose records MaxText deals to hosts.
    """

    side: Side
    sources: Sources
    options: Options
    rows: int
    made: list[grain.IterDataset] = dataclasses.field(default_factory=list)
    elastic: list[loader.GlobalBatches] = dataclasses.field(default_factory=list)

    def __call__(
        self,
        *names: Any,
        dataloading_host_index: int,
        dataloading_host_count: int,
        elastic: bool = False,
        **known: Any,
    ) -> grain.IterDataset | grain.MapDataset:
        """Returns the records of a host; with `elastic` those of all hosts.

        Args:
            names: Files and their type; `sources` has them.
            dataloading_host_index: Number of the host.
            dataloading_host_count: How many hosts read.
            elastic: Whether MaxText deals the records to hosts itself.
            known: Settings, which `side` has too.
        """
        host, hosts = dataloading_host_index, dataloading_host_count
        rows = self.rows * hosts
        batches = batches_of(self.sources, self.side, self.options, rows=rows)
        if elastic:
            self.elastic.append(batches)
            return batches.map_dataset()
        records = batches.records(
            host=(host, hosts),
            prefetch=self.side.batches_ahead(self.rows),
        )
        self.made.append(records)
        return records

    def elastic_iterator(self, *args: Any, **named: Any) -> Any:
        """Stands in for Grain's `ElasticIterator`, with its arguments."""
        return ElasticRecords(self.elastic[-1], *args, **named)


# Records of a host that are read as one step, where steps of the order are not those of
# the trainer.
_STEP_RECORDS = 256


def make_iterator(
    name: str,
    options: Options,
    own: Callable[..., Any],
    config: Any,
    mesh: Mesh,
    process_indices: Any,
) -> Any:
    """Stands in for `make_grain_train_iterator` and `make_grain_eval_iterator`.

    Args:
        name: "train" or "eval".
        options: How the data are read.
        own: What it stands in for.
        config: MaxText's settings.
        mesh: MaxText's mesh.
        process_indices: The hosts that load data.

    Raises:
        InputError: A setting cannot be honoured; it is named.
    """
    side = Side(config, name)
    sources = open_sources(side, options)
    if are_packed(sources):
        check(config, "packed")
        check_rows(config, side, sources)
        return _packed_iterator(config, mesh, side, options, sources)
    return _records_iterator(own, config, mesh, process_indices, side, options, sources)


def _packed_iterator(
    config: Any, mesh: Mesh, side: Side, options: Options, sources: Sources
) -> Any:
    from maxtext.input_pipeline.multihost_dataloading import MultiHostDataLoadIterator
    from maxtext.utils import max_logging

    class PackedIterator(MultiHostDataLoadIterator):  # type: ignore[misc]  # Any.
        """Makes all arrays of a batch in one call: MaxText's own takes twice as long.

        A MaxText without such a method makes them by itself.
        """

        def _get_next_batch_sharded(self) -> Any:
            if self.generate_padding_batch:
                return super()._get_next_batch_sharded()
            self.last_local_data = next(self.local_iterator)
            return dataset.global_arrays(self.last_local_data)

    dataset = packed_batches(config, mesh, side, sources, options)
    max_logging.log(f"gristmill: {side.name} of packed rows: {dataset.batches!r}")
    iterator = PackedIterator(dataset, mesh, side.padded)
    iterator.gristmill_readers = [dataset]
    return iterator


def _records_iterator(
    own: Callable[..., Any],
    config: Any,
    mesh: Mesh,
    process_indices: Any,
    side: Side,
    options: Options,
    sources: Sources,
) -> Any:
    """Runs MaxText's own function on records of gristmill."""
    from maxtext.input_pipeline import data_processing_utils, grain_data_processing
    from maxtext.utils import max_logging

    if config.use_sft:
        config = _for_sft(config, options)
    rows = _STEP_RECORDS
    if is_row_a_record(config):
        rows = data_processing_utils.get_local_batch_size(config)
    datasets = RecordDatasets(side, sources, options, int(rows))
    max_logging.log(
        f"gristmill: {side.name} of records: "
        f"{', '.join(repr(part.dataset) for part in sources)}"
    )
    processing: Any = grain_data_processing
    theirs = processing.get_datasets, processing.ElasticIterator
    processing.get_datasets = datasets
    processing.ElasticIterator = datasets.elastic_iterator
    try:
        made = own(config, mesh, process_indices)
    finally:
        processing.get_datasets, processing.ElasticIterator = theirs
    # Several where this host continues for several; then each has its own dataset.
    iterators = made if isinstance(made, list) else [made]
    for iterator, reader in zip(iterators, datasets.made, strict=False):
        iterator.gristmill_readers = [reader]
    return made


@dataclasses.dataclass(frozen=True)
class ChangedSettings:
    """MaxText's settings, of which some have other values.

    Attributes:
        settings: As MaxText has them.
        changed: The other values, by name.
    """

    settings: Any
    changed: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Of pickling, before there are settings.
            raise AttributeError(name)
        changed = self.changed
        return changed[name] if name in changed else getattr(self.settings, name)


def _for_sft(config: Any, options: Options) -> Any:
    """Returns the settings by which MaxText tokenises conversations; warns of them."""
    ends = [name for name in ("add_bos", "add_eos") if getattr(config, name)]
    kept = bool(ends) and options.sft_ends == "settings"
    _log.warning(
        "MaxText renders and tokenises these conversations itself: %s, and one of "
        "several turns is not as apply_chat_template gives it; `gristmill pack --chat` "
        "renders each conversation once",
        f"{' and '.join(ends)} put a token around each part of a conversation"
        if kept
        else "add_bos and add_eos are off for them, since the template has such tokens",
    )
    if kept or not ends:
        return config
    return ChangedSettings(config, dict.fromkeys(ends, False))


def is_row_a_record(config: Any) -> bool:
    """Returns whether MaxText makes one row of each record."""
    return not config.packing and (config.use_truncation or config.use_sft)
