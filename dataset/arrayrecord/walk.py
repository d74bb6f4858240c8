"""A walk through an ArrayRecord file from start to end, in bounded memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from gristmill.dataset.arrayrecord.chunks import EncodedChunks
from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.arrayrecord.simple_chunks import (
    BLOCK_HEADER_BYTES,
    IntArray,
    blocks_before,
    check_blocks,
    logical,
)
from gristmill.dataset.base.errors import CorruptShardError

# Memory that Python takes for a record besides its bytes: most of that of tiny ones.
_OBJECT_BYTES = 48
RANGE_BYTES = 1 << 20  # Decodes to at most 4 MiB.
_REST_BYTES = 4 << 20
_ALL = slice(None)


def chunk_ranges(
    footer: Footer,
    *,
    first_chunk: int = 0,
    last_chunk: int | None = None,
    range_bytes: int = RANGE_BYTES,
) -> Iterator[tuple[int, int]]:
    """Yields half-open ranges of chunks small enough to be read and decoded at once.

    In order, they cover all chunks from the first to the last.

    Args:
        footer: Where the chunks are.
        first_chunk: The first chunk.
        last_chunk: The chunk after the last; None for all.
        range_bytes: Maximum bytes of a range in the file, and a quarter of the maximum
            that it decodes to, counting records as objects. A larger chunk is a range
            of its own.
    """
    last_chunk = len(footer.chunk_records) if last_chunk is None else last_chunk
    ends = footer.chunk_offsets[1 : last_chunk + 1]
    decoded = np.cumsum(
        (footer.chunk_decoded_bytes + _OBJECT_BYTES * footer.chunk_records)[:last_chunk]
    )
    first = first_chunk
    while first < last_chunk:
        file_limit = footer.chunk_offsets[first] + range_bytes
        done = decoded[first - 1] if first else 0
        last = min(
            int(np.searchsorted(ends, file_limit, side="right")),
            int(np.searchsorted(decoded, done + 4 * range_bytes, side="right")),
        )
        last = max(last, first + 1)
        yield first, last
        first = last


@dataclasses.dataclass(frozen=True)
class ChunkRange:
    """A range of chunks of a file, read but not yet decoded.

    Attributes:
        path: The file, for messages.
        footer: Its footer.
        first_chunk: The first chunk.
        last_chunk: The chunk after the last.
        first_record: Number of the first record.
        data: The bytes of the chunks, as stored in the file.
    """

    path: str
    footer: Footer
    first_chunk: int
    last_chunk: int
    first_record: int
    data: bytes

    @property
    def chunk_records(self) -> IntArray:
        """Records in each chunk, int64 [chunks]."""
        return self.footer.chunk_records[self.first_chunk : self.last_chunk]

    @property
    def chunk_decoded_bytes(self) -> IntArray:
        """Total size of the records of each chunk, int64 [chunks]."""
        return self.footer.chunk_decoded_bytes[self.first_chunk : self.last_chunk]

    @functools.cached_property
    def _logical(self) -> tuple[bytes | memoryview, IntArray]:
        """Logical bytes, and where each chunk begins in them, int64 [chunks]."""
        offsets = self.footer.chunk_offsets[self.first_chunk : self.last_chunk]
        begin = int(offsets[0])
        starts = offsets - begin - BLOCK_HEADER_BYTES * blocks_before(offsets, begin)
        return logical(self.data, begin), starts

    def encoded(
        self, chosen: slice | IntArray = _ALL, *, hashed: bool = False
    ) -> EncodedChunks:
        """Returns some chunks for decoding, counted from the first of the range.

        With `hashed`, the chunks' own hashes are compared.
        """
        buffer, starts = self._logical
        return EncodedChunks(
            buffer,
            starts[chosen],
            path=self.path,
            numbers=np.arange(self.first_chunk, self.last_chunk)[chosen],
            records=self.chunk_records[chosen],
            max_decoded_bytes=self.chunk_decoded_bytes[chosen],
            hashed=hashed,
        )

    def decode(self, *, hashed: bool) -> list[bytes]:
        """Returns all records.

        With `hashed`, the hashes of chunks and blocks are compared: needed if no index
        has a checksum of every record.

        Raises:
            CorruptShardError: A chunk is damaged.
            TransposedChunkError: A chunk is transposed.
        """
        if hashed:
            self._check_blocks()
        return self.encoded(hashed=hashed).decode()

    def _check_blocks(self) -> None:
        try:
            check_blocks(self.data, int(self.footer.chunk_offsets[self.first_chunk]))
        except ValueError as e:
            raise CorruptShardError(
                "corrupt block of an ArrayRecord file",
                where=self.path,
                got=e,
                cure="restore the file from a copy, or write it again",
            ) from e


def walk_chunks(
    file: BinaryIO,
    footer: Footer,
    *,
    path: str,
    first_chunk: int = 0,
    last_chunk: int | None = None,
    range_bytes: int = RANGE_BYTES,
) -> Iterator[ChunkRange]:
    """Yields ranges of chunks in order.

    Memory: a range of 1 MiB of the file (up to 4 MiB decoded), or one chunk if that
    is larger.

    Args:
        file: The file, at the start of the first chunk.
        footer: Where the chunks are.
        path: The file, for messages.
        first_chunk: The first chunk.
        last_chunk: The chunk after the last; None for all.
        range_bytes: Approximate bytes to read at a time; see `chunk_ranges`.
    """
    record = int(footer.chunk_records[:first_chunk].sum())
    for first, last in chunk_ranges(
        footer,
        first_chunk=first_chunk,
        last_chunk=last_chunk,
        range_bytes=range_bytes,
    ):
        offsets = footer.chunk_offsets
        data = read_bytes(file, int(offsets[last] - offsets[first]))
        yield ChunkRange(path, footer, first, last, record, data)
        record += int(footer.chunk_records[first:last].sum())


def walk_file(
    file: BinaryIO, footer: Footer | None, *, path: str, size_bytes: int
) -> Iterator[tuple[bytes, ChunkRange | None]]:
    """Yields all bytes of a file in order, with the chunks that they hold.

    Memory: as `walk_chunks`, or 4 MiB.

    Args:
        file: The file, at its start.
        footer: Where the chunks are; None if it cannot be read.
        path: Path of the file, for messages.
        size_bytes: Size of the file.
    """
    done = 0
    if footer is not None:
        yield read_bytes(file, int(footer.chunk_offsets[0])), None
        for chunks in walk_chunks(file, footer, path=path):
            yield chunks.data, chunks
        done = int(footer.chunk_offsets[-1])
    for begin in range(done, size_bytes, _REST_BYTES):
        yield read_bytes(file, min(_REST_BYTES, size_bytes - begin)), None


def read_bytes(file: BinaryIO, size_bytes: int) -> bytes:
    """Reads a number of bytes, fewer only at the end of the file."""
    data = file.read(size_bytes)
    if len(data) == size_bytes:
        return data
    pieces = [data]
    left = size_bytes - len(data)
    while left and (piece := file.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
