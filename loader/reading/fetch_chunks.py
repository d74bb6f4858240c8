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
    for tries in range(1, _DAMAGED_TRIES + 1):
        attempt = _Attempt(plan, out, decode, last=tries == _DAMAGED_TRIES)
        damaged = attempt.fetch(fetcher)
        if not damaged:
            return
        plan = plan.select(np.array(sorted(damaged)))


class _Attempt:
    """Fetches all chunks of a plan once."""

    def __init__(self, plan: ReadPlan, out: list[bytes], decode: Decode, *, last: bool):
        self._plan, self._out, self._decode, self._last = plan, out, decode, last
        self._arrived: dict[int, bytes] = {}
        self._arrived_bytes = 0
        self._damaged: list[int] = []

    def fetch(self, fetcher: RangeFetcher) -> list[int]:
        """Returns the chunks that arrived damaged; the last time it raises."""
        plan = self._plan
        joined = plan_ranges(plan.file, plan.begin, plan.end)
        firsts, lasts, *bounds = map(np.ndarray.tolist, joined)
        shards = [plan.files[file] for file in plan.file[joined.firsts]]
        ranges = [
            ByteRange(shard.path, begin, end, shard.version)
            for shard, begin, end in zip(shards, *bounds, strict=True)
        ]
        begins, ends = plan.begin.tolist(), plan.end.tolist()

        def take(number: int, data: bytes) -> None:
            origin = ranges[number].begin
            for chunk in range(firsts[number], lasts[number]):
                begin, end = begins[chunk], ends[chunk]
                self._arrived[chunk] = data[begin - origin : end - origin]
                self._arrived_bytes += end - begin
            if (
                len(self._arrived) >= _ARRIVED_CHUNKS
                or self._arrived_bytes >= _ARRIVED_BYTES
            ):
                self._decode_arrived()

        fetcher.fetch(ranges, take)
        if self._arrived:
            self._decode_arrived()
        return self._damaged

    def _decode_arrived(self) -> None:
        chunks = sorted(self._arrived)
        plan = self._plan.select(np.array(chunks))
        pieces = [self._arrived[chunk] for chunk in chunks]
        try:
            self._decode(plan, _taken(pieces), self._out)
        except CHUNK_ERRORS:
            damaged = self._find_damaged(plan, pieces)
            if self._last:
                raise
            self._damaged += [chunks[i] for i in damaged]
        self._arrived.clear()
        self._arrived_bytes = 0

    def _find_damaged(self, plan: ReadPlan, pieces: list[bytes]) -> list[int]:
        """Decodes chunks one by one; returns the damaged ones."""

        def decode(chunk: int) -> None:
            part = plan.part(chunk, chunk + 1)
            self._decode(part, _taken([pieces[chunk]]), self._out)

        damaged = damaged_chunks(len(pieces), decode, errors=CHUNK_ERRORS)
        return [chunk for chunk, _ in damaged]


def _taken(pieces: Sequence[bytes]) -> ReadChunks:
    """Returns a function that takes chunks out of those that have arrived."""
    return lambda chunks: [pieces[chunk] for chunk in chunks]
