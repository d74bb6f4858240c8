"""Rows of a table with nulls, which a user may leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.transforms.tables.leaves import ends_of, leaf_values, leaves_of


def rows_without_nulls(
    batch: pa.RecordBatch, wanted: Callable[[str], bool]
) -> npt.NDArray[np.int64]:
    """Returns the rows without a null in the features to check.

    Items of lists count, too.

    Args:
        batch: The rows.
        wanted: Returns whether to check a feature, by its name.
    """
    kept = np.ones(len(batch), np.bool_)
    for leaf in leaves_of(batch.schema):
        if not wanted(leaf.name):
            continue
        values, counts = leaf_values(batch, leaf)
        if counts is None:
            kept &= _valid(values)
            continue
        kept &= _valid(counts)
        if values.null_count:
            ends = ends_of(pc.fill_null(counts, 0).to_numpy(zero_copy_only=False))
            before = np.concatenate([[0], np.cumsum(~_valid(values))])
            kept &= np.diff(before[ends]) == 0
    for column in batch.schema:  # It has no leaf, and no value.
        if pa.types.is_null(column.type) and wanted(column.name):
            kept[:] = False
    return np.flatnonzero(kept)


def _valid(values: Any) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_valid(values).to_numpy(zero_copy_only=False)
    return found
