"""Reads datasets in a deterministic order and feeds trainers from them.

`gristmill.loader.order` has the orders by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.dataset.errors import (
        CorruptShardError,
        DecodeError,
        GristmillError,
        InputError,
        NotADatasetError,
        OutOfRangeError,
        StateMismatchError,
        WorkerDiedError,
    )
    from gristmill.dataset.metadata.manifest import Manifest
    from gristmill.dataset.metadata.shard_report import SourceSpan
    from gristmill.loader.api import GlobalBatches, global_batches
    from gristmill.loader.cache.cache_counts import CacheCounts
    from gristmill.loader.dataset import Dataset, ShardInfo
    from gristmill.loader.decode.examples import ExampleDecoder
    from gristmill.loader.decode.features import (
        Feature,
        FixedFeature,
        PaddedFeature,
        Ragged,
        RaggedFeature,
    )
    from gristmill.loader.decode.tokens import TokenDecoder
    from gristmill.loader.feed.feed import Feed
    from gristmill.loader.feed.prometheus import HasStats, export_stats
    from gristmill.loader.feed.stats import FeedStats
    from gristmill.loader.grain_source.batched import in_batches, read_together
    from gristmill.loader.grain_source.source import ArrayRecordDataSource
    from gristmill.loader.jax_arrays.feed import JaxFeed, to_jax
    from gristmill.loader.jax_arrays.global_arrays import rows_of
    from gristmill.loader.locate import Location
    from gristmill.loader.open_dataset import open as open
    from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
    from gristmill.loader.remote.range_fetcher import ReadCounts
    from gristmill.loader.remote.read_options import ReadOptions

__all__ = [
    "ArrayRecordDataSource",
    "BlockShuffle",
    "CacheCounts",
    "CorruptShardError",
    "Dataset",
    "DecodeError",
    "ExampleDecoder",
    "Feature",
    "Feed",
    "FeedStats",
    "FixedFeature",
    "GlobalBatches",
    "GlobalShuffle",
    "GristmillError",
    "HasStats",
    "InputError",
    "JaxFeed",
    "Location",
    "Manifest",
    "NoShuffle",
    "NotADatasetError",
    "OutOfRangeError",
    "PaddedFeature",
    "Ragged",
    "RaggedFeature",
    "ReadCounts",
    "ReadOptions",
    "ShardInfo",
    "SourceSpan",
    "StateMismatchError",
    "TokenDecoder",
    "WorkerDiedError",
    "export_stats",
    "global_batches",
    "in_batches",
    "read_together",
    "rows_of",
    "to_jax",
]

# Imported when first used: a trainer that only opens a dataset needs nothing else.
_HOMES = {
    "ArrayRecordDataSource": "gristmill.loader.grain_source.source",
    "BlockShuffle": "gristmill.loader.order.shuffle",
    "CacheCounts": "gristmill.loader.cache.cache_counts",
    "CorruptShardError": "gristmill.dataset.errors",
    "Dataset": "gristmill.loader.dataset",
    "DecodeError": "gristmill.dataset.errors",
    "ExampleDecoder": "gristmill.loader.decode.examples",
    "Feature": "gristmill.loader.decode.features",
    "Feed": "gristmill.loader.feed.feed",
    "FeedStats": "gristmill.loader.feed.stats",
    "FixedFeature": "gristmill.loader.decode.features",
    "GlobalBatches": "gristmill.loader.api",
    "GlobalShuffle": "gristmill.loader.order.shuffle",
    "GristmillError": "gristmill.dataset.errors",
    "HasStats": "gristmill.loader.feed.prometheus",
    "InputError": "gristmill.dataset.errors",
    "JaxFeed": "gristmill.loader.jax_arrays.feed",
    "Location": "gristmill.loader.locate",
    "Manifest": "gristmill.dataset.metadata.manifest",
    "NoShuffle": "gristmill.loader.order.shuffle",
    "NotADatasetError": "gristmill.dataset.errors",
    "OutOfRangeError": "gristmill.dataset.errors",
    "PaddedFeature": "gristmill.loader.decode.features",
    "Ragged": "gristmill.loader.decode.features",
    "RaggedFeature": "gristmill.loader.decode.features",
    "ReadCounts": "gristmill.loader.remote.range_fetcher",
    "ReadOptions": "gristmill.loader.remote.read_options",
    "ShardInfo": "gristmill.loader.dataset",
    "SourceSpan": "gristmill.dataset.metadata.shard_report",
    "StateMismatchError": "gristmill.dataset.errors",
    "TokenDecoder": "gristmill.loader.decode.tokens",
    "WorkerDiedError": "gristmill.dataset.errors",
    "export_stats": "gristmill.loader.feed.prometheus",
    "global_batches": "gristmill.loader.api",
    "in_batches": "gristmill.loader.grain_source.batched",
    "open": "gristmill.loader.open_dataset",
    "read_together": "gristmill.loader.grain_source.batched",
    "rows_of": "gristmill.loader.jax_arrays.global_arrays",
    "to_jax": "gristmill.loader.jax_arrays.feed",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
