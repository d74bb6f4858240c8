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
        OutOfRangeError,
        StateMismatchError,
        SystemLimitError,
        WorkerDiedError,
    )
    from gristmill.dataset.columns.column_type import ColumnType
    from gristmill.dataset.metadata.features import FeatureSpec
    from gristmill.dataset.metadata.manifest import Manifest
    from gristmill.dataset.metadata.shard_report import SourceSpan
    from gristmill.loader.api import GlobalBatches, global_batches, token_weights
    from gristmill.loader.base.state_fields import Content
    from gristmill.loader.columns.column import Column
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.data.dataset import Dataset
    from gristmill.loader.data.open_dataset import open as open
    from gristmill.loader.data.shard_info import ShardInfo
    from gristmill.loader.decode.examples import ExampleDecoder, HasFeatures
    from gristmill.loader.decode.features import (
        Feature,
        FixedFeature,
        Ragged,
        RaggedFeature,
    )
    from gristmill.loader.decode.tokens import TokenDecoder
    from gristmill.loader.feed.feed import Feed
    from gristmill.loader.feed.jax_feed import JaxFeed, to_jax
    from gristmill.loader.feed.state import continued_batches
    from gristmill.loader.grain.record_source import ArrayRecordDataSource
    from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
    from gristmill.loader.order.step_records import MixedBatch, Sighting
    from gristmill.loader.order.token_run import TokenRun
    from gristmill.loader.packed.packed_rows import PackedRows
    from gristmill.loader.provenance.find_document import DocumentPiece, FoundDocument
    from gristmill.loader.provenance.locate import Location
    from gristmill.loader.provenance.source_fields import Piece, SourcePlace
    from gristmill.loader.reading.cache_counts import CacheCounts
    from gristmill.loader.remote.read_options import ReadOptions
    from gristmill.loader.remote.request_limits import ReadCounts
    from gristmill.loader.stats.feed_stats import FeedStats

__all__ = [
    "ArrayRecordDataSource",
    "Batches",
    "BlockShuffle",
    "CacheCounts",
    "Column",
    "ColumnType",
    "Content",
    "CorruptShardError",
    "Dataset",
    "DecodeError",
    "DocumentPiece",
    "ExampleDecoder",
    "Feature",
    "FeatureSpec",
    "Feed",
    "FeedStats",
    "FixedFeature",
    "FoundDocument",
    "GlobalBatches",
    "GlobalShuffle",
    "GristmillError",
    "HasFeatures",
    "InputError",
    "JaxFeed",
    "Location",
    "Manifest",
    "MixedBatch",
    "NoShuffle",
    "NotADatasetError",
    "OutOfRangeError",
    "PackedRows",
    "Piece",
    "Ragged",
    "RaggedFeature",
    "ReadCounts",
    "ReadOptions",
    "ShardInfo",
    "Sighting",
    "SourcePlace",
    "SourceSpan",
    "StateMismatchError",
    "SystemLimitError",
    "TokenDecoder",
    "TokenRun",
    "WorkerDiedError",
    "continued_batches",
    "global_batches",
    "to_jax",
    "token_weights",
]

# Imported when first used: a trainer that only opens a dataset needs nothing else.
__getattr__, __dir__ = lazy_names(__name__)
