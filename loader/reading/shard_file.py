"""An open shard: its bytes and its index; how much is read and kept open at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import os
from collections.abc import Sequence
from typing import Protocol

from gristmill.dataset.arrayrecord.footer import BLOCK_BYTES, logical
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.storage.lookup import storage_for

# The type of a chunk is in its header at this offset.
_CHUNK_TYPE_AT = 24


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Sizes that decide how records are read, and not which.

    Attributes:
        part_bytes: A batch is decoded in parts of this size, as it is in the files:
            memory follows the records that are wanted, and not the batch's size.
        large_chunk_bytes: A larger chunk of one record is decoded by itself, without
            being copied.
        large_group_bytes: So is a larger chunk of many records if one is wanted: it is
            decoded no further than to the end of that record.
        open_shards: Maximum shards that are kept open. Linux allows a process 65,530
            maps, and a shard's index takes one.
        used_shards: Maximum shards that a reader uses at a time besides those.
    """

    part_bytes: int = 4 << 20
    large_chunk_bytes: int = 24 << 10
    large_group_bytes: int = 128 << 10
    open_shards: int = 24_000
    used_shards: int = 4_000


READ_LIMITS = ReadLimits()

_descriptor = operator.attrgetter("descriptor")


class Bytes(Protocol):
    """The bytes of a file, by half-open ranges.

    Attributes:
        descriptor: Descriptor of an open local file; -1 for others.
    """

    descriptor: int

    def __getitem__(self, range_bytes: slice, /) -> bytes:
        """Returns the bytes of a range."""


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


class StoredBytes:
    """The bytes of an object."""

    descriptor = -1

    def __init__(self, path: str):
        self._path = path

    def __getitem__(self, range_bytes: slice) -> bytes:
        """Reads the bytes of a range."""
        storage = storage_for(self._path)
        return storage.read(self._path, range_bytes.start, range_bytes.stop)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardFile:
    """An open shard.

    Attributes:
        path: The shard.
        data: Its bytes.
        index: Where its records are.
        transposed: Whether only the official reader can decode it. False for shards in
            object storage, which are opened without reading them.
        version: The generation to read, of a shard in object storage; None for a
            local file.
        number: Its number in the dataset, of a shard in object storage or a copy of
            one; None for others.
    """

    path: str
    data: Bytes
    index: ShardIndex
    transposed: bool = False
    version: str | None = None
    number: int | None = None

    @property
    def has_crc32cs(self) -> bool:
        """Whether the index has a checksum of every record."""
        return len(self.index.crc32cs) == self.index.records


def without_block_headers(data: bytes, begin: int) -> bytes | memoryview:
    """Returns physical bytes from the offset `begin` on, without block headers."""
    if (begin - 1) // BLOCK_BYTES != (begin + len(data) - 1) // BLOCK_BYTES:
        return logical(data, begin)
    return data


def is_transposed(chunk: bytes, begin: int) -> bool:
    """Returns whether the chunk that begins at an offset is transposed."""
    header = without_block_headers(chunk[:BLOCK_BYTES], begin)
    return header[_CHUNK_TYPE_AT : _CHUNK_TYPE_AT + 1] == b"t"
