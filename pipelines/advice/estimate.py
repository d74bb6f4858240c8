"""Estimates of totals from a sample, with their errors: pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

# Quantiles of Student's distribution for a 95% interval, by minimum degrees of freedom.
# Source: any table of it.
_STUDENT = ((60, 2.0), (30, 2.05), (15, 2.13), (10, 2.23), (7, 2.37), (5, 2.57))
_FEW_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number estimated from a sample.

    Attributes:
        value: The estimate.
        error: Half the width of an interval that holds the true number in 95 of 100
            samples; 0 if all was read, infinite if the sample is a single part.
    """

    value: float
    error: float = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        """Adds two that are independent."""
        return Estimate(self.value + other.value, math.hypot(self.error, other.error))

    def scaled(self, factor: float) -> Estimate:
        """Returns a multiple of it."""
        return Estimate(self.value * factor, self.error * abs(factor))

    @property
    def relative_error(self) -> float:
        """The error as a share of the value."""
        return self.error / self.value if self.value else 0.0


def total_of(
    amounts: Sequence[float],
    stored_bytes: Sequence[int],
    weights: Sequence[float],
    *,
    input_bytes: int,
    read_share: float,
) -> Estimate:
    """Returns an amount of the whole input, by the ratio to its stored bytes.

    A ratio varies less than the amounts of parts do: a part with few records is also
    one with few bytes. Its error is that of a ratio estimator with parts as clusters
    (Cochran, Sampling Techniques, 1977, chapter 6). Places that are spread evenly
    represent the whole better than independent ones, so the error is rather too large.

    Args:
        amounts: Amount of each part read.
        stored_bytes: Bytes of each part's records in the inputs.
        weights: Number of input bytes for which a byte of each part stands.
        input_bytes: Size of the whole.
        read_share: Share of the whole that was read.
    """
    weight, stored = np.array(weights, float), np.array(stored_bytes, float)
    y, x = weight * np.array(amounts, float), weight * stored
    if not x.sum():
        return Estimate(0.0)
    ratio = float(y.sum() / x.sum())
    if read_share >= 1:
        return Estimate(ratio * input_bytes)
    parts = int((x > 0).sum())
    if parts < 2:
        return Estimate(ratio * input_bytes, math.inf)
    rest = y - ratio * x
    variance = parts / (parts - 1) * float((rest**2).sum()) / float(x.sum()) ** 2
    error = _student(parts - 1) * math.sqrt(variance * (1 - read_share))
    return Estimate(ratio * input_bytes, error * input_bytes)


def _student(freedom: int) -> float:
    for least, factor in _STUDENT:
        if freedom >= least:
            return factor
    return _FEW_STUDENT.get(freedom, 2.57)
