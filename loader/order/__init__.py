"""Which record comes when: pure functions of the step, without any file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.lazy_names import lazy_names

if TYPE_CHECKING:
    from gristmill.loader.order.dataset_order import (
        DatasetOrder,
    )
    from gristmill.loader.order.mixture import (
        Mixture,
        Phase,
        Weight,
    )
    from gristmill.loader.order.permutation import (
        Permutation,
    )
    from gristmill.loader.order.quality import (
        ShuffleQuality,
        shuffle_quality,
    )
    from gristmill.loader.order.schedule import (
        MixedBatch,
        Rows,
        Schedule,
        Sighting,
    )
    from gristmill.loader.order.shuffle import (
        BlockShuffle,
        GlobalShuffle,
        NoShuffle,
        Shuffle,
        ShuffleKey,
        ShuffleName,
    )

__all__ = [
    "BlockShuffle",
    "DatasetOrder",
    "GlobalShuffle",
    "MixedBatch",
    "Mixture",
    "NoShuffle",
    "Permutation",
    "Phase",
    "Rows",
    "Schedule",
    "Shuffle",
    "ShuffleKey",
    "ShuffleName",
    "ShuffleQuality",
    "Sighting",
    "Weight",
    "shuffle_quality",
]

_HOMES = {
    "BlockShuffle": "gristmill.loader.order.shuffle",
    "DatasetOrder": "gristmill.loader.order.dataset_order",
    "GlobalShuffle": "gristmill.loader.order.shuffle",
    "MixedBatch": "gristmill.loader.order.schedule",
    "Mixture": "gristmill.loader.order.mixture",
    "NoShuffle": "gristmill.loader.order.shuffle",
    "Permutation": "gristmill.loader.order.permutation",
    "Phase": "gristmill.loader.order.mixture",
    "Rows": "gristmill.loader.order.schedule",
    "Schedule": "gristmill.loader.order.schedule",
    "Shuffle": "gristmill.loader.order.shuffle",
    "ShuffleKey": "gristmill.loader.order.shuffle",
    "ShuffleName": "gristmill.loader.order.shuffle",
    "ShuffleQuality": "gristmill.loader.order.quality",
    "Sighting": "gristmill.loader.order.schedule",
    "Weight": "gristmill.loader.order.mixture",
    "shuffle_quality": "gristmill.loader.order.quality",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
