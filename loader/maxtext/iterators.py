"""Makes MaxText's data iterators, of packed rows or of single records."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from jax.sharding import Mesh

from gristmill.loader.maxtext.options import Options
from gristmill.loader.maxtext.packed import check_rows, packed_batches
from gristmill.loader.maxtext.records import RecordDatasets
from gristmill.loader.maxtext.settings import Side, check
from gristmill.loader.maxtext.sources import Sources, open_sources

_log = logging.getLogger(__name__)

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
    check(config, "records")  # What no way of reading can honour.
    side = Side.of(config, name)
    sources = open_sources(side, options)
    if sources.are_packed:
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
    """Runs MaxText's own function, with another begin of its pipeline meanwhile."""
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
        f"{', '.join(repr(part.dataset) for part in sources.parts)}"
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
