"""Fetches the chunks of a plan from object storage, and decodes them as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from gristmill.dataset.arrayrecord.chunks import CHUNK_ERRORS, damaged_chunks
from gristmill.loader.reading.decode_chunks import ReadChunks, ReadPlan
from gristmill.loader.reading.range_plan import plan_ranges
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

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
