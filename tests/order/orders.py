"""Permutations and shuffles of plain numbers, for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.loader.base.indices import IntArray
from gristmill.loader.order.permutation import Permutation
from gristmill.loader.order.shuffle import Shuffle, ShuffleKey


def places_of(
    permutation: Permutation,
    indices: npt.ArrayLike,
    *,
    epoch: npt.ArrayLike = 0,
    lane: npt.ArrayLike = 0,
    inverse: bool = False,
) -> IntArray:
    """Returns indices at their places, or those at some places."""
    return permutation.map(
        np.asarray(indices, np.int64),
        epoch=np.asarray(epoch, np.int64),
        lane=np.asarray(lane, np.int64),
        inverse=inverse,
    )


def records_of(
    shuffle: Shuffle,
    positions: npt.ArrayLike,
    *,
    num_records: int,
    seed: int,
    epochs: npt.ArrayLike = 0,
    name: str = "",
    inverse: bool = False,
) -> IntArray:
    """Returns the records at positions of an epoch, or the positions of records."""
    key = ShuffleKey(num_records, seed, np.asarray(epochs, np.int64), name)
    return shuffle.map(np.asarray(positions, np.int64), key, inverse=inverse)
