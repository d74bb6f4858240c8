"""Decodes chunks to the wanted records, and checks each record.

The official reader decodes the chunks that only it can, of local shards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.chunk_hash import is_compiled
from gristmill.dataset.arrayrecord.chunks import (
    CHUNK_ERRORS,
    EncodedChunks,
    damaged_chunks,
)
from gristmill.dataset.arrayrecord.footer import (
    BLOCK_HEADER_BYTES,
    blocks_before,
    check_blocks,
    logical,
)
from gristmill.dataset.arrayrecord.official_reader import OfficialReader
from gristmill.dataset.arrayrecord.single_record import decode_lone_record
from gristmill.dataset.base.errors import CorruptShardError, GristmillError
from gristmill.loader.base.indices import IntArray
from gristmill.loader.reading.read_plan import ReadPlan, corrupt_record
from gristmill.loader.reading.shard_file import ReadLimits

# Returns the physical bytes of chunks, with the buffer protocol, given their numbers.
ReadChunks: TypeAlias = Callable[[list[int]], list[Any]]


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
    headers = blocks_before(plan.end, plan.begin)
    sizes = plan.end - plan.begin - BLOCK_HEADER_BYTES * headers
    least = np.where(
        plan.count == 1, limits.large_chunk_bytes, limits.large_group_bytes
    )
    large = np.flatnonzero(sizes > least)
    if not is_compiled():
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
        plan.count[chunks[alone]].tolist(),
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
            records=plan.count,
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
            records=plan.count[chunk : chunk + 1],
            max_decoded_bytes=int(plan.limit[chunk]),
            hashed=bool(plan.hashed[chunk]),
        ).decode()

    for chunk, found in damaged_chunks(len(pieces), decode, errors=CHUNK_ERRORS):
        item = int(np.searchsorted(plan.chunk, chunk))
        raise corrupt_record(plan, item, got=found.got or found.what) from found
    raise error


# A reader has the footer of its file in memory.
_OPEN_READERS = 256


class OfficialShards:
    """Official readers of local shards, opened when needed. Safe to share by threads.

    Args:
        options: For the official reader, beside those for random reads.
    """

    def __init__(self, options: Mapping[str, str]):
        options = {"readahead_buffer_size": "0", **options}
        self._open = functools.partial(OfficialReader, options=options)
        self._opened = functools.lru_cache(_OPEN_READERS)(self._open)

    def read(self, plan: ReadPlan) -> list[bytes]:
        """Returns the wanted records of a plan of one shard.

        Raises CorruptShardError, which names the first damaged record.
        """
        path = plan.files[0].path
        try:
            return self._opened(path).read_records(plan.number.tolist())
        except CorruptShardError as e:
            # After an error, a reader fails to read anything else.
            self._opened.cache_clear()
            item = self._first_damaged(plan, path)
            raise corrupt_record(plan, item, got=e.got or e.what) from e

    def _first_damaged(self, plan: ReadPlan, path: str) -> int:
        """Returns the place in the plan of the first record that cannot be read."""
        good = 0
        try:
            with self._open(path) as reader:
                for number in plan.number.tolist():
                    reader.read_records([number])
                    good += 1
        except CorruptShardError:
            return good
        return 0

    def close(self) -> None:
        """Forgets all readers, which closes them."""
        self._opened.cache_clear()
