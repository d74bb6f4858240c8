"""Reads datasets in a deterministic order and feeds trainers from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.dataset.base.errors import (
        CorruptShardError,
        DecodeError,
        GristmillError,
        InputError,
        NotADatasetError,
        StateMismatchError,
        WorkerDiedError,
    )
    from gristmill.loader.api import GlobalBatches, global_batches
    from gristmill.loader.data.column import Column
    from gristmill.loader.data.dataset import Dataset
    from gristmill.loader.data.open_dataset import open as open
    from gristmill.loader.data.token_run import token_run, token_weights
    from gristmill.loader.decode.examples import (
        ExampleDecoder,
        FixedFeature,
        Ragged,
        RaggedFeature,
        TokenDecoder,
    )
    from gristmill.loader.feed.feed import Feed
    from gristmill.loader.feed.jax_feed import JaxFeed, to_jax
    from gristmill.loader.feed.state import continued_batches
    from gristmill.loader.feed.stats import FeedStats
    from gristmill.loader.grain.record_source import ArrayRecordDataSource
    from gristmill.loader.order.shuffle import BlockShuffle
    from gristmill.loader.packed.packed_rows import PackedRows
    from gristmill.loader.provenance.trace import Location
    from gristmill.loader.remote.read_options import ReadOptions

__all__ = [
    "ArrayRecordDataSource",
    "BlockShuffle",
    "Column",
    "CorruptShardError",
    "Dataset",
    "DecodeError",
    "ExampleDecoder",
    "Feed",
    "FeedStats",
    "FixedFeature",
    "GlobalBatches",
    "GristmillError",
    "InputError",
    "JaxFeed",
    "Location",
    "NotADatasetError",
    "PackedRows",
    "Ragged",
    "RaggedFeature",
    "ReadOptions",
    "StateMismatchError",
    "TokenDecoder",
    "WorkerDiedError",
    "continued_batches",
    "global_batches",
    "to_jax",
    "token_run",
    "token_weights",
]

# Imported when first used: a trainer that only opens a dataset needs nothing else.
__getattr__, __dir__ = lazy_names(__name__)
