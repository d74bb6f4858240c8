"""Which ranges to ask for: neighbours joined, as long as little comes along in vain.

A request costs a tenth of a millisecond of CPU and a place in the queue, so ranges
that touch are asked for together. What lies between two that do not touch would be
read for nothing; the smallest gaps are joined first, up to a stated share of all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.loader.indices import IntArray

# What is read in vain is at most a 25th of what is wanted: 4 percent.
_GAP_SHARE = 25
# Larger gaps than this are never worth it.
_MOST_GAP_BYTES = 64 << 10
# Larger ranges arrive later than two halves of them side by side.
MOST_RANGE_BYTES = 8 << 20


class RangePlan(NamedTuple):
    """What to ask for. Arrays are [ranges].

    Attributes:
        firsts: First of the wanted pieces in each range; the others follow it.
        ends: One past its last piece.
        begin_bytes: Where each range begins.
        end_bytes: One past its last byte.
    """

    firsts: IntArray
    ends: IntArray
    begin_bytes: IntArray
    end_bytes: IntArray


def plan_ranges(files: IntArray, begins: IntArray, ends: IntArray) -> RangePlan:
    """Joins the half-open byte ranges of pieces that are neighbours.

    Args:
        files: int64 [n], the file of each piece; ascending.
        begins: int64 [n], where it begins; ascending within a file.
        ends: int64 [n], one past its last byte; no two pieces overlap.

    Returns:
        Ranges that hold every piece whole, in the same order.
    """
    if not len(files):
        nothing = np.empty(0, np.int64)
        return RangePlan(nothing, nothing, nothing, nothing)
    gaps = begins[1:] - ends[:-1]
    joinable = (files[1:] == files[:-1]) & (gaps <= _MOST_GAP_BYTES)
    order = np.argsort(np.where(joinable, gaps, np.iinfo(np.int64).max), kind="stable")
    spent = np.cumsum(np.where(joinable, gaps, 0)[order])
    joined = np.zeros(len(gaps), bool)
    joined[order] = spent <= int((ends - begins).sum()) // _GAP_SHARE
    joined &= joinable
    firsts = np.flatnonzero(np.concatenate([[True], ~joined]))
    if int((ends - begins).sum()) > MOST_RANGE_BYTES:
        firsts = _cut(firsts, begins, ends)
    lasts = np.append(firsts[1:], len(files))
    return RangePlan(firsts, lasts, begins[firsts], ends[lasts - 1])


def _cut(firsts: IntArray, begins: IntArray, ends: IntArray) -> IntArray:
    """Cuts ranges that are too large between pieces."""
    cut: list[int] = []
    for first, last in zip(firsts, np.append(firsts[1:], len(begins)), strict=True):
        while first < last:
            cut.append(int(first))
            limit = begins[first] + MOST_RANGE_BYTES
            fits = int(np.searchsorted(ends[first:last], limit, side="right"))
            first += max(fits, 1)
    return np.array(cut, np.int64)
