"""Columns of numbers in as few bytes as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]


def require(holds: Any, what: str) -> None:
    """Raises ValueError if a condition does not hold."""
    if not holds:
        raise ValueError(f"expected {what}")


def bytes_for(count: int) -> int:
    """Returns the bytes that numbers below a count take."""
    return max(1, -(-(max(count, 1) - 1).bit_length() // 8))


def narrowed(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.uint8]:
    """Returns the low bytes of each value, little-endian: uint8 [values, width]."""
    return values.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]


def widened(data: bytes, at: int, count: int, width: int) -> UInt32:
    """Returns the numbers that `narrowed` encoded."""
    if width in (1, 2, 4):
        return np.frombuffer(data, f"<u{width}", count, at).astype(np.uint32)
    wide = np.zeros((count, 4), np.uint8)
    narrow = np.frombuffer(data, np.uint8, count * width, at)
    wide[:, :width] = narrow.reshape(count, width)
    return wide.view("<u4").ravel().astype(np.uint32)


def encode_steps(chunks: Callable[[], Iterable[Int64]]) -> tuple[int, bytes, Int64]:
    """Returns the best width for steps, their bytes, and the steps too long for it.

    Each step that is too long is replaced by the largest number of that width.

    Args:
        chunks: Yields the steps, some at a time. It is called twice.
    """
    sizes = dict.fromkeys((1, 2, 3, 4), 0)
    for steps in chunks():
        for width in sizes:
            far = int(np.count_nonzero(steps >= _mark(width)))
            sizes[width] += width * len(steps) + 8 * far
    width = min(sizes, key=sizes.__getitem__)
    mark = _mark(width)
    parts, far_steps = [], [np.zeros(0, np.int64)]
    for steps in chunks():
        far_steps.append(steps[steps >= mark])
        parts.append(narrowed(np.minimum(steps, mark), width).tobytes())
    return width, b"".join(parts), np.concatenate(far_steps)


def _mark(width: int) -> int:
    return (1 << 8 * width) - 1


def decode_steps(data: bytes, at: int, count: int, width: int, far: Int64) -> Int64:
    """Returns the steps that `encode_steps` encoded: int64 [count], none below 0."""
    steps = widened(data, at, count, width).astype(np.int64)
    marked = np.flatnonzero(steps == _mark(width))
    require(len(marked) == len(far), f"{len(marked):,} far steps and not {len(far):,}")
    steps[marked] = far
    require((steps >= 0).all(), "steps above 0")
    return steps


def running_sums(steps: Int64, counts: Int64) -> Int64:
    """Returns the sums of steps, from the start of each group.

    Raises ValueError if one is above 2**63 - 1.
    """
    sums = np.cumsum(steps)  # May wrap around, which the difference reverses.
    ends = np.cumsum(counts)
    before = np.concatenate(([0], sums))[ends - counts]
    sums -= np.repeat(before, counts)
    require((sums >= steps).all(), "places below 2**63")
    return sums


def stable_order(values: UInt32) -> npt.NDArray[np.intp]:
    """Returns the stable order of values. Numpy has a radix sort for 16 bits only."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    if values.max(initial=0) >> 16:
        high = (values >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order
