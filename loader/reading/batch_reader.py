"""Reads a batch of records: grouped by shard, decoded together, each one checked.

Records are compared with the checksums in their shard's index. Where there are none,
the hashes of their chunks are compared.

The chunks of a batch, from all its shards, are decoded together. Of a chunk of several
records, only those in the batch are made. From shards in object storage, all chunks of
a batch are requested at once, and decoded as they arrive.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.chunk_hash import is_compiled
from gristmill.dataset.arrayrecord.chunks import (
    BLOCK_BYTES,
    check_blocks,
    decode_lone_record,
    logical,
)
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    InvalidDatasetError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
    SystemLimitError,
)
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.decode_chunks import (
    ReadPlan,
    Wanted,
    decode_planned,
    plan_reads,
    reader_of_plan,
)
from gristmill.loader.reading.shard_file import (
    READ_LIMITS,
    ReadLimits,
    ShardFile,
)
from gristmill.loader.reading.shard_list import OpenShards, ShardList
from gristmill.loader.remote.read_options import ReadOptions

if TYPE_CHECKING:
    from gristmill.loader.remote.range_fetcher import RangeFetcher

Verify = Literal["always", "never"]

_log = logging.getLogger(__name__)
_GONE = StorageChangedError, StorageMissingError


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
        self._limits = limits
        self._verify = verify
        self._options = read_options
        self._own_fetcher: RangeFetcher | None = None

    @functools.cached_property
    def open_shards(self) -> OpenShards:
        """The shards that are open."""
        return OpenShards(self.shards, self._limits)

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
        if len(records) == 1:
            record = self._read_lone(int(records[0]))
            if record is not None:
                return [record]
        out: list[bytes] = [b""] * len(records)
        order = np.argsort(records, kind="stable")
        shards, numbers = self.shards.find(records[order])
        bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(records)]
        which = shards[bounds[:-1]].tolist() if len(records) else []
        remote = self.shards.remote is not None
        opened: dict[int, ShardFile] = {}
        if remote and which:
            opened = self.open_shards.get_many(which)
        local: list[Wanted] = []
        most_used = min(self.open_shards.most, self._limits.used_shards)
        stored: list[Wanted] = []
        for number, (begin, end) in zip(
            which, itertools.pairwise(bounds), strict=False
        ):
            shard = opened[number] if remote else self.open_shards.get(number)
            if self._verify == "always" and not shard.has_crc32cs:
                raise InvalidDatasetError(
                    "index has no checksums of the records to verify",
                    where=f"{self.shards.name}, shard {shard.path}",
                    cure="make an index with `gristmill index`, or open the dataset "
                    "without verify='always'",
                )
            places = order[begin:end], numbers[begin:end]
            compare, hashed = self._checks(shard)
            wanted = Wanted(number, shard, *places, compare, hashed)
            if shard.version is None:
                local.append(wanted)
            else:
                stored.append(wanted)
            if not remote and len(local) >= most_used:
                self._read_local(local, out, threads)
                local = []
        if local and remote:
            local, damaged = self._read_copies(local, out)
            stored += damaged
        elif local:
            self._read_local(local, out, threads)
        if stored:
            from gristmill.loader.reading.fetch_chunks import fetch_planned

            plan = plan_reads(stored, name=self.shards.name)
            decode = functools.partial(decode_planned, limits=self._limits)
            fetch_planned(plan, out, fetcher=self._fetcher, decode=decode)
        if self.shards.remote is not None:
            self.shards.count_records(
                copied=_by_shard(local), fetched=_by_shard(stored)
            )
        return out

    def _read_lone(self, record: int) -> bytes | None:
        """Returns a record of a local shard; None if only the general way can."""
        number, row = self.shards.find_one(record)
        if self.shards.remote is not None:
            return None
        shard = self.open_shards.get(number)
        if shard.version is not None:
            return None
        if self._verify == "always" and not shard.has_crc32cs:
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
        if hashed:
            if not is_compiled():
                return None
            try:
                check_blocks(data, begin)
            except ValueError:
                return None
        if (begin - 1) // BLOCK_BYTES != (end - 1) // BLOCK_BYTES:
            data = logical(data, begin)  # Without the block headers in it.
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
        shard = self.open_shards.get_many([number])[number]
        return shard.index.find_records([row])[0][1]

    def _checks(self, shard: ShardFile) -> tuple[bool, bool]:
        """Returns whether to compare records, and whether the hashes of chunks."""
        if self._verify == "never":
            return False, False
        compare = shard.has_crc32cs
        return compare, not compare

    def _read_local(
        self, wanted: list[Wanted], out: list[bytes], threads: int = 1
    ) -> None:
        """Reads records of local shards, or of local copies."""
        if not wanted:
            return
        plan = plan_reads(wanted, name=self.shards.name)

        def read(part: ReadPlan) -> None:
            decode_planned(part, reader_of_plan(part), out, self._limits)

        size_bytes = int((plan.end - plan.begin).sum())
        threads = min(threads, size_bytes // self._limits.thread_bytes)
        if threads < 2:
            for part in plan.parts(self._limits.part_bytes):
                read(part)
            return
        part_bytes = min(-(-size_bytes // threads), self._limits.part_bytes)
        with ThreadPoolExecutor(threads, "gristmill-read") as pool:
            for _ in pool.map(read, plan.parts(part_bytes)):
                pass

    def _read_copies(
        self, copies: list[Wanted], out: list[bytes]
    ) -> tuple[list[Wanted], list[Wanted]]:
        """Reads from local copies of shards in object storage.

        Returns the records read, and those to fetch because a copy is damaged.
        """
        with contextlib.suppress(CorruptShardError, StorageError):
            self._read_local(copies, out)
            return copies, []
        read, left = [], []
        for item in copies:
            try:
                self._read_local([item], out)
            except (CorruptShardError, StorageError) as e:
                _log.warning(
                    "deleted a damaged local copy of %s: %s", item.shard.path, e
                )
                shard = self.open_shards.without_copy(item.shard_number)
                left.append(item._replace(shard=shard))
            else:
                read.append(item)
        return read, left

    @property
    def _fetcher(self) -> RangeFetcher:
        if self.shards.remote is not None:
            return self.shards.remote.fetcher
        if self._own_fetcher is None:
            from gristmill.loader.remote.range_fetcher import RangeFetcher

            self._own_fetcher = RangeFetcher(self._options)
        return self._own_fetcher


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


def _by_shard(wanted: list[Wanted]) -> dict[int, int]:
    """Returns the number of wanted records of each shard in object storage."""
    return {item.shard_number: len(item.numbers) for item in wanted}
