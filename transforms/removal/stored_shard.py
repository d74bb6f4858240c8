"""A stored shard that is to be cut, with its index."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_copier import StoredShard
from gristmill.dataset.arrayrecord.walk import walk_chunks
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


def lengths_of(stored: ShardToCut, records: Int64) -> Int64:
    """Returns the lengths of some records of a shard, rising: int64 [records]."""
    footer, found = stored.footer, [np.empty(0, np.int64)]
    ends = np.cumsum(footer.chunk_records)
    chunks = np.searchsorted(ends, records, side="right")
    for chunk in np.unique(chunks).tolist():
        begin, end = footer.chunk_offsets[[chunk, chunk + 1]].tolist()
        own = records[chunks == chunk]
        with stored.open(begin, end) as file:
            for part in walk_chunks(
                file,
                footer,
                path=stored.path,
                first_chunk=chunk,
                last_chunk=chunk + 1,
            ):
                sizes = part.encoded(hashed=True).measure()
                found.append(sizes[own - part.first_record])
    return np.concatenate(found)
