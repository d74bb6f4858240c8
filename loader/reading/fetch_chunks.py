"""Fetches the chunks of a plan from object storage, and decodes them as they arrive.

A request costs a tenth of a millisecond of CPU and a slot among those in flight, so
ranges that touch are requested together. Bytes in a gap are read for nothing: the
smallest gaps are joined first, up to a share of all bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.chunks import Table
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.shard_file import ShardFile
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

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


# Chunks that have arrived are decoded when they are this many, while others arrive.
_ARRIVED_CHUNKS = 192
_ARRIVED_BYTES = 4 << 20


def fetch_chunks(
    shards: Sequence[ShardFile],
    chunks: Table,
    take: Callable[[list[int], list[bytes]], None],
    *,
    fetcher: RangeFetcher,
) -> None:
    """Fetches chunks, and hands over some at a time while others arrive.

    Args:
        shards: The shards.
        chunks: `CHUNKS`, with the physical bytes of each, in the order of the shards.
        take: Called with the numbers of chunks, ascending, and their bytes.
        fetcher: Fetches ranges.
    """
    file, begin, end = chunks["file"], chunks["begin"], chunks["end"]
    plan = plan_ranges(file, begin, end)
    firsts, lasts, *bounds = map(np.ndarray.tolist, plan)
    ranges = [
        ByteRange(shards[n].path, begin_byte, end_byte, shards[n].version)
        for n, begin_byte, end_byte in zip(file[plan.firsts], *bounds, strict=True)
    ]
    begins, ends = begin.tolist(), end.tolist()
    arrived: dict[int, bytes] = {}
    waiting_bytes = 0

    def hand_over() -> None:
        nonlocal waiting_bytes
        numbers = sorted(arrived)
        pieces = [arrived[number] for number in numbers]
        arrived.clear()
        waiting_bytes = 0
        take(numbers, pieces)

    def add(number: int, data: bytes) -> None:
        nonlocal waiting_bytes
        origin = ranges[number].begin
        for chunk in range(firsts[number], lasts[number]):
            arrived[chunk] = data[begins[chunk] - origin : ends[chunk] - origin]
        waiting_bytes += len(data)
        if len(arrived) >= _ARRIVED_CHUNKS or waiting_bytes >= _ARRIVED_BYTES:
            hand_over()

    fetcher.fetch(ranges, add)
    if arrived:
        hand_over()
