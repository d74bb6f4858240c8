"""Plans which chunks a batch needs, and which of their records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.simple_chunks import BoolArray
from gristmill.dataset.base.errors import CorruptShardError, InvalidDatasetError
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.shard_file import ShardFile

# For fewer records of a shard, a loop is faster than numpy.
_FEW_RECORDS = 40


class Wanted(NamedTuple):
    """Records of one shard that are in a batch."""

    shard: ShardFile
    places: IntArray  # In the batch.
    numbers: IntArray  # In the shard, ascending.
    compare: bool  # With their checksums.
    hashed: bool  # Compare the hashes of their chunks instead.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """Chunks to read, and the wanted records in them, in the order of the files.

    Attributes:
        name: The dataset, for messages.
        files: The shards.
        file: int64 [chunks], which of the files each chunk is in.
        begin: int64 [chunks], its first physical byte.
        end: int64 [chunks], one past its last.
        count: int64 [chunks], records that it holds.
        limit: int64 [chunks], most bytes that it may decode to.
        hashed: bool [chunks], whether its own hashes are compared.
        chunk: int64 [records], the chunk of each wanted record, ascending.
        row: int64 [records], its number within the chunk.
        number: int64 [records], its number within the shard.
        place: int64 [records], its place in the batch.
        crc32c: int64 [records], its checksum, -1 for none to compare with.
    """

    name: str
    files: Sequence[ShardFile]
    file: IntArray
    begin: IntArray
    end: IntArray
    count: IntArray
    limit: IntArray
    hashed: BoolArray
    chunk: IntArray
    row: IntArray
    number: IntArray
    place: IntArray
    crc32c: IntArray

    def parts(self, part_bytes: int) -> Iterator[ReadPlan]:
        """Yields plans of at most so many bytes, or of one chunk that is larger."""
        ends = np.cumsum(self.end - self.begin)
        if not len(ends) or ends[-1] <= part_bytes:
            yield self
            return
        first = done = 0
        while first < len(ends):
            fit = int(np.searchsorted(ends, done + part_bytes, side="right"))
            last = max(fit, first + 1)
            yield self.part(first, last)
            first, done = last, int(ends[last - 1])

    def part(self, first: int, last: int) -> ReadPlan:
        """Returns the plan of the chunks [first, last)."""
        begin, end = np.searchsorted(self.chunk, [first, last]).tolist()
        return self._taken(slice(first, last), slice(begin, end), first)

    def select(self, chunks: IntArray) -> ReadPlan:
        """Returns the plan of some chunks, in ascending order."""
        number = np.full(len(self.file), -1)
        number[chunks] = np.arange(len(chunks))
        chosen = np.flatnonzero(number[self.chunk] >= 0)
        taken = self._taken(chunks, chosen, 0)
        return dataclasses.replace(taken, chunk=number[taken.chunk])

    def _taken(
        self, chunks: slice | IntArray, records: slice | IntArray, first: int
    ) -> ReadPlan:
        return dataclasses.replace(
            self,
            file=self.file[chunks],
            begin=self.begin[chunks],
            end=self.end[chunks],
            count=self.count[chunks],
            limit=self.limit[chunks],
            hashed=self.hashed[chunks],
            chunk=self.chunk[records] - first,
            row=self.row[records],
            number=self.number[records],
            place=self.place[records],
            crc32c=self.crc32c[records],
        )


def plan_reads(wanted: Sequence[Wanted], *, name: str) -> ReadPlan:
    """Finds the chunks of at least one record.

    An index that contradicts itself is an InvalidDatasetError.
    """
    files = [item.shard for item in wanted]
    chunk, begin, end, count, row = np.concatenate(
        [_find(item.shard, item.numbers, name) for item in wanted]
    ).T
    number = np.concatenate([item.numbers for item in wanted])
    file = np.repeat(np.arange(len(files)), [len(item.numbers) for item in wanted])
    file_bytes = np.array([shard.index.file_bytes for shard in files])[file]
    wrong = (begin <= 0) | (begin >= end) | (end > file_bytes)
    wrong |= (row < 0) | (row >= count)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise _bad_index(files[file[first]], int(number[first]), name)
    fresh = np.ones(len(chunk), bool)
    fresh[1:] = (chunk[1:] != chunk[:-1]) | (file[1:] != file[:-1])
    firsts = np.flatnonzero(fresh)
    limits = np.array([shard.index.max_chunk_decoded_bytes for shard in files])
    return ReadPlan(
        name=name,
        files=files,
        file=file[firsts],
        begin=begin[firsts],
        end=end[firsts],
        count=count[firsts],
        limit=limits[file[firsts]],
        hashed=np.array([item.hashed for item in wanted])[file[firsts]],
        chunk=np.cumsum(fresh) - 1,
        row=row,
        number=number,
        place=np.concatenate([item.places for item in wanted]),
        crc32c=np.concatenate([_expected(item) for item in wanted]),
    )


def _find(shard: ShardFile, numbers: IntArray, name: str) -> IntArray:
    """Returns the places of records, as `ShardIndex.find_records`: int64 [n, 5]."""
    try:
        if len(numbers) >= _FEW_RECORDS:
            return shard.index.place_records(numbers)
        return np.array(shard.index.find_records(numbers.tolist()), np.int64)
    except (IndexError, OverflowError) as e:
        raise _bad_index(shard, int(numbers[0]), name) from e


def _expected(item: Wanted) -> IntArray:
    if not item.compare:
        return np.full(len(item.numbers), -1)
    return item.shard.index.crc32cs[item.numbers].astype(np.int64)


def _bad_index(shard: ShardFile, number: int, name: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "shard index contradicts itself",
        where=f"{name}, index {shard.index.path}, record {number:,}",
        cure="delete this index and run the conversion, or `gristmill index`, again",
    )


def corrupt_record(
    plan: ReadPlan, item: int, *, got: str, expected: str | None = None
) -> CorruptShardError:
    """Returns the error about a wanted record that is not what was written."""
    chunk = plan.chunk[item]
    return CorruptShardError(
        "record cannot be read: its shard does not hold what was written",
        where=f"{plan.name}, shard {plan.files[plan.file[chunk]].path}, record "
        f"{plan.number[item]:,} of the shard, in the chunk at byte offset "
        f"{plan.begin[chunk]:,}",
        expected=expected,
        got=got,
        cure="restore the shard from a copy, or convert this shard again",
    )
