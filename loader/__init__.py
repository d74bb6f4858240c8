"""Reads converted datasets in a deterministic order and feeds trainers from them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.loader.batches import GlobalBatches, global_batches
    from gristmill.loader.cache_counts import CacheCounts
    from gristmill.loader.data_source import ArrayRecordDataSource
    from gristmill.loader.dataset import Dataset, ShardInfo
    from gristmill.loader.decode_error import DecodeError
    from gristmill.loader.example_decoder import ExampleDecoder
    from gristmill.loader.example_features import (
        FixedFeature,
        PaddedFeature,
        Ragged,
        RaggedFeature,
    )
    from gristmill.loader.feed import Feed
    from gristmill.loader.feed_metrics import export_stats
    from gristmill.loader.feed_state import StateMismatchError
    from gristmill.loader.feed_stats import FeedStats
    from gristmill.loader.global_arrays import rows_of
    from gristmill.loader.grain_batches import in_batches, read_together
    from gristmill.loader.jax_feed import JaxFeed, to_jax
    from gristmill.loader.locate import Location
    from gristmill.loader.open_dataset import open
    from gristmill.loader.range_fetch import ReadOptions
    from gristmill.loader.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
    from gristmill.loader.token_decoder import TokenDecoder

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
    "ArrayRecordDataSource": "data_source",
    "BlockShuffle": "shuffle",
    "CacheCounts": "cache_counts",
    "Dataset": "dataset",
    "DecodeError": "decode_error",
    "ExampleDecoder": "example_decoder",
    "Feed": "feed",
    "FeedStats": "feed_stats",
    "FixedFeature": "example_features",
    "GlobalBatches": "batches",
    "GlobalShuffle": "shuffle",
    "JaxFeed": "jax_feed",
    "Location": "locate",
    "NoShuffle": "shuffle",
    "PaddedFeature": "example_features",
    "Ragged": "example_features",
    "RaggedFeature": "example_features",
    "ReadOptions": "range_fetch",
    "ShardInfo": "dataset",
    "StateMismatchError": "feed_state",
    "TokenDecoder": "token_decoder",
    "export_stats": "feed_metrics",
    "global_batches": "batches",
    "in_batches": "grain_batches",
    "open": "open_dataset",
    "read_together": "grain_batches",
    "rows_of": "global_arrays",
    "to_jax": "jax_feed",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
