"""The chunks that a batch needs: planned, decoded to its records, and checked."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.chunk_hash import is_compiled
from gristmill.dataset.arrayrecord.chunks import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    CHUNK_ERRORS,
    BoolArray,
    EncodedChunks,
    check_blocks,
    damaged_chunks,
    decode_lone_record,
    logical,
)
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    InvalidDatasetError,
    TransposedChunkError,
)
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.shard_file import Bytes, ReadLimits, ShardFile

# For fewer records of a shard, a loop is faster than numpy.
_FEW_RECORDS = 40


# Returns the physical bytes of chunks, with the buffer protocol, given their numbers.
ReadChunks: TypeAlias = Callable[[list[int]], list[Any]]
_descriptor = operator.attrgetter("descriptor")


class Wanted(NamedTuple):
    """Records of one shard that are in a batch."""

    shard_number: int
    shard: ShardFile
    places: IntArray  # In the batch.
    numbers: IntArray  # In the shard, ascending.
    compare: bool  # With their checksums.
    hashed: bool  # Compare the hashes of their chunks instead.


class ReadPlan(NamedTuple):
    """Chunks to read, and the wanted records in them, in the order of the files.

    Attributes:
        name: The dataset, for messages.
        files: The shards.
        file: int64 [chunks], which of the files each chunk is in.
        begin: int64 [chunks], its first physical byte.
        end: int64 [chunks], one past its last.
        held: int64 [chunks], records that it holds.
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
    held: IntArray
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
        return taken._replace(chunk=number[taken.chunk])

    def _taken(
        self, chunks: slice | IntArray, records: slice | IntArray, first: int
    ) -> ReadPlan:
        name, files, *arrays = self
        of_chunks = [array[chunks] for array in arrays[:6]]
        chunk, *of_records = [array[records] for array in arrays[6:]]
        return ReadPlan._make([name, files, *of_chunks, chunk - first, *of_records])


def read_ranges(
    files: Sequence[Bytes], begins: Sequence[int], ends: Sequence[int]
) -> list[bytes]:
    """Returns the bytes [begin, end) of files, one for each; raises as a file does.

    For local files it takes half the processor's time of one range after the other.
    """
    sizes = list(map(operator.sub, ends, begins))
    with contextlib.suppress(OSError):  # What it is, the single range says.
        data = list(map(os.pread, map(_descriptor, files), sizes, begins))
        if list(map(len, data)) == sizes:
            return data
    return [files[i][begins[i] : ends[i]] for i in range(len(files))]


def reader_of_plan(plan: ReadPlan) -> ReadChunks:
    """Returns the function that reads chunks of a plan from its local files."""
    files = [plan.files[file].data for file in plan.file.tolist()]
    begins, ends = plan.begin.tolist(), plan.end.tolist()

    def read(chunks: list[int]) -> list[bytes]:
        if len(chunks) == len(files):
            return read_ranges(files, begins, ends)
        if len(chunks) == 1:
            (chunk,) = chunks
            return [files[chunk][begins[chunk] : ends[chunk]]]
        places = (files, begins, ends)
        return read_ranges(*([place[n] for n in chunks] for place in places))

    return read


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
    limits = [item.shard.index.max_chunk_decoded_bytes for item in wanted]
    firsts = np.flatnonzero(fresh)
    file = file[firsts]
    return ReadPlan(
        name,
        files,
        file,
        begin=begin[firsts],
        end=end[firsts],
        held=count[firsts],
        limit=np.array(limits)[file],
        hashed=np.array([item.hashed for item in wanted])[file],
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


def decode_planned(
    plan: ReadPlan,
    read: ReadChunks,
    out: list[bytes],
    limits: ReadLimits,
) -> None:
    """Decodes chunks and puts their wanted records into the batch.

    `read` returns the physical bytes of chunks of the plan, given their numbers in it.
    A damaged chunk or a record without its checksum is a CorruptShardError.
    """
    headers = (plan.end - 1) // BLOCK_BYTES - (plan.begin - 1) // BLOCK_BYTES
    sizes = plan.end - plan.begin - BLOCK_HEADER_BYTES * headers
    least = np.where(plan.held == 1, limits.large_chunk_bytes, limits.large_group_bytes)
    large = np.flatnonzero(sizes > least)
    if len(large) and not is_compiled():
        # Long chunks are hashed many at a time, or it takes forever.
        large = large[~plan.hashed[large]]
    left = np.arange(len(sizes))
    found = _lone_records(plan, read, large) if len(large) else {}
    if found:
        chunks = np.fromiter(found, np.int64, len(found))
        done = plan.select(chunks)
        records = list(found.values())
        deliver(done, [records[chunk] for chunk in done.chunk.tolist()], out)
        left = np.delete(left, chunks)
        plan = plan.select(left)
    if len(left):
        pieces = read(left.tolist())
        for chunk in np.flatnonzero(headers[left]).tolist():
            pieces[chunk] = _without_headers(plan, chunk, pieces[chunk])
        _decode(plan, pieces, sizes[left], out)


def _without_headers(plan: ReadPlan, chunk: int, piece: Any) -> Any:
    """Returns a chunk without the block headers in it, which are checked if asked."""
    begin = int(plan.begin[chunk])
    if plan.hashed[chunk]:
        try:
            check_blocks(piece, begin)
        except ValueError as e:
            item = int(np.searchsorted(plan.chunk, chunk))
            raise corrupt_record(plan, item, got=str(e)) from e
    return logical(piece, begin)


def _lone_records(
    plan: ReadPlan, read: ReadChunks, chunks: IntArray
) -> dict[int, bytes]:
    """Decodes those of some chunks of which a single record is wanted, one by one.

    Each is read by itself, into memory that the one before has left in the processor's
    cache. Returns the record by chunk, in order, without those in unusual encodings.
    """
    first = plan.row[np.searchsorted(plan.chunk, chunks, side="left")]
    last = plan.row[np.searchsorted(plan.chunk, chunks, side="right") - 1]
    alone = first == last
    found = {}
    for chunk, row, count, limit, hashed in zip(
        chunks[alone].tolist(),
        first[alone].tolist(),
        plan.held[chunks[alone]].tolist(),
        plan.limit[chunks[alone]].tolist(),
        plan.hashed[chunks[alone]].tolist(),
        strict=True,
    ):
        (piece,) = read([chunk])
        record = decode_lone_record(
            _without_headers(plan, chunk, piece),
            row=row,
            count=count,
            max_decoded_bytes=limit,
            hashed=hashed,
        )
        if record is not None:
            found[chunk] = record
    return found


def _decode(
    plan: ReadPlan, pieces: list[Any], sizes: IntArray, out: list[bytes]
) -> None:
    ends = np.cumsum(sizes)
    try:
        records = EncodedChunks(
            b"".join(pieces),
            ends - sizes,
            path=plan.name,
            records=plan.held,
            max_decoded_bytes=plan.limit,
            ends=ends,
            hashed=plan.hashed,
        ).pick(plan.chunk, plan.row)
    except CHUNK_ERRORS as e:
        _raise_first_damage(plan, pieces, e)
    deliver(plan, records, out)


def deliver(plan: ReadPlan, records: list[bytes], out: list[bytes]) -> None:
    """Compares records with their checksums, and puts them into the batch."""
    expected = plan.crc32c
    if int(expected.max()) >= 0:
        got = np.fromiter(map(google_crc32c.value, records), np.int64, len(records))
        wrong = (got != expected) & (expected >= 0)
        if wrong.any():
            item = int(np.argmax(wrong))
            raise corrupt_record(
                plan,
                item,
                expected=f"crc32c {expected[item]:#010x}, as the shard's index says",
                got=f"crc32c {got[item]:#010x}",
            )
    for place, record in zip(plan.place.tolist(), records, strict=True):
        out[place] = record


def _raise_first_damage(
    plan: ReadPlan, pieces: list[Any], error: GristmillError
) -> NoReturn:
    """Raises the error of the first damaged chunk."""

    def decode(chunk: int) -> None:
        EncodedChunks(
            pieces[chunk],
            np.array([0]),
            path=plan.name,
            records=plan.held[chunk : chunk + 1],
            max_decoded_bytes=int(plan.limit[chunk]),
            hashed=bool(plan.hashed[chunk]),
        ).decode()

    for chunk, found in damaged_chunks(len(pieces), decode, errors=CHUNK_ERRORS):
        if isinstance(found, TransposedChunkError):
            where = f"{plan.name}, shard {plan.files[plan.file[chunk]].path}"
            raise TransposedChunkError(found.what, where=where, cure=found.cure)
        item = int(np.searchsorted(plan.chunk, chunk))
        raise corrupt_record(plan, item, got=found.got or found.what) from found
    raise error
