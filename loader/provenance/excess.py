"""How far losses are above what is usual: in deviations that outliers do not change."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import InputError
from gristmill.loader.indices import IntArray

FloatArray = npt.NDArray[np.float64]

HIGH = 3.0
"""Deviations above the baseline from which on a loss is high."""

_LEAST_OUTSIDE = 8  # Losses from which a baseline can be told.
_MOST = 100.0  # No loss counts for more: neither an infinite one nor one that is NaN.
_OF_NORMAL = 1.4826  # The standard deviation of a normal distribution, in its MAD.


class Losses(NamedTuple):
    """Losses of steps, of rows, or of tokens of rows. Arrays are [losses].

    Attributes:
        steps: int64, the step of each.
        rows: int64, the row of the global batch; -1 for a whole step.
        begins: int64, the first token in the row; -1 for a whole row.
        ends: int64, the token after the last, likewise.
        values: float64, the losses.
    """

    steps: IntArray
    rows: IntArray
    begins: IntArray
    ends: IntArray
    values: FloatArray

    def some(self, which: npt.NDArray[np.bool_]) -> Losses:
        """Returns some of them: bool [losses]."""
        steps, rows, begins, ends = (column[which] for column in self[:4])
        return Losses(steps, rows, begins, ends, self.values[which])


class Excess(NamedTuple):
    """The losses of a window, against those outside.

    Attributes:
        losses: Those of the window.
        deviations: float64 [losses], of each from the baseline.
        baseline: What is usual.
        deviation: How far losses usually are from it.
        outside: Whether that is told by losses outside the window.
    """

    losses: Losses
    deviations: FloatArray
    baseline: float
    deviation: float
    outside: bool

    @property
    def high(self) -> int:
        """How many are high."""
        return int((self.deviations >= HIGH).sum())


def excess(losses: Losses, steps: range) -> Excess:
    """Returns how far the losses of some steps are above what is usual.

    The baseline is the median of the losses of other steps, the deviation their median
    distance from it, scaled to be the standard deviation of a normal distribution. If
    there are fewer than eight others, all are taken.

    Raises:
        InputError: There are no losses of these steps, or no finite ones.
    """
    inside = (losses.steps >= steps.start) & (losses.steps < steps.stop)
    usual = losses.values[~inside & np.isfinite(losses.values)]
    outside = len(usual) >= _LEAST_OUTSIDE
    if not outside:
        usual = losses.values[np.isfinite(losses.values)]
    if not inside.any() or not len(usual):
        raise InputError(
            "no losses of these steps" if not inside.any() else "no loss is a number",
            expected=f"losses of steps {steps.start:,} to {steps.stop - 1:,}, and of "
            "others to compare with",
            got=f"{len(losses.values):,} losses"
            + (
                f", of steps {losses.steps.min():,} to {losses.steps.max():,}"
                if len(losses.steps)
                else ""
            ),
            cure="give losses of these steps",
        )
    baseline = float(np.median(usual))
    distances = np.abs(usual - baseline)
    deviation = _OF_NORMAL * float(np.median(distances))
    if not deviation:  # More than half are the same.
        deviation = float(distances.mean()) or 1.0
    window = losses.some(inside)
    values = np.where(np.isfinite(window.values), window.values, np.inf)
    deviations = np.clip((values - baseline) / deviation, -_MOST, _MOST)
    return Excess(window, deviations, baseline, deviation, outside)
