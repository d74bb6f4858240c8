"""Reads a batch of records: planned, decoded together, each one checked.

Records are compared with the checksums in their shard's index. Where there are none,
the hashes of their chunks are compared.

The chunks of a batch, from all its shards, are decoded together. Of a chunk of several
records, only those in the batch are made. From shards in object storage, all chunks of
a batch are requested at once, and decoded as they arrive.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias

import google_crc32c
import numpy as np

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
    InputError,
    InvalidDatasetError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
    SystemLimitError,
    TransposedChunkError,
)
from gristmill.dataset.storage.open_file import OpenFile
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.shard_file import (
    READ_LIMITS,
    ReadLimits,
    ShardFile,
    StoredBytes,
)
from gristmill.loader.reading.shard_list import OpenShards, ShardList
from gristmill.loader.remote.read_options import ReadOptions

if TYPE_CHECKING:
    from gristmill.loader.remote.range_fetcher import RangeFetcher

Verify = Literal["always", "never"]
# Returns the physical bytes of chunks, with the buffer protocol, given their numbers.
ReadChunks: TypeAlias = Callable[[list[int]], list[Any]]

# For fewer records of a shard, a loop is faster than numpy.
_FEW_RECORDS = 40
# How often to fetch a chunk that arrives damaged, before the shard counts as damaged.
_DAMAGED_TRIES = 3
_GONE = StorageChangedError, StorageMissingError
_descriptor = operator.attrgetter("descriptor")
_log = logging.getLogger(__name__)


class Wanted(NamedTuple):
    """Records of one shard that are in a batch."""

    shard_number: int
    shard: ShardFile
    places: IntArray  # In the batch.
    numbers: IntArray  # In the shard, ascending.


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
            begin, end = np.searchsorted(self.chunk, [first, last]).tolist()
            yield self._taken(slice(first, last), slice(begin, end), first)
            first, done = last, int(ends[last - 1])

    def select(self, chunks: IntArray) -> ReadPlan:
        """Returns the plan of some chunks, in ascending order."""
        number = np.full(len(self.file), -1)
        number[chunks] = np.arange(len(chunks))
        taken = self._taken(chunks, np.flatnonzero(number[self.chunk] >= 0), 0)
        return taken._replace(chunk=number[taken.chunk])

    def _taken(
        self, chunks: slice | IntArray, records: slice | IntArray, first: int
    ) -> ReadPlan:
        name, files, *arrays = self
        of_chunks = [array[chunks] for array in arrays[:6]]
        chunk, *of_records = [array[records] for array in arrays[6:]]
        return ReadPlan._make([name, files, *of_chunks, chunk - first, *of_records])

    def corrupt(
        self, chunk: int, item: int | None = None, *, got: object, expected: str = ""
    ) -> CorruptShardError:
        """Returns the error about a wanted record, by default the first of a chunk."""
        item = int(np.searchsorted(self.chunk, chunk)) if item is None else item
        return CorruptShardError(
            "record cannot be read: its shard does not hold what was written",
            where=f"{self.name}, shard {self.files[self.file[chunk]].path}, record "
            f"{self.number[item]:,} of the shard, in the chunk at byte offset "
            f"{self.begin[chunk]:,}",
            expected=expected or None,
            got=got,
            cure="restore the shard from a copy, or convert this shard again",
        )


class BatchReader:
    """Reads records of a dataset by their numbers. Safe to share by threads.

    Args:
        shards: The dataset.
        verify: `always` compares each record with its checksum in the shard's index;
            None does so if the index has checksums, and compares the hashes of chunks
            if it has none; `never` compares nothing.
        read_options: How to read plain files in object storage.
        limits: How much to read, decode and keep open at a time.
    """

    def __init__(
        self,
        shards: ShardList,
        *,
        verify: Verify | None = None,
        read_options: ReadOptions | None = None,
        limits: ReadLimits = READ_LIMITS,
    ):
        if verify not in (None, "always", "never"):
            raise InputError(
                "verify must be 'always', 'never' or None",
                expected="'always', 'never', or None for records with checksums",
                got=repr(verify),
                cure="give one of these",
            )
        _keep_freed_memory()
        self.shards = shards
        self._limits, self._verify, self._options = limits, verify, read_options

    @functools.cached_property
    def open_shards(self) -> OpenShards:
        """The shards that are open."""
        return OpenShards(self.shards, self._limits)

    @functools.cached_property
    def _fetcher(self) -> RangeFetcher:
        if self.shards.remote is not None:
            return self.shards.remote.fetcher
        from gristmill.loader.remote.range_fetcher import RangeFetcher

        return RangeFetcher(self._options)

    def read(self, records: IntArray, *, threads: int = 1) -> list[bytes]:
        """Returns records, in the order of their numbers in `records`.

        Args:
            records: int64 [n], numbers that are all in range, repeats included.
            threads: Maximum threads that decode large chunks of local shards.

        Raises:
            CorruptShardError: A shard is truncated, or does not hold what was written.
                It names dataset, shard, record and byte offset.
            InvalidDatasetError: An index is damaged, or lacks checksums although
                `verify` is `always`; or the dataset was replaced meanwhile.
            StorageError: The disk cannot read a shard.
        """
        try:
            if len(records) == 1:
                record = self._read_lone(int(records[0]))
                if record is not None:
                    return [record]
            return self._read(records, threads)
        except (CorruptShardError, StorageError) as e:
            if self.shards.remote is None:
                # A file that is put back in their place is another one.
                self.open_shards.close()
            if isinstance(e, _GONE) and self.shards.check_current is not None:
                self.shards.check_current()  # That says more, if it is the reason.
            raise
        except (MemoryError, OSError, RuntimeError) as e:
            if error := SystemLimitError.of(e):
                raise error from e
            raise

    def _read(self, records: IntArray, threads: int) -> list[bytes]:
        out: list[bytes] = [b""] * len(records)
        order = np.argsort(records, kind="stable")
        shards, numbers = self.shards.find(records[order])
        bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(records)]
        which = shards[bounds[:-1]].tolist() if len(records) else []
        most = min(self.open_shards.most, self._limits.used_shards)
        for first in range(0, len(which), most):
            used = which[first : first + most]
            opened = self.open_shards.get_many(used)
            spans = itertools.pairwise(bounds[first:])
            wanted = [
                Wanted(number, opened[number], order[begin:end], numbers[begin:end])
                for number, (begin, end) in zip(used, spans, strict=False)
            ]
            local = [item for item in wanted if item.shard.version is None]
            stored = [item for item in wanted if item.shard.version is not None]
            if local:
                stored += self._read_local(local, out, threads)
            if stored:
                self._fetch(self._plan(stored), out)
            if self.shards.remote is not None:
                fetched = {one.shard_number: len(one.numbers) for one in stored}
                copied = {
                    one.shard_number: len(one.numbers)
                    for one in wanted
                    if one.shard_number not in fetched
                }
                self.shards.count_records(copied=copied, fetched=fetched)
        return out

    def _read_lone(self, record: int) -> bytes | None:
        """Returns a record of a local shard; None if only the general way can."""
        number, row = self.shards.find_one(record)
        if self.shards.remote is not None:
            return None
        shard = self.open_shards.get(number)
        if shard.version is not None:
            return None
        index = shard.index
        try:
            ((_, begin, end, count, place),) = index.find_records([row])
        except IndexError:
            return None
        if not (0 < begin < end <= index.file_bytes and 0 <= place < count):
            return None
        compare, hashed = self._checks(shard)
        data: bytes | memoryview = shard.data[begin:end]
        if (begin - 1) // BLOCK_BYTES != (end - 1) // BLOCK_BYTES:
            try:
                if hashed:
                    check_blocks(data, begin)
            except ValueError:
                return None
            data = logical(data, begin)
        found = decode_lone_record(
            data,
            row=place,
            count=count,
            max_decoded_bytes=index.max_chunk_decoded_bytes,
            hashed=hashed,
        )
        if found is None or not compare:
            return found
        return found if google_crc32c.value(found) == index.crc32cs[row] else None

    def close(self) -> None:
        """Closes all shards. Reading opens them again."""
        self.open_shards.close()

    def offset_bytes(self, record: int) -> int:
        """Returns the physical offset, in its file, of a record's chunk."""
        number, row = self.shards.find_one(record)
        return self.open_shards.get(number).index.find_records([row])[0][1]

    def _checks(self, shard: ShardFile) -> tuple[bool, bool]:
        """Returns whether to compare records, and whether the hashes of chunks."""
        if self._verify == "always" and not shard.has_crc32cs:
            raise InvalidDatasetError(
                "index has no checksums of the records to verify",
                where=f"{self.shards.name}, shard {shard.path}",
                cure="make an index with `gristmill index`, or open the dataset "
                "without verify='always'",
            )
        if self._verify == "never":
            return False, False
        return shard.has_crc32cs, not shard.has_crc32cs

    def _plan(self, wanted: Sequence[Wanted]) -> ReadPlan:
        """Finds the chunks of records, at least one.

        An index that contradicts itself is an InvalidDatasetError.
        """
        files = [item.shard for item in wanted]
        checks = [self._checks(shard) for shard in files]
        chunk, begin, end, count, row = np.concatenate(
            [_find(item.shard, item.numbers, self.shards.name) for item in wanted]
        ).T
        number = np.concatenate([item.numbers for item in wanted])
        file = np.repeat(np.arange(len(files)), [len(item.numbers) for item in wanted])
        file_bytes = np.array([shard.index.file_bytes for shard in files])[file]
        wrong = (begin <= 0) | (begin >= end) | (end > file_bytes)
        wrong |= (row < 0) | (row >= count)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise _bad_index(files[file[first]], int(number[first]), self.shards.name)
        fresh = np.ones(len(chunk), bool)
        fresh[1:] = (chunk[1:] != chunk[:-1]) | (file[1:] != file[:-1])
        firsts = np.flatnonzero(fresh)
        file = file[firsts]
        return ReadPlan(
            self.shards.name,
            files,
            file,
            begin=begin[firsts],
            end=end[firsts],
            held=count[firsts],
            limit=np.array([f.index.max_chunk_decoded_bytes for f in files])[file],
            hashed=np.array([hashed for _, hashed in checks])[file],
            chunk=np.cumsum(fresh) - 1,
            row=row,
            number=number,
            place=np.concatenate([item.places for item in wanted]),
            crc32c=np.concatenate(
                [
                    item.shard.index.crc32cs[item.numbers].astype(np.int64)
                    if compare
                    else np.full(len(item.numbers), -1)
                    for item, (compare, _) in zip(wanted, checks, strict=True)
                ]
            ),
        )

    def _read_local(
        self, wanted: list[Wanted], out: list[bytes], threads: int
    ) -> list[Wanted]:
        """Reads records of local shards, or of copies of shards in object storage.

        Returns those to fetch, because their copies are damaged.
        """
        try:
            self._read_plan(self._plan(wanted), out, threads)
        except (CorruptShardError, StorageError) as e:
            if self.shards.remote is None:
                raise
            if len(wanted) > 1:
                return [
                    left
                    for item in wanted
                    for left in self._read_local([item], out, threads)
                ]
            (item,) = wanted
            _log.warning("deleted a damaged local copy of %s: %s", item.shard.path, e)
            shard = self.open_shards.without_copy(item.shard_number)
            return [item._replace(shard=shard)]
        return []

    def _read_plan(self, plan: ReadPlan, out: list[bytes], threads: int) -> None:
        size_bytes = int((plan.end - plan.begin).sum())
        threads = min(threads, size_bytes // self._limits.thread_bytes)

        def read(part: ReadPlan) -> None:
            self._decode(part, _reader_of_plan(part), out)

        if threads < 2:
            for part in plan.parts(self._limits.part_bytes):
                read(part)
            return
        part_bytes = min(-(-size_bytes // threads), self._limits.part_bytes)
        with ThreadPoolExecutor(threads, "gristmill-read") as pool:
            collections.deque(pool.map(read, plan.parts(part_bytes)), maxlen=0)

    def _fetch(self, plan: ReadPlan, out: list[bytes]) -> None:
        """Reads records of shards in object storage.

        Chunks that arrive damaged are fetched again.
        """
        for tries in reversed(range(_DAMAGED_TRIES)):
            if not (damaged := self._fetch_once(plan, out, last=not tries)):
                return
            plan = plan.select(np.array(sorted(damaged)))

    def _fetch_once(self, plan: ReadPlan, out: list[bytes], *, last: bool) -> list[int]:
        """Returns the chunks that arrived damaged, or raises."""
        from gristmill.loader.reading.fetch_chunks import fetch_chunks

        damaged: list[int] = []

        def decode(chunks: list[int], pieces: list[bytes]) -> None:
            part = plan.select(np.array(chunks))
            self._decode(part, lambda some: [pieces[i] for i in some], out)

        def take(chunks: list[int], pieces: list[bytes]) -> None:
            try:
                decode(chunks, pieces)
            except CHUNK_ERRORS:
                if last:
                    raise
                found = damaged_chunks(
                    len(pieces),
                    lambda n: decode(chunks[n : n + 1], pieces[n : n + 1]),
                    errors=CHUNK_ERRORS,
                )
                damaged.extend(chunks[number] for number, _ in found)

        shards = [plan.files[file] for file in plan.file]
        fetch_chunks(
            shards, plan.file, plan.begin, plan.end, take, fetcher=self._fetcher
        )
        return damaged

    def _decode(self, plan: ReadPlan, read: ReadChunks, out: list[bytes]) -> None:
        """Decodes chunks and puts their wanted records into the batch.

        `read` returns the physical bytes of chunks of the plan, by their numbers in it.
        A damaged chunk or a record without its checksum is a CorruptShardError.
        """
        headers = (plan.end - 1) // BLOCK_BYTES - (plan.begin - 1) // BLOCK_BYTES
        sizes = plan.end - plan.begin - BLOCK_HEADER_BYTES * headers
        least = np.where(
            plan.held == 1,
            self._limits.large_chunk_bytes,
            self._limits.large_group_bytes,
        )
        left = np.arange(len(sizes))
        large = np.flatnonzero(sizes > least)
        if len(large) and (found := _lone_records(plan, read, large)):
            chunks = np.fromiter(found, np.int64, len(found))
            done = plan.select(chunks)
            records = list(found.values())
            _deliver(done, [records[chunk] for chunk in done.chunk.tolist()], out)
            left = np.delete(left, chunks)
            plan = plan.select(left)
        if not len(left):
            return
        pieces, sizes = read(left.tolist()), sizes[left]
        for chunk in np.flatnonzero(headers[left]).tolist():
            pieces[chunk] = _without_headers(plan, chunk, pieces[chunk])
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
        _deliver(plan, records, out)


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


def read_ranges(
    files: Sequence[OpenFile | StoredBytes], begins: Sequence[int], ends: Sequence[int]
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


def _reader_of_plan(plan: ReadPlan) -> ReadChunks:
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


def _without_headers(plan: ReadPlan, chunk: int, piece: Any) -> Any:
    """Returns a chunk without the block headers in it, which are checked if asked."""
    begin = int(plan.begin[chunk])
    if plan.hashed[chunk]:
        try:
            check_blocks(piece, begin)
        except ValueError as e:
            raise plan.corrupt(chunk, got=e) from e
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
    chunks = chunks[alone]
    of_chunks = (plan.held[chunks], plan.limit[chunks], plan.hashed[chunks])
    columns = chunks, first[alone], *of_chunks
    found = {}
    for chunk, row, count, limit, hashed in zip(
        *map(np.ndarray.tolist, columns), strict=True
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


def _deliver(plan: ReadPlan, records: list[bytes], out: list[bytes]) -> None:
    """Compares records with their checksums, and puts them into the batch."""
    expected = plan.crc32c
    if int(expected.max()) >= 0:
        got = np.fromiter(map(google_crc32c.value, records), np.int64, len(records))
        wrong = (got != expected) & (expected >= 0)
        if wrong.any():
            item = int(np.argmax(wrong))
            raise plan.corrupt(
                int(plan.chunk[item]),
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
        raise plan.corrupt(chunk, got=found.got or found.what) from found
    raise error


@functools.cache
def _keep_freed_memory() -> None:
    """Keeps memory that a batch has freed for the next one.

    Feeds of compressed texts of 100 KB take a fifth less processor time.

    glibc returns blocks above 128 KiB to the system when they are freed, and the end of
    the heap when more than that is free. The next batch then gets its memory page by
    page, each zeroed by the kernel. Both limits grow by themselves when a larger block
    is freed, to 32 and 64 MiB at most (mallopt(3), M_MMAP_THRESHOLD). So one such block
    is freed before the first batch. It is never touched, so it takes no memory. Limits
    that the user has set, such as MALLOC_TRIM_THRESHOLD_, stay as they are. Other
    allocators are not affected.
    """
    # The largest block that counts is 32 MiB with its header.
    with contextlib.suppress(MemoryError):
        bytearray((32 << 20) - (64 << 10))
