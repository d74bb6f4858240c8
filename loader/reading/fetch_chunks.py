"""Fetches the chunks of a plan from object storage, and decodes them as they arrive."""

from __future__ import annotations

import numpy as np

from gristmill.dataset.arrayrecord.chunks import damaged_chunks
from gristmill.dataset.errors import CorruptShardError, InputError
from gristmill.loader.reading.decode_chunks import decode_planned
from gristmill.loader.reading.read_limits import ReadLimits
from gristmill.loader.reading.read_plan import ReadPlan
from gristmill.loader.reading.shard_file import ShardFile, is_transposed
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.range_plan import plan_ranges

# Chunks that have arrived are decoded when they are this many, while others arrive.
_ARRIVED_CHUNKS = 192
_ARRIVED_BYTES = 4 << 20
# How often to fetch a chunk that arrives damaged, before the shard counts as damaged.
_DAMAGED_TRIES = 3


def fetch_planned(
    plan: ReadPlan,
    out: list[bytes],
    *,
    fetcher: RangeFetcher,
    name: str,
    limits: ReadLimits,
) -> None:
    """Fetches chunks and puts their wanted records into the batch.

    Chunks that arrive damaged are fetched again.

    Args:
        plan: The chunks.
        out: The batch.
        fetcher: Fetches them.
        name: The dataset, for messages.
        limits: Which chunks are large.

    Raises:
        CorruptShardError: A chunk is damaged, or a record does not have its checksum.
        InputError: A shard is transposed.
        StorageError: A chunk cannot be fetched.
    """
    for tries in range(1, _DAMAGED_TRIES + 1):
        attempt = _Attempt(plan, out, name, limits, last=tries == _DAMAGED_TRIES)
        damaged = attempt.fetch(fetcher)
        if not damaged:
            return
        plan = plan.select(np.array(sorted(damaged)))


class _Attempt:
    """Fetches all chunks of a plan once."""

    def __init__(
        self,
        plan: ReadPlan,
        out: list[bytes],
        name: str,
        limits: ReadLimits,
        *,
        last: bool,
    ):
        self._plan, self._out, self._name = plan, out, name
        self._limits, self._last = limits, last
        self._arrived: dict[int, bytes] = {}
        self._arrived_bytes = 0
        self._damaged: list[int] = []

    def fetch(self, fetcher: RangeFetcher) -> list[int]:
        """Returns the chunks that arrived damaged; the last time it raises."""
        plan = self._plan
        joined = plan_ranges(plan.file, plan.begin, plan.end)
        firsts, lasts = joined.firsts.tolist(), joined.ends.tolist()
        ranges = [
            _byte_range(plan, first, begin, end)
            for first, begin, end in zip(
                firsts,
                joined.begin_bytes.tolist(),
                joined.end_bytes.tolist(),
                strict=True,
            )
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
            self._decode(plan, pieces)
        except CorruptShardError:
            damaged = self._find_damaged(plan, pieces)
            if self._last:
                first = damaged[0] if damaged else 0
                if is_transposed(pieces[first], int(plan.begin[first])):
                    shard = plan.files[plan.file[first]]
                    raise transposed_error(shard, name=self._name) from None
                raise
            self._damaged += [chunks[i] for i in damaged]
        self._arrived.clear()
        self._arrived_bytes = 0

    def _find_damaged(self, plan: ReadPlan, pieces: list[bytes]) -> list[int]:
        """Decodes chunks one by one; returns the damaged ones."""

        def decode(chunk: int) -> None:
            self._decode(plan.part(chunk, chunk + 1), [pieces[chunk]])

        damaged = damaged_chunks(len(pieces), decode, errors=(CorruptShardError,))
        return [chunk for chunk, _ in damaged]

    def _decode(self, plan: ReadPlan, pieces: list[bytes]) -> None:
        decode_planned(plan, pieces, self._out, name=self._name, limits=self._limits)


def _byte_range(plan: ReadPlan, chunk: int, begin: int, end: int) -> ByteRange:
    shard = plan.files[plan.file[chunk]]
    return ByteRange(shard.path, begin, end, shard.version)


def transposed_error(shard: ShardFile, *, name: str) -> InputError:
    """Returns the error about a transposed shard in object storage.

    The official reader cannot be used there: it returns empty records if an answer is
    truncated.
    """
    return InputError(
        "transposed shard cannot be read from object storage",
        where=f"{name}, shard {shard.path}",
        cure="copy it to a local disk, or convert it with gristmill",
    )
