"""Reads a batch of records: decoded together, each one checked.

Records are compared with the checksums in their shard's index. Where there are none,
the hashes of their chunks are compared.

The compiled part reads and decodes the chunks of a batch, from all its shards, without
the interpreter's lock. Chunks that it leaves, such as damaged ones, are decoded here,
which finds the error to raise. From shards in object storage, all chunks of a batch
are requested at once, and decoded as they arrive.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunks import (
    CHUNK_ERRORS,
    EncodedChunks,
    check_blocks,
    logical,
    pick_records,
)
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
    SystemLimitError,
)
from gristmill.dataset.storage.local import OpenFile
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.read_plan import (
    ReadPlan,
    Verify,
    Wanted,
    checks_of,
    fetch_chunks,
    make_plan,
)
from gristmill.loader.reading.shard_list import USED_SHARDS, OpenShards, ShardList
from gristmill.loader.remote.read_options import ReadOptions

if TYPE_CHECKING:
    from gristmill.loader.remote.range_fetcher import RangeFetcher

PART_BYTES = 4 << 20
"""A batch is decoded in parts of this size, as it is in the files: memory follows the
records that are wanted, and not the batch's size."""

THREAD_BYTES = 1 << 20
"""Least bytes for a thread to decode: with less it gains nothing."""

# How often to fetch a chunk that arrives damaged, before the shard counts as damaged.
_DAMAGED_TRIES = 3
# A thread that has done its parts takes those of another.
_PARTS_OF_THREAD = 3
_GONE = StorageChangedError, StorageMissingError
# A row of `CHUNKS`, one of `WANTED`, and a descriptor: a few of them as bytes take a
# third of the time of arrays.
_CHUNK, _WANTED, _FILE = struct.Struct("<6q"), struct.Struct("<5q"), struct.Struct("<q")
_log = logging.getLogger(__name__)


class BatchReader:
    """Reads records of a dataset by their numbers. Safe to share by threads.

    Args:
        shards: The dataset.
        verify: `always` compares each record with its checksum in the shard's index;
            None does so if the index has checksums, and compares the hashes of chunks
            if it has none; `never` compares nothing.
        read_options: How to read plain files in object storage.
    """

    def __init__(
        self,
        shards: ShardList,
        *,
        verify: Verify | None = None,
        read_options: ReadOptions | None = None,
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
        self._verify, self._options = verify, read_options
        self._lock = threading.Lock()
        self._threads: tuple[tuple[int, int], ThreadPoolExecutor] | None = None

    @functools.cached_property
    def open_shards(self) -> OpenShards:
        """The shards that are open."""
        return OpenShards(self.shards)

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
                # A file that replaces a damaged one has to be opened.
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
        most = min(self.open_shards.most, USED_SHARDS)
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
                fetched = {one.shard_number for one in stored}
                for number, _, _, records_of in wanted:
                    self.shards.count_records(
                        number, len(records_of), fetched=number in fetched
                    )
        return out

    def _read_lone(self, record: int) -> bytes | None:
        """Returns a record of a local shard; None if only the general way can."""
        decoder = compiled.decoder()
        if decoder is None or self.shards.remote is not None:
            return None
        number, row = self.shards.find_one(record)
        shard = self.open_shards.get(number)
        if not isinstance(shard.data, OpenFile):
            return None
        index = shard.index
        compare, hashed = checks_of(shard, self._verify, self.shards.name)
        out: list[bytes] = [b""]
        try:
            ((_, begin, end, count, place),) = index.find_records([row])
            limit = index.max_chunk_decoded_bytes
            crc32c = int(index.crc32cs[row]) if compare else -1
            left = decoder.pick(
                _FILE.pack(shard.data.descriptor),
                None,
                _CHUNK.pack(0, begin, end, count, limit, hashed),
                _WANTED.pack(0, place, row, 0, crc32c),
                out,
            )
        except (IndexError, ValueError, struct.error):
            return None  # The index contradicts itself.
        return None if left else out[0]

    def close(self) -> None:
        """Closes all shards. Reading opens them again."""
        self._threads = None
        self.open_shards.close()

    def offset_bytes(self, record: int) -> int:
        """Returns the physical offset, in its file, of a record's chunk."""
        number, row = self.shards.find_one(record)
        return self.open_shards.get(number).index.find_records([row])[0][1]

    def _plan(self, wanted: Sequence[Wanted]) -> ReadPlan:
        return make_plan(wanted, verify=self._verify, name=self.shards.name)

    def _read_local(
        self, wanted: list[Wanted], out: list[bytes], threads: int
    ) -> list[Wanted]:
        """Reads records of local shards, or of copies of shards in object storage.

        Returns those whose copies are damaged, to be fetched.
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
        size_bytes = plan.size_bytes
        threads = min(threads, size_bytes // THREAD_BYTES)
        if threads < 2:
            for part in plan.parts(PART_BYTES):
                _decode(part, None, out)
            return
        fair_bytes = -(-size_bytes // (threads * _PARTS_OF_THREAD))
        parts = enumerate(plan.parts(min(fair_bytes, PART_BYTES)))
        errors: dict[int, Exception] = {}

        def work() -> None:
            while not errors:
                with self._lock:
                    number, part = next(parts, (0, None))
                if part is None:
                    return
                try:
                    _decode(part, None, out)
                except Exception as e:  # Raised below.
                    errors[number] = e

        helpers = [self._pool(threads).submit(work) for _ in range(threads - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():
                helper.result()
        if errors:
            raise errors[min(errors)]

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Returns threads that wait between reads: to start one takes milliseconds."""
        key = os.getpid(), threads  # A process that was forked has none.
        if self._threads is None or self._threads[0] != key:
            self._threads = key, ThreadPoolExecutor(threads - 1, "gristmill-read")
        return self._threads[1]

    def _fetch(self, plan: ReadPlan, out: list[bytes]) -> None:
        """Reads records of shards in object storage.

        Chunks that arrive damaged are fetched again.
        """
        for tries in reversed(range(_DAMAGED_TRIES)):
            if not (damaged := self._fetch_once(plan, out, last=not tries)):
                return
            plan = plan.select(sorted(damaged))

    def _fetch_once(self, plan: ReadPlan, out: list[bytes], *, last: bool) -> list[int]:
        """Returns the chunks that arrived damaged, or raises."""
        damaged: list[int] = []

        def take(chunks: list[int], pieces: list[bytes]) -> None:
            try:
                _decode(plan.select(chunks), pieces, out)
            except CHUNK_ERRORS:
                if last:
                    raise
                for chunk, piece in zip(chunks, pieces, strict=True):
                    try:
                        _decode(plan.select([chunk]), [piece], out)
                    except CHUNK_ERRORS:
                        damaged.append(chunk)

        fetch_chunks(plan.files, plan.chunks, take, fetcher=self._fetcher)
        return damaged


def _decode(plan: ReadPlan, pieces: list[bytes] | None, out: list[bytes]) -> None:
    """Decodes chunks and puts their wanted records into the batch.

    `pieces` are their physical bytes, by default read from their local files. A damaged
    chunk or a record without its checksum is a CorruptShardError.
    """
    files = [file.data for file in plan.files]
    local = [file.descriptor for file in files if isinstance(file, OpenFile)]
    descriptors = np.array(local, np.int64)
    left = pick_records(descriptors, pieces, plan.chunks, plan.records, out)
    if not left:
        return
    if len(left) < len(plan.chunks):
        plan = plan.select(left)
        pieces = pieces and [pieces[chunk] for chunk in left]
    chunks = plan.chunks.copy()
    if pieces is None:
        rows = chunks[["file", "begin", "end"]].tolist()
        pieces = [files[file][begin:end] for file, begin, end in rows]
    bare = [_without_headers(plan, n, piece) for n, piece in enumerate(pieces)]
    chunks["end"] = np.cumsum(np.fromiter(map(len, bare), np.int64))
    chunks["begin"] = np.append(0, chunks["end"][:-1])
    encoded = EncodedChunks(b"".join(bare), chunks, path=plan.name)
    item = 0
    for chunk, lengths, values in encoded.each(plan.damaged):
        ends = np.cumsum(lengths)
        while item < len(plan.records) and plan.records["chunk"][item] == chunk:
            _, row, _, place, expected = plan.records[item].tolist()
            end = int(ends[row])
            record = values[end - int(lengths[row]) : end]
            if (got := google_crc32c.value(record)) != expected >= 0:
                raise plan.corrupt(
                    chunk,
                    item,
                    expected=f"crc32c {expected:#010x}, as the shard's index says",
                    got=f"crc32c {got:#010x}",
                )
            out[place] = record
            item += 1


def _without_headers(plan: ReadPlan, chunk: int, piece: bytes) -> Any:
    """Returns a chunk without the block headers in it, which are checked if asked."""
    begin = int(plan.chunks["begin"][chunk])
    if plan.chunks["hashed"][chunk]:
        try:
            check_blocks(piece, begin)
        except ValueError as e:
            raise plan.corrupt(chunk, got=e) from e
    return logical(piece, begin)


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
