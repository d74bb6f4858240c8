"""How a shuffle spreads the records of a dataset over the steps of an epoch."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from gristmill.dataset.errors import InputError
from gristmill.loader.dataset import Dataset, shards_of
from gristmill.loader.indices import IntArray
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.quality import (
    ShuffleQuality,
    sampled_quality,
    shuffle_quality,
)
from gristmill.pipelines.view.answers.opened import Opened

_POINTS = 4000
_EXACT_RECORDS = 1 << 16
"""Of an epoch with more records, some batches are measured."""
_SIZES = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardsABatch:
    """How many shards a batch has records of.

    Attributes:
        min: The fewest of the batches that were looked at.
        median: Their median.
        max: The most.
        uniform: How many a uniform order is expected to draw from.
    """

    min: int
    median: float
    max: int
    uniform: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """How an epoch's order spreads the records of a dataset.

    Attributes:
        of: The name of the dataset in a mixture.
        epoch: The epoch.
        records: How many records it has.
        batch_size: Rows of a batch that are of this dataset: in a mixture about.
        points: Steps, each with a record that is seen there.
        quality: Four measures of the order; None of an epoch of fewer than three
            records, or of less than a batch.
        uniform: What a uniform order gives.
        block_records: Consecutive records that count as a block: those of a shard.
        shards_a_batch: How many shards a batch has records of; None as `quality`.
        sampled_batches: How many batches were looked at.
        exact: Whether these are all.
    """

    of: str
    epoch: int
    records: int
    batch_size: int
    points: list[tuple[int, int]]
    quality: ShuffleQuality | None
    uniform: ShuffleQuality | None
    block_records: int
    shards_a_batch: ShardsABatch | None
    sampled_batches: int
    exact: bool


def spread(opened: Opened, *, of: str = "", epoch: int = 0) -> Spread:
    """Returns how the order of an epoch spreads the records of a dataset."""
    batches, name = opened.ordered(), opened.name(of)
    number = batches.number_of(name or None)
    schedule, dataset = batches.schedule, batches.datasets[number]
    order = schedule.grown[number]
    _check_epoch(order, epoch)
    start = order.start_of(epoch)
    records = order.start_of(epoch + 1) - start
    rows = batches.batch_size
    if schedule.mixture is not None:
        share = schedule.mixture.phases[0].weights[number]
        rows = max(1, round(rows * share))

    def records_at(places: IntArray) -> IntArray:
        return order.records_unchecked(start + places)

    block_records = max(1, round(len(dataset) / max(dataset.num_shards, 1)))
    quality = uniform = shards = None
    sampled, exact = 0, True
    if records > max(2, rows):
        whole = records // rows
        exact = records <= _EXACT_RECORDS
        sampled = whole if exact else max(1, min(whole - 1, _EXACT_RECORDS // rows))
        sizes = {"batch_size": rows, "block_records": block_records}
        quality = (
            shuffle_quality(records_at(np.arange(records)), **sizes)
            if exact
            else sampled_quality(records_at, records, num_batches=sampled, **sizes)
        )
        uniform = ShuffleQuality(1 / 3, 0.0, min(1.0, block_records / records), 1.0)
        firsts = np.linspace(0, whole - 1, sampled).astype(np.int64) * rows
        places = firsts[:, np.newaxis] + np.arange(rows)
        shards = _shards_a_batch(dataset, records_at(places.ravel()), rows)
    places = np.unique(np.linspace(0, records - 1, _POINTS).astype(np.int64))
    positions = schedule.positions_of(number, start + places)
    limit = min(schedule.stop, schedule.sizes.start(schedule.step_limit))
    seen = (positions >= 0) & (positions < limit)
    steps = [schedule.sizes.find(at)[0] for at in positions[seen].tolist()]
    return Spread(
        of=name,
        epoch=epoch,
        records=records,
        batch_size=rows,
        points=list(zip(steps, records_at(places[seen]).tolist(), strict=True)),
        quality=quality,
        uniform=uniform,
        block_records=block_records,
        shards_a_batch=shards,
        sampled_batches=sampled,
        exact=exact,
    )


def _check_epoch(order: DatasetOrder, epoch: int) -> None:
    if not len(order.epoch_range(epoch, epoch + 1)):
        raise InputError(
            "there is no such epoch",
            expected=f"below {order.epochs:,}" if order.epochs else "an earlier one",
            got=epoch,
            cure="give an earlier one",
        )


def _shards_a_batch(dataset: Dataset, records: IntArray, rows: int) -> ShardsABatch:
    shards, _ = dataset.find(records)
    drawn = np.sort(shards.reshape(-1, rows), axis=1)
    distinct = 1 + np.count_nonzero(np.diff(drawn, axis=1), axis=1)
    sizes = np.diff(shards_of(dataset).ends, prepend=0)
    return ShardsABatch(
        min=int(distinct.min()),
        median=float(np.median(distinct)),
        max=int(distinct.max()),
        uniform=uniform_shards(sizes, rows),
    )


def uniform_shards(sizes: IntArray, rows: int) -> float:
    """Returns of how many shards a uniform batch is expected to have records.

    Args:
        sizes: int64 [shards], records of each.
        rows: Records that are drawn, none twice.

    >>> uniform_shards(np.array([1, 1, 2]), 1)
    1.0
    """
    total = int(sizes.sum())
    each, counts = np.unique(sizes, return_counts=True)
    if len(each) > _SIZES:
        # As if records could be drawn twice, which makes no difference to so many.
        missed = np.exp(rows * np.log1p(-each / total))
    else:
        missed = np.array(
            [_chance_to_miss(total, size, rows) for size in each.tolist()]
        )
    return float(np.sum(counts * (1 - missed)))


def _chance_to_miss(total: int, size: int, rows: int) -> float:
    """Returns the chance that none of `size` records is among those drawn."""
    if size + rows > total:
        return 0.0
    if not size:
        return 1.0
    logs = map(math.lgamma, (total - size + 1, total - rows + 1))
    others = map(math.lgamma, (total - size - rows + 1, total + 1))
    return math.exp(sum(logs) - sum(others))
