"""Totals of all inputs, estimated from a sample of their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

# Quantiles of Student's distribution for a 95% interval, by minimum degrees of freedom.
# Source: any table of it.
_STUDENT = {60: 2.0, 30: 2.05, 15: 2.13, 10: 2.23, 7: 2.37, 5: 2.57, 4: 2.78, 3: 3.18}
_STUDENT |= {2: 4.30, 1: 12.71}


class Estimate(NamedTuple):
    """A number estimated from a sample.

    Attributes:
        value: The estimate.
        error: Half the width of an interval that holds the true number in 95 of 100
            samples; 0 if all was read, None if the sample is a single part.
    """

    value: float
    error: float | None = 0.0

    def plus(self, other: Estimate) -> Estimate:
        """Adds two that are independent."""
        error = None
        if self.error is not None and other.error is not None:
            error = math.hypot(self.error, other.error)
        return Estimate(self.value + other.value, error)

    @property
    def error_text(self) -> str:
        """The error as a share of the value, " ±1.2%"; "" if there is none."""
        if self.error is None:
            return " (error unknown)"
        return f" ±{self.error / self.value:.1%}" if self.error else ""


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
        return Estimate(ratio * input_bytes, None)
    rest = y - ratio * x
    variance = parts / (parts - 1) * float((rest**2).sum()) / float(x.sum()) ** 2
    student = next(q for least, q in _STUDENT.items() if parts > least)
    error = student * math.sqrt(variance * (1 - read_share))
    return Estimate(ratio * input_bytes, error * input_bytes)
