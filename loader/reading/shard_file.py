"""An open shard: its bytes and its index."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from gristmill.dataset.arrayrecord.footer import BLOCK_BYTES, logical
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.storage.lookup import storage_for

# The type of a chunk is in its header at this offset.
_CHUNK_TYPE_AT = 24


class Bytes(Protocol):
    """The bytes of a file, by half-open ranges."""

    def __getitem__(self, range_bytes: slice, /) -> bytes | memoryview:
        """Returns the bytes of a range."""


class StoredBytes:
    """The bytes of an object, which cannot be mapped."""

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
    transposed: bool
    version: str | None = None
    number: int | None = None

    @property
    def has_crc32cs(self) -> bool:
        """Whether the index has a checksum of every record."""
        return len(self.index.crc32cs) == self.index.records

    def logical(self, begin: int, end: int) -> bytes | memoryview:
        """Returns the bytes of a half-open physical range without block headers."""
        return without_block_headers(self.data[begin:end], begin)


def without_block_headers(data: bytes | memoryview, begin: int) -> bytes | memoryview:
    """Returns physical bytes from the offset `begin` on, without block headers."""
    if (begin - 1) // BLOCK_BYTES != (begin + len(data) - 1) // BLOCK_BYTES:
        return logical(data, begin)
    return data


def is_transposed(chunk: bytes | memoryview, begin: int) -> bool:
    """Returns whether a chunk is transposed.

    Args:
        chunk: At least the physical bytes of its header.
        begin: Where they begin in the file.
    """
    header = without_block_headers(chunk[:BLOCK_BYTES], begin)
    return header[_CHUNK_TYPE_AT : _CHUNK_TYPE_AT + 1] == b"t"
