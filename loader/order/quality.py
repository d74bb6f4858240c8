"""The quality of a shuffle: four numbers that can be compared between orders."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import IntArray, checked_count, checked_indices


@dataclasses.dataclass(frozen=True)
class ShuffleQuality:
    """Measures of one epoch's order; in brackets the values of a uniform order.

    Attributes:
        displacement: Mean distance between a record's stored place and its place in the
            order, as a share of the epoch (1/3).
        neighbour_correlation: Correlation of the record indices seen one after the
            other (0, give or take 1/sqrt(records)).
        adjacent_share: Share of neighbours in the order that are stored in one block
            (block_records / records).
        blocks_per_batch: Mean number of blocks of the dataset that a batch draws from,
            as a share of the number that a uniform order is expected to draw from (1).
    """

    displacement: float
    neighbour_correlation: float
    adjacent_share: float
    blocks_per_batch: float


def shuffle_quality(
    order: IntArray, *, batch_size: int, block_records: int
) -> ShuffleQuality:
    """Measures the order of a whole epoch.

    Args:
        order: Record index at each position, int64 [records], at least two.
        batch_size: Records in a batch; a last short batch is left out.
        block_records: Consecutive records that count as one block.

    Raises:
        InputError: The order is shorter than a batch, or than two records.
    """
    num_records = len(order)
    order = checked_indices(order, stop=num_records, what="record")
    batch_size = checked_count(batch_size, what="batch_size")
    block_records = checked_count(block_records, what="block_records")
    if num_records < max(2, batch_size):
        raise InputError(
            "the order is too short to be measured",
            expected=f"at least {max(2, batch_size)} records",
            got=num_records,
            cure="measure an order of more records, or a smaller batch_size",
        )
    batches = num_records // batch_size
    return _measured(
        order[: batches * batch_size].reshape(batches, batch_size),
        np.abs(order - np.arange(num_records)),
        (order[:-1], order[1:]),
        num_records=num_records,
        block_records=block_records,
    )


def sampled_quality(
    records_at: Callable[[IntArray], IntArray],
    num_records: int,
    *,
    batch_size: int,
    block_records: int,
    num_batches: int,
) -> ShuffleQuality:
    """Measures some batches, evenly spread, of an epoch that is too long for all.

    Args:
        records_at: Returns the record at each of some positions of the epoch.
        num_records: Records in the epoch, more than `batch_size`.
        batch_size: Records in a batch.
        block_records: Consecutive records that count as one block.
        num_batches: Number of batches to measure, at least 1.
    """
    last = (num_records - 1) // batch_size - 1
    firsts = np.unique(np.linspace(0, last, num_batches).astype(np.int64))
    # The record after a batch is a neighbour of its last one.
    positions = firsts[:, np.newaxis] * batch_size + np.arange(batch_size + 1)
    order = records_at(positions.ravel()).reshape(positions.shape)
    before, after = order[:, :-1], order[:, 1:]
    return _measured(
        before,
        np.abs(order - positions)[:, :-1],
        (before.ravel(), after.ravel()),
        num_records=num_records,
        block_records=block_records,
    )


def _measured(
    batches: IntArray,
    distances: IntArray,
    neighbours: tuple[IntArray, IntArray],
    *,
    num_records: int,
    block_records: int,
) -> ShuffleQuality:
    """Returns the measures, of records by batch, distances, and pairs of neighbours."""
    blocks = np.sort(batches // block_records, axis=1)
    distinct = 1 + np.count_nonzero(np.diff(blocks, axis=1), axis=1)
    before, after = neighbours
    return ShuffleQuality(
        displacement=float(np.mean(distances)) / num_records,
        neighbour_correlation=float(np.corrcoef(before, after)[0, 1]),
        adjacent_share=float(
            np.mean(before // block_records == after // block_records)
        ),
        blocks_per_batch=float(np.mean(distinct))
        / _uniform_blocks(num_records, batches.shape[1], block_records),
    )


def _uniform_blocks(num_records: int, batch_size: int, block_records: int) -> float:
    """Expected number of blocks among `batch_size` records drawn without return."""
    full, short = divmod(num_records, block_records)
    expected = 0.0
    for count, size in ((full, block_records), (1 if short else 0, short)):
        drawn = np.arange(batch_size)
        left = np.maximum(num_records - size - drawn, 0) / (num_records - drawn)
        expected += count * (1.0 - float(np.prod(left)))
    return expected
