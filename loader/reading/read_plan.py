"""The plan of a read: the chunks of a batch, and their ranges in object storage.

A request costs a tenth of a millisecond of CPU and a slot among those in flight, so
ranges that touch are requested together. Bytes in a gap are read for nothing: the
smallest gaps are joined first, up to a share of all bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.chunks import CHUNKS, WANTED, Table
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    InvalidDatasetError,
    TransposedChunkError,
)
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.shard_file import ShardFile

if TYPE_CHECKING:
    from gristmill.loader.remote.range_fetcher import RangeFetcher


Verify = Literal["always", "never"]

# For fewer records of a shard, a loop is faster than numpy.
_FEW_RECORDS = 40


class Wanted(NamedTuple):
    """Records of one shard that are in a batch."""

    shard_number: int
    shard: ShardFile
    places: IntArray  # In the batch.
    numbers: IntArray  # In the shard, ascending.


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """Chunks to read, and the wanted records in them, in the order of the files.

    Attributes:
        name: The dataset, for messages.
        files: The shards.
        chunks: `CHUNKS`, with the physical bytes of each in its file.
        records: `WANTED`, with their places in the batch.
    """

    name: str
    files: Sequence[ShardFile]
    chunks: Table
    records: Table

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return int((self.chunks["end"] - self.chunks["begin"]).sum())

    def parts(self, part_bytes: int) -> Iterator[ReadPlan]:
        """Yields plans of at most `part_bytes`, or of one chunk that is larger."""
        ends = np.cumsum(self.chunks["end"] - self.chunks["begin"])
        if not len(ends) or ends[-1] <= part_bytes:
            yield self
            return
        first = done = 0
        while first < len(ends):
            fit = int(np.searchsorted(ends, done + part_bytes, side="right"))
            last = max(fit, first + 1)
            begin, end = np.searchsorted(self.records["chunk"], [first, last]).tolist()
            records = self.records[begin:end].copy()
            records["chunk"] -= first
            yield ReadPlan(self.name, self.files, self.chunks[first:last], records)
            first, done = last, int(ends[last - 1])

    def select(self, chunks: Sequence[int]) -> ReadPlan:
        """Returns the plan of some chunks, in ascending order."""
        number = np.full(len(self.chunks), -1)
        number[chunks] = np.arange(len(chunks))
        records = self.records[number[self.records["chunk"]] >= 0]
        records["chunk"] = number[records["chunk"]]
        return ReadPlan(self.name, self.files, self.chunks[chunks], records)

    def corrupt(
        self, chunk: int, item: int | None = None, *, got: object, expected: str = ""
    ) -> CorruptShardError:
        """Returns the error about a wanted record, by default the first of a chunk."""
        if item is None:
            item = int(np.searchsorted(self.records["chunk"], chunk))
        about = self.chunks[chunk]
        return CorruptShardError(
            "record cannot be read: its shard does not hold what was written",
            where=f"{self.name}, shard {self.files[about['file']].path}, record "
            f"{self.records['number'][item]:,} of the shard, in the chunk at byte "
            f"offset {about['begin']:,}",
            expected=expected or None,
            got=got,
            cure="restore the shard from a copy, or convert this shard again",
        )

    def damaged(self, chunk: int, error: Exception) -> GristmillError:
        """Returns the error about a chunk that cannot be decoded."""
        if isinstance(error, TransposedChunkError):
            path = self.files[self.chunks["file"][chunk]].path
            where = f"{self.name}, shard {path}"
            return TransposedChunkError(error.what, where=where, cure=error.cure)
        return self.corrupt(chunk, got=error)


def checks_of(shard: ShardFile, verify: Verify | None, name: str) -> tuple[bool, bool]:
    """Returns whether to compare records, and whether the hashes of chunks."""
    if verify == "always" and not shard.has_crc32cs:
        raise InvalidDatasetError(
            "index has no checksums of the records to verify",
            where=f"{name}, shard {shard.path}",
            cure="make an index with `gristmill index`, or open the dataset "
            "without verify='always'",
        )
    if verify == "never":
        return False, False
    return shard.has_crc32cs, not shard.has_crc32cs


def make_plan(
    wanted: Sequence[Wanted], *, verify: Verify | None, name: str
) -> ReadPlan:
    """Finds the chunks of records, at least one.

    An index that contradicts itself is an InvalidDatasetError.
    """
    files = [item.shard for item in wanted]
    compare, hashed = np.array([checks_of(shard, verify, name) for shard in files]).T
    chunk, begin, end, count, row = np.concatenate(
        [_find(item.shard, item.numbers, name) for item in wanted]
    ).T
    file = np.repeat(np.arange(len(files)), [len(item.numbers) for item in wanted])
    file_bytes = np.array([shard.index.file_bytes for shard in files])[file]
    wrong = (begin <= 0) | (begin >= end) | (end > file_bytes)
    wrong |= (row < 0) | (row >= count)
    records = np.empty(len(row), WANTED)
    records["row"] = row
    records["number"] = np.concatenate([item.numbers for item in wanted])
    records["place"] = np.concatenate([item.places for item in wanted])
    if wrong.any():
        first = int(np.argmax(wrong))
        raise _bad_index(files[file[first]], int(records["number"][first]), name)
    records["crc32c"] = -1
    done = 0
    for item, compared in zip(wanted, compare.tolist(), strict=True):
        own = slice(done, done := done + len(item.numbers))
        if compared:
            records["crc32c"][own] = item.shard.index.crc32cs[item.numbers]
    fresh = np.ones(len(chunk), bool)
    fresh[1:] = (chunk[1:] != chunk[:-1]) | (file[1:] != file[:-1])
    records["chunk"] = np.cumsum(fresh) - 1
    firsts = np.flatnonzero(fresh)
    chunks = np.empty(len(firsts), CHUNKS)
    chunks["file"] = file = file[firsts]
    chunks["begin"], chunks["end"] = begin[firsts], end[firsts]
    chunks["records"], chunks["hashed"] = count[firsts], hashed[file]
    limits = [shard.index.max_chunk_decoded_bytes for shard in files]
    chunks["limit"] = np.array(limits)[file]
    return ReadPlan(name, files, chunks, records)


def _find(shard: ShardFile, numbers: IntArray, name: str) -> IntArray:
    """Returns the places of records, as `ShardIndex.find_records`: int64 [n, 5]."""
    try:
        if len(numbers) >= _FEW_RECORDS:
            return shard.index.place_records(numbers)
        return np.array(shard.index.find_records(numbers.tolist()), np.int64)
    except (IndexError, OverflowError) as e:
        raise _bad_index(shard, int(numbers[0]), name) from e


def _bad_index(shard: ShardFile, number: int, name: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "shard index contradicts itself",
        where=f"{name}, index {shard.index.path}, record {number:,}",
        cure="delete this index and run the conversion, or `gristmill index`, again",
    )


# At most a 25th, 4 percent, is read beyond the requested bytes.
_GAP_SHARE = 25
MOST_GAP_BYTES = 64 << 10
"""Larger gaps are never joined."""

MOST_RANGE_BYTES = 8 << 20
"""Larger ranges are cut between pieces, as two halves arrive sooner than the whole."""


class RangePlan(NamedTuple):
    """Half-open ranges to request, and the pieces in each: int64 [ranges]."""

    firsts: IntArray
    ends: IntArray
    begin_bytes: IntArray
    end_bytes: IntArray


def plan_ranges(files: IntArray, begins: IntArray, ends: IntArray) -> RangePlan:
    """Joins the half-open byte ranges of pieces that are neighbours.

    Args:
        files: int64 [n], the file of each piece; ascending.
        begins: int64 [n], start of each; ascending within a file.
        ends: int64 [n], one past its last byte; no two pieces overlap.
    """
    if not len(files):
        nothing = np.empty(0, np.int64)
        return RangePlan(nothing, nothing, nothing, nothing)
    gaps = begins[1:] - ends[:-1]
    joinable = (files[1:] == files[:-1]) & (gaps <= MOST_GAP_BYTES)
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
    from gristmill.loader.remote.object_reads import ByteRange

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
