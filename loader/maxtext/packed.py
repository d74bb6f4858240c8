"""Packed rows as MaxText's batches: whole ones, as they were packed."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.loader.maxtext.options import Options
from gristmill.loader.maxtext.settings import Side, refused
from gristmill.loader.maxtext.sources import Sources

_VOCABULARY_CURE = "set vocab_size as the tokenizer that packed the rows has it"
# The vocabulary of documents that were already ids may not be known.
_UNKNOWN_VOCABULARY = 1 << 31

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class MaxTextRows:
    """Makes the arrays that MaxText trains on.

    Attributes:
        decode: Makes them of the rows that there are.
        rows: Rows of this host. The last batch of the last epoch may have fewer; empty
            ones, which the segments leave out, are after them.
        vocabulary: Ids must be below it; None for any.
    """

    decode: loader.PackedRows
    rows: int
    vocabulary: int | None = None

    def __call__(self, records: Sequence[bytes]) -> dict[str, npt.NDArray[Any]]:
        """Returns int32 arrays [rows, length].

        Raises:
            InputError: A row has an id that MaxText's model has not.
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
    batches = sources.batches(side, options, rows=side.rows)
    on_all = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    rows = np.arange(side.rows)[batches.host_rows(on_all)]
    datasets = [part.dataset for part in sources.parts]
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
        InputError: MaxText would not train on all rows, or has not all of their tokens.
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
    for part in sources.parts:
        split = part.dataset.committed
        for edition in () if split is None else split.parts:
            stored = edition.packed or {}
            rows = PackedSplit.parse(stored, where=part.path)
            lengths.add(rows.length)
            supervised |= rows.supervised
            most_pieces = max(most_pieces, rows.counts.most_pieces)
            check_tokens(config, part.path, stored, edition.options)
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


def check_tokens(config: Any, path: str, packed: Any, made: Any) -> None:
    """Compares the tokens of an edition with what MaxText is told of them."""
    described = PackedSplit.parse(packed, where=path)
    known = described.vocabulary_size
    if config.vocab_size < known <= _UNKNOWN_VOCABULARY:
        raise refused(
            config,
            "vocab_size",
            f"{known:,} or more, for the tokens of {path}",
            _VOCABULARY_CURE,
        )
    options = made.get("pack") or {}
    # For documents that were already ids, the added tokens are not known; those of
    # conversations are in the template.
    told = options.get("found") and not described.supervised
    for end in ("bos", "eos") if told else ():
        asked = getattr(config, f"add_{end}")
        if asked != bool(options[end]) and not options["add_special_tokens"]:
            _log.warning(
                "add_%s is %s, and %s was packed %s such a token, which counts",
                *(end, asked, path, "with" if options[end] else "without"),
            )
