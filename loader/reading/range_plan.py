"""The plan of ranges to request: neighbours are joined if that reads little more.

A request costs a tenth of a millisecond of CPU and a slot among those in flight, so
ranges that touch are requested together. Bytes in a gap are read for nothing: the
smallest gaps are joined first, up to a share of all bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.loader.base.indices import IntArray

# At most a 25th, 4 percent, is read beyond the requested bytes.
_GAP_SHARE = 25
# Larger gaps than this are never joined.
_MOST_GAP_BYTES = 64 << 10
# Two halves of a larger range arrive sooner than the whole.
_MOST_RANGE_BYTES = 8 << 20


class RangePlan(NamedTuple):
    """Half-open ranges to request, and the pieces in each: int64 [ranges]."""

    firsts: IntArray
    ends: IntArray
    begin_bytes: IntArray
    end_bytes: IntArray


def plan_ranges(
    files: IntArray,
    begins: IntArray,
    ends: IntArray,
    *,
    most_gap_bytes: int = _MOST_GAP_BYTES,
    most_range_bytes: int = _MOST_RANGE_BYTES,
) -> RangePlan:
    """Joins the half-open byte ranges of pieces that are neighbours.

    Args:
        files: int64 [n], the file of each piece; ascending.
        begins: int64 [n], start of each; ascending within a file.
        ends: int64 [n], one past its last byte; no two pieces overlap.
        most_gap_bytes: Larger gaps are not joined.
        most_range_bytes: Larger ranges are cut between pieces, which stay whole.
    """
    if not len(files):
        nothing = np.empty(0, np.int64)
        return RangePlan(nothing, nothing, nothing, nothing)
    gaps = begins[1:] - ends[:-1]
    joinable = (files[1:] == files[:-1]) & (gaps <= most_gap_bytes)
    order = np.argsort(np.where(joinable, gaps, np.iinfo(np.int64).max), kind="stable")
    spent = np.cumsum(np.where(joinable, gaps, 0)[order])
    joined = np.zeros(len(gaps), bool)
    joined[order] = spent <= int((ends - begins).sum()) // _GAP_SHARE
    joined &= joinable
    firsts = np.flatnonzero(np.concatenate([[True], ~joined]))
    if int((ends - begins).sum()) > most_range_bytes:
        firsts = _cut(firsts, begins, ends, most_range_bytes)
    lasts = np.append(firsts[1:], len(files))
    return RangePlan(firsts, lasts, begins[firsts], ends[lasts - 1])


def _cut(
    firsts: IntArray, begins: IntArray, ends: IntArray, most_range_bytes: int
) -> IntArray:
    """Cuts ranges that are too large between pieces."""
    cut: list[int] = []
    for first, last in zip(firsts, np.append(firsts[1:], len(begins)), strict=True):
        while first < last:
            cut.append(int(first))
            limit = begins[first] + most_range_bytes
            fits = int(np.searchsorted(ends[first:last], limit, side="right"))
            first += max(fits, 1)
    return np.array(cut, np.int64)
