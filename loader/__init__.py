"""Reads converted datasets in a deterministic order and feeds trainers from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.dataset.errors import DecodeError, StateMismatchError
    from gristmill.loader.batches import GlobalBatches, global_batches
    from gristmill.loader.cache.counts import CacheCounts
    from gristmill.loader.dataset import Dataset, ShardInfo
    from gristmill.loader.decode.examples import ExampleDecoder
    from gristmill.loader.decode.features import (
        FixedFeature,
        PaddedFeature,
        Ragged,
        RaggedFeature,
    )
    from gristmill.loader.decode.tokens import TokenDecoder
    from gristmill.loader.feed.feed import Feed
    from gristmill.loader.feed.prometheus import export_stats
    from gristmill.loader.feed.stats import FeedStats
    from gristmill.loader.grain_source.batched import in_batches, read_together
    from gristmill.loader.grain_source.source import ArrayRecordDataSource
    from gristmill.loader.jax_arrays.feed import JaxFeed, to_jax
    from gristmill.loader.jax_arrays.global_arrays import rows_of
    from gristmill.loader.locate import Location
    from gristmill.loader.open_dataset import open
    from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
    from gristmill.loader.remote.range_fetch import ReadOptions

__all__ = [
    "ArrayRecordDataSource",
    "BlockShuffle",
    "CacheCounts",
    "Dataset",
    "DecodeError",
    "ExampleDecoder",
    "Feed",
    "FeedStats",
    "FixedFeature",
    "GlobalBatches",
    "GlobalShuffle",
    "JaxFeed",
    "Location",
    "NoShuffle",
    "PaddedFeature",
    "Ragged",
    "RaggedFeature",
    "ReadOptions",
    "ShardInfo",
    "StateMismatchError",
    "TokenDecoder",
    "export_stats",
    "global_batches",
    "in_batches",
    "open",
    "read_together",
    "rows_of",
    "to_jax",
]

# Imported when first used: a trainer that only opens a dataset needs nothing else.
_HOMES = {
    "ArrayRecordDataSource": "gristmill.loader.grain_source.source",
    "BlockShuffle": "gristmill.loader.order.shuffle",
    "CacheCounts": "gristmill.loader.cache.counts",
    "Dataset": "gristmill.loader.dataset",
    "DecodeError": "gristmill.dataset.errors",
    "ExampleDecoder": "gristmill.loader.decode.examples",
    "Feed": "gristmill.loader.feed.feed",
    "FeedStats": "gristmill.loader.feed.stats",
    "FixedFeature": "gristmill.loader.decode.features",
    "GlobalBatches": "gristmill.loader.batches",
    "GlobalShuffle": "gristmill.loader.order.shuffle",
    "JaxFeed": "gristmill.loader.jax_arrays.feed",
    "Location": "gristmill.loader.locate",
    "NoShuffle": "gristmill.loader.order.shuffle",
    "PaddedFeature": "gristmill.loader.decode.features",
    "Ragged": "gristmill.loader.decode.features",
    "RaggedFeature": "gristmill.loader.decode.features",
    "ReadOptions": "gristmill.loader.remote.range_fetch",
    "ShardInfo": "gristmill.loader.dataset",
    "StateMismatchError": "gristmill.dataset.errors",
    "TokenDecoder": "gristmill.loader.decode.tokens",
    "export_stats": "gristmill.loader.feed.prometheus",
    "global_batches": "gristmill.loader.batches",
    "in_batches": "gristmill.loader.grain_source.batched",
    "open": "gristmill.loader.open_dataset",
    "read_together": "gristmill.loader.grain_source.batched",
    "rows_of": "gristmill.loader.jax_arrays.global_arrays",
    "to_jax": "gristmill.loader.jax_arrays.feed",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
