"""The order of records: pure functions of the step, without any file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.loader.base.indices import Removed
    from gristmill.loader.order.batch_sizes import BatchSizes, Resize
    from gristmill.loader.order.block_layout import LaneKey
    from gristmill.loader.order.dataset_order import DatasetOrder
    from gristmill.loader.order.epochs import ChangedRecords
    from gristmill.loader.order.mixture import Mixture, Phase, Weight
    from gristmill.loader.order.permutation import Permutation
    from gristmill.loader.order.quality import ShuffleQuality, shuffle_quality
    from gristmill.loader.order.shuffle import (
        BlockShuffle,
        GlobalShuffle,
        NoShuffle,
        Shuffle,
        ShuffleKey,
        ShuffleName,
    )
    from gristmill.loader.order.step_records import (
        Extension,
        MixedBatch,
        Rows,
        RowsBySize,
        Schedule,
        Sighting,
    )
    from gristmill.loader.order.token_run import TokenRun, TokensPerRow

__all__ = [
    "BatchSizes",
    "BlockShuffle",
    "ChangedRecords",
    "DatasetOrder",
    "Extension",
    "GlobalShuffle",
    "LaneKey",
    "MixedBatch",
    "Mixture",
    "NoShuffle",
    "Permutation",
    "Phase",
    "Removed",
    "Resize",
    "Rows",
    "RowsBySize",
    "Schedule",
    "Shuffle",
    "ShuffleKey",
    "ShuffleName",
    "ShuffleQuality",
    "Sighting",
    "TokenRun",
    "TokensPerRow",
    "Weight",
    "shuffle_quality",
]

__getattr__, __dir__ = lazy_names(__name__)
