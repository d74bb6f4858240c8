"""Fetches the chunks of a plan from object storage, and decodes them as they arrive.

A request costs a tenth of a millisecond of CPU and a slot among those in flight, so
ranges that touch are requested together. Bytes in a gap are read for nothing: the
smallest gaps are joined first, up to a share of all bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gristmill.dataset.arrayrecord.chunks import CHUNK_ERRORS, damaged_chunks
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.decode_chunks import ReadChunks, ReadPlan
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
# How often to fetch a chunk that arrives damaged, before the shard counts as damaged.
_DAMAGED_TRIES = 3

# Decodes the bytes of a plan's chunks, and puts their wanted records into the batch.
Decode: TypeAlias = Callable[[ReadPlan, ReadChunks, list[bytes]], None]


def fetch_planned(
    plan: ReadPlan, out: list[bytes], *, fetcher: RangeFetcher, decode: Decode
) -> None:
    """Fetches chunks and puts their wanted records into the batch.

    Chunks that arrive damaged are fetched again. A shard that is damaged is a
    CorruptShardError, a transposed one a TransposedChunkError.
    """
    for tries in reversed(range(_DAMAGED_TRIES)):
        damaged = _fetch(plan, out, fetcher, decode, last=not tries)
        if not damaged:
            return
        plan = plan.select(np.array(sorted(damaged)))


def _fetch(
    plan: ReadPlan,
    out: list[bytes],
    fetcher: RangeFetcher,
    decode: Decode,
    *,
    last: bool,
) -> list[int]:
    """Fetches all chunks once; returns those that arrived damaged, or raises."""
    joined = plan_ranges(plan.file, plan.begin, plan.end)
    firsts, lasts, *bounds = map(np.ndarray.tolist, joined)
    shards = [plan.files[file] for file in plan.file[joined.firsts]]
    ranges = [
        ByteRange(shard.path, begin, end, shard.version)
        for shard, begin, end in zip(shards, *bounds, strict=True)
    ]
    begins, ends = plan.begin.tolist(), plan.end.tolist()
    arrived: dict[int, bytes] = {}
    damaged: list[int] = []
    waiting_bytes = 0

    def take(number: int, data: bytes) -> None:
        nonlocal waiting_bytes
        origin = ranges[number].begin
        for chunk in range(firsts[number], lasts[number]):
            begin, end = begins[chunk] - origin, ends[chunk] - origin
            arrived[chunk] = data[begin:end]
        waiting_bytes += len(data)
        if len(arrived) >= _ARRIVED_CHUNKS or waiting_bytes >= _ARRIVED_BYTES:
            decode_arrived()

    def decode_arrived() -> None:
        nonlocal waiting_bytes
        chunks = sorted(arrived)
        part, pieces = plan.select(np.array(chunks)), [arrived[c] for c in chunks]
        try:
            decode(part, _taken(pieces), out)
        except CHUNK_ERRORS:
            found = damaged_chunks(
                len(pieces),
                lambda n: decode(part.part(n, n + 1), _taken([pieces[n]]), out),
                errors=CHUNK_ERRORS,
            )
            damaged.extend(chunks[number] for number, _ in found)
            if last:
                raise
        arrived.clear()
        waiting_bytes = 0

    fetcher.fetch(ranges, take)
    if arrived:
        decode_arrived()
    return damaged


def _taken(pieces: Sequence[bytes]) -> ReadChunks:
    """Returns a function that takes chunks out of those that have arrived."""
    return lambda chunks: [pieces[chunk] for chunk in chunks]
