"""A stored shard that is to be cut: with its indexes, and some records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_copier import StoredShard
from gristmill.dataset.arrayrecord.walk import ChunkRange, walk_chunks
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.shards.open_shard import (
    ShardFacts,
    check_shard,
    read_index,
    stored_footer,
)
from gristmill.dataset.storage.lookup import storage_for

Int64 = npt.NDArray[np.int64]


class ShardToCut(StoredShard):
    """A shard to copy from, with an index."""

    crc32cs: npt.NDArray[np.uint32]


def open_stored(
    dataset: str, shard: str, file_bytes: int, records: int
) -> tuple[ShardToCut, ShardIndex]:
    """Opens a shard as it is, with its index.

    Args:
        dataset: The dataset's directory.
        shard: The shard, relative to it.
        file_bytes: Its size.
        records: How many it has.

    Raises:
        CorruptShardError: It is not the shard that the dataset describes.
        InvalidDatasetError: Its index is damaged.
        StorageError: It cannot be read.
    """
    storage = storage_for(dataset)
    path = layout.join(dataset, shard)
    index_path = layout.join(dataset, layout.index_path(shard))
    described = ShardFacts(records, file_bytes)
    index = read_index(index_path, described)
    footer = stored_footer(path, file_bytes)
    check_shard(described, ShardFacts(footer.records), where=path)

    def opened(begin: int, end: int) -> AbstractContextManager[BinaryIO]:
        return storage.open(path, offset=begin, end=end)

    crc32cs = index.crc32cs
    return ShardToCut(path=path, footer=footer, crc32cs=crc32cs, open=opened), index


def read_segments(dataset: str, shard: str, index: ShardIndex) -> bytes:
    """Returns the file of the segment index of a shard of packed rows.

    Raises CorruptShardError if it is not the one that the shard's index describes.
    """
    path = layout.join(dataset, layout.segments_path(shard))
    data, report = storage_for(path).read(path), index.report()
    if (got := google_crc32c.value(data)) != report.segments_crc32c:
        raise CorruptShardError(
            "segment index is damaged, or not that of its shard",
            where=path,
            expected=f"crc32c {report.segments_crc32c:#010x}",
            got=f"{got:#010x}",
            cure="restore it from a copy, or pack the dataset again",
        )
    return data


def lengths_of(stored: ShardToCut, records: Int64) -> Int64:
    """Returns the lengths of some records of a shard, rising: int64 [records]."""
    found = []
    for own, part in _chunks_of(stored, records):
        found.append(part.encoded(hashed=True).measure()[own - part.first_record])
    return np.concatenate(found) if found else np.empty(0, np.int64)


def read_records(stored: ShardToCut, records: Int64) -> list[bytes]:
    """Returns some records of a shard, given their numbers, which rise.

    Raises CorruptShardError if one is not what the shard's index describes.
    """
    found: list[bytes] = []
    for own, part in _chunks_of(stored, records):
        rows = part.encoded(hashed=True).decode()
        found += [rows[row] for row in (own - part.first_record).tolist()]
    got = np.fromiter(map(google_crc32c.value, found), np.uint32, len(found))
    if (wrong := np.flatnonzero(got != stored.crc32cs[records])).size:
        record = int(records[wrong[0]])
        raise CorruptShardError(
            "a record is not the one that the shard's index describes",
            where=f"{stored.path}, record {record:,}",
            expected=f"crc32c {stored.crc32cs[record]:#010x}",
            got=f"{got[wrong[0]]:#010x}",
            cure="restore the shard and its index from a copy",
        )
    return found


def _chunks_of(
    stored: ShardToCut, records: Int64
) -> Iterator[tuple[Int64, ChunkRange]]:
    """Yields the chunks that hold some records of a shard, and which of these each."""
    footer = stored.footer
    ends = np.cumsum(footer.chunk_records)
    chunks = np.searchsorted(ends, records, side="right")
    for chunk in np.unique(chunks).tolist():
        begin, end = footer.chunk_offsets[[chunk, chunk + 1]].tolist()
        with stored.open(begin, end) as file:
            for part in walk_chunks(
                file,
                footer,
                path=stored.path,
                first_chunk=chunk,
                last_chunk=chunk + 1,
            ):
                yield records[chunks == chunk], part
