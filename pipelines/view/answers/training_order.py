"""The order of a training run: the quality of an epoch's, and shares of a mixture."""

from __future__ import annotations

import dataclasses

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import IntArray
from gristmill.loader.order.dataset_order import DatasetOrder
from gristmill.loader.order.quality import (
    ShuffleQuality,
    sampled_quality,
    shuffle_quality,
)
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.answers.overview import epoch_steps

_EXACT_RECORDS = 1 << 16
"""Of an epoch with more records, some batches are measured."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderQuality:
    """Measures of an epoch's order, beside those of a uniform one.

    Attributes:
        of: The name of the dataset in a mixture.
        epoch: The epoch.
        records: How many records it has.
        batch_size: Rows of a batch that are of this dataset: in a mixture about.
        quality: Four measures of the order; None of an epoch of fewer than three
            records, or of less than a batch, or with records that were removed since.
        uniform: What a uniform order gives.
        block_records: Consecutive records that count as a block: those of a shard.
        sampled_batches: How many batches were looked at.
        exact: Whether these are all.
    """

    of: str
    epoch: int
    records: int
    batch_size: int
    quality: ShuffleQuality | None
    uniform: ShuffleQuality | None
    block_records: int
    sampled_batches: int
    exact: bool


def order_quality(opened: Opened, *, of: str = "", epoch: int = 0) -> OrderQuality:
    """Returns measures of the order of an epoch of a dataset."""
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
        return order.records(start + places)

    block_records = max(1, round(len(dataset) / max(dataset.num_shards, 1)))
    quality = uniform = None
    sampled, exact = 0, True
    # Removed records have no place among the others.
    whole_epoch = epoch >= order.settled_epoch or not order.removes
    if records > max(2, rows) and whole_epoch:
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
    return OrderQuality(
        of=name,
        epoch=epoch,
        records=records,
        batch_size=rows,
        quality=quality,
        uniform=uniform,
        block_records=block_records,
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


_WINDOWS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureShares:
    """Shares of a mixture's datasets, by name.

    Attributes:
        steps: Where windows of steps begin, and where the last ends.
        shares: The share of each dataset in the rows of each window.
        weights: The weight of each dataset at the start of each window.
        epochs: How many epochs of each dataset are over at each edge of a window.
    """

    steps: list[int]
    shares: dict[str, list[float]]
    weights: dict[str, list[float]]
    epochs: dict[str, list[float]]


def mixture(opened: Opened) -> MixtureShares:
    """Returns the shares over the longest first epoch, or the whole run if shorter."""
    batches = opened.ordered()
    schedule = batches.schedule
    if schedule.mixture is None:
        raise InputError(
            "there is no mixture",
            got="one dataset",
            cure="give NAME=PATH for each dataset of a mixture",
        )
    stop = epoch_steps(batches)
    windows = max(1, min(_WINDOWS, stop))
    edges = sorted({stop * window // windows for window in range(windows + 1)})
    positions = [min(schedule.sizes.start(edge), schedule.stop) for edge in edges]
    counts = np.array([schedule.counts(position) for position in positions])
    taken = np.diff(counts, axis=0)
    shares = taken / np.maximum(taken.sum(axis=1, keepdims=True), 1)
    phases = schedule.mixture.phases
    starts = [phase.from_position for phase in phases]
    at = np.searchsorted(starts, positions[:-1], side="right") - 1
    weights = np.array([[float(w) for w in phase.weights] for phase in phases])[at]
    return MixtureShares(
        steps=edges,
        shares=dict(zip(batches.names, shares.T.tolist(), strict=True)),
        weights=dict(zip(batches.names, weights.T.tolist(), strict=True)),
        epochs={
            name: [float(order.epochs_before(int(count))) for count in column]
            for name, order, column in zip(
                batches.names, schedule.grown, counts.T, strict=True
            )
        },
    )
