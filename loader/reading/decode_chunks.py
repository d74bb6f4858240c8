"""Decoding what was read: the wanted records, each one checked, or what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.chunks import decode_chunks, decode_records
from gristmill.dataset.arrayrecord.damaged_chunks import (
    CHUNK_ERRORS,
    damaged_chunks,
)
from gristmill.dataset.arrayrecord.footer import (
    BLOCK_HEADER_BYTES,
    blocks_before,
    logical,
)
from gristmill.dataset.arrayrecord.single_record import decode_lone_record
from gristmill.dataset.errors import CorruptShardError, GristmillError
from gristmill.loader.indices import IntArray
from gristmill.loader.reading.read_plan import ReadPlan
from gristmill.loader.reading.shard_files import ShardFile

# A chunk of one record that takes more is decoded by itself, without being copied.
_LARGE_BYTES = 24 << 10
# So is one of many of which a single record is wanted: no further than to its end.
_LARGE_GROUP_BYTES = 128 << 10


def decode_window(
    window: ReadPlan, pieces: Sequence[Any], out: list[bytes], *, name: str
) -> None:
    """Decodes chunks and puts their wanted records where they belong.

    Args:
        window: The chunks.
        pieces: The physical bytes of each, with the buffer protocol.
        out: The batch.
        name: The dataset, for messages.

    Raises:
        CorruptShardError: A chunk is damaged, or a record does not have its checksum.
    """
    headers = blocks_before(window.end, window.begin)
    pieces = list(pieces)
    for chunk in np.flatnonzero(headers).tolist():
        pieces[chunk] = logical(pieces[chunk], int(window.begin[chunk]))
    sizes = window.end - window.begin - BLOCK_HEADER_BYTES * headers
    least = np.where(window.count == 1, _LARGE_BYTES, _LARGE_GROUP_BYTES)
    large = np.flatnonzero(sizes > least)
    found = _lone_records(window, pieces, large) if len(large) else {}
    if found:
        chunks = np.fromiter(found, np.int64, len(found))
        done = window.select(chunks)
        records = list(found.values())
        deliver(done, [records[chunk] for chunk in done.chunk.tolist()], out, name)
        left = np.ones(len(sizes), bool)
        left[chunks] = False
        window, sizes = window.select(np.flatnonzero(left)), sizes[left]
        pieces = [pieces[chunk] for chunk in np.flatnonzero(left).tolist()]
    if pieces:
        _decode(window, pieces, sizes, out, name)


def _lone_records(
    window: ReadPlan, pieces: list[Any], chunks: IntArray
) -> dict[int, bytes]:
    """Decodes chunks of which a single record is wanted, one by one.

    Args:
        window: Has the chunks.
        pieces: The logical bytes of each chunk of the window.
        chunks: int64 [n], the ones to decode, ascending.

    Returns:
        The wanted record by chunk, in order, without those that are not as usual.
    """
    first = window.row[np.searchsorted(window.chunk, chunks, side="left")]
    last = window.row[np.searchsorted(window.chunk, chunks, side="right") - 1]
    alone = first == last
    found = {}
    for chunk, row, count, limit in zip(
        chunks[alone].tolist(),
        first[alone].tolist(),
        window.count[chunks[alone]].tolist(),
        window.limit[chunks[alone]].tolist(),
        strict=True,
    ):
        record = decode_lone_record(
            pieces[chunk], row=row, count=count, max_decoded_bytes=limit
        )
        if record is not None:
            found[chunk] = record
    return found


def _decode(
    window: ReadPlan, pieces: list[Any], sizes: IntArray, out: list[bytes], name: str
) -> None:
    ends = np.cumsum(sizes)
    try:
        records = decode_records(
            b"".join(pieces),
            ends - sizes,
            ends,
            chunks=window.chunk,
            rows=window.row,
            path=name,
            chunk_records=window.count,
            max_decoded_bytes=window.limit,
        )
    except CHUNK_ERRORS as e:
        _explain(window, pieces, e, name)
    deliver(window, records, out, name)


def deliver(
    window: ReadPlan, records: list[bytes], out: list[bytes], name: str
) -> None:
    """Compares the wanted records with their checksums and hands them out."""
    expected = window.crc32c
    if int(expected.max()) >= 0:
        got = np.fromiter(map(google_crc32c.value, records), np.int64, len(records))
        wrong = (got != expected) & (expected >= 0)
        if wrong.any():
            item = int(np.argmax(wrong))
            raise corrupt_record(
                window.files[window.file[window.chunk[item]]],
                int(window.number[item]),
                int(window.begin[window.chunk[item]]),
                name=name,
                expected=f"crc32c {expected[item]:#010x}, as the shard's index says",
                got=f"crc32c {got[item]:#010x}",
            )
    for place, record in zip(window.place.tolist(), records, strict=True):
        out[place] = record


def _explain(
    window: ReadPlan, pieces: list[Any], error: GristmillError, name: str
) -> NoReturn:
    """Finds the damaged chunk by decoding one at a time, and says which."""

    def decode(chunk: int) -> None:
        decode_chunks(
            pieces[chunk],
            np.array([0]),
            path=name,
            chunk_records=window.count[chunk : chunk + 1],
            max_decoded_bytes=int(window.limit[chunk]),
        )

    for chunk, found in damaged_chunks(len(pieces), decode, errors=CHUNK_ERRORS):
        raise corrupt_record(
            window.files[window.file[chunk]],
            int(window.number[np.searchsorted(window.chunk, chunk)]),
            int(window.begin[chunk]),
            name=name,
            got=found.got or found.what,
        ) from found
    raise error


def corrupt_record(
    shard: ShardFile,
    number: int,
    begin: int,
    *,
    name: str,
    got: str,
    expected: str | None = None,
) -> CorruptShardError:
    """Returns the error about a record that is not what was written.

    Args:
        shard: The shard.
        number: Of the record in the shard.
        begin: Where its chunk begins.
        name: The dataset.
        got: What is wrong.
        expected: What there should be.
    """
    return CorruptShardError(
        "record cannot be read: its shard holds something else than was written",
        where=f"{name}, shard {shard.path}, record {number:,} of the shard, in the "
        f"chunk at byte offset {begin:,}",
        expected=expected,
        got=got,
        cure="restore the shard from a copy, or convert this shard again",
    )
