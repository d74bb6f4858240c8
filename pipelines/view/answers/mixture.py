"""The shares of a mixture's datasets over the steps."""

from __future__ import annotations

import dataclasses

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.answers.overview import epoch_steps
from gristmill.pipelines.view.answers.shown_data import Opened

_WINDOWS = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixtureShares:
    """Shares of a mixture's datasets, by name.

    Attributes:
        steps: Where windows of steps begin, and where the last ends.
        shares: The share of each dataset in the rows of each window.
        weights: The weight of each dataset at the begin of each window.
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
