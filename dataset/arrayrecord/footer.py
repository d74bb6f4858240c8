"""The footer of ArrayRecord files, and a walk through the chunks that it lists.

A file is a sequence of Riegeli chunks, interrupted at every multiple of 65,536 bytes
by a block header of 24 bytes; a footer chunk lists the data chunks, and the last
65,536 bytes have the footer's place. docs/reference/format.md has the tables. Sources:
riegeli/doc/riegeli_records_file_format.md, array_record/cpp/layout.proto.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from gristmill.dataset.arrayrecord.chunks import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    CHUNK_HEADER_BYTES,
    MAX_CHUNK_DECODED_BYTES,
    EncodedChunks,
    IntArray,
    blocks_before,
    check_blocks,
    chunk_table,
    logical,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import CorruptShardError, GristmillError
from gristmill.dataset.base.varints import decode_varints, message_fields, varint_at
from gristmill.dataset.formats.file_formats import ARRAY_RECORD, HEAD_BYTES, format_of

MAGIC = 0x71930E704FDAE05E  # array_record::kMagic, in the postscript.
_BLOCK_ENTRIES = 1 << 16  # Bytes of a footer to parse at once.

ReadRange = Callable[[int, int], bytes | memoryview]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footer:
    """The places of the data chunks of a file, from its own footer.

    Attributes:
        chunk_offsets: int64 [chunks + 1]; chunk i lies in the half-open physical
            range chunk_offsets[i] to chunk_offsets[i + 1].
        chunk_records: int64 [chunks], records in each chunk.
        chunk_decoded_bytes: int64 [chunks], total size of the records of each.
        writer_options: The options the writer recorded, such as `group_size:1,...`.
    """

    chunk_offsets: IntArray
    chunk_records: IntArray
    chunk_decoded_bytes: IntArray
    writer_options: str

    @property
    def records(self) -> int:
        """Number of records in the file."""
        return int(self.chunk_records.sum())

    @property
    def options(self) -> WriterOptions:
        """The options to encode records as they were, by this or another writer."""
        group, compression = max(int(self.chunk_records.max(initial=0)), 1), "zstd"
        for option in self.writer_options.split(","):
            name, _, value = option.partition(":")
            if name in ("zstd", "brotli", "snappy", "uncompressed"):
                compression = option
            elif (
                name == "group_size"
                and value.isdecimal()
                and len(self.chunk_records) < 2
            ):
                group = max(group, int(value))
        return WriterOptions(group_size=group, compression=compression)


def read_footer(
    read: ReadRange, size_bytes: int, *, path: str, hashed: bool = True
) -> Footer:
    """Reads the footer of an ArrayRecord file of `size_bytes` bytes.

    Its hashes are compared, unless the caller checks it in another way and passes
    `hashed=False`. Raises CorruptShardError if the file is truncated, damaged, or not
    an ArrayRecord file.
    """
    try:
        return _read_footer(read, size_bytes, path, hashed)
    except CorruptShardError:
        found = format_of(bytes(read(0, min(size_bytes, HEAD_BYTES))))
        if found is None or found.name == ARRAY_RECORD:
            raise
        raise CorruptShardError(
            f"not an ArrayRecord file, but {found.name}",
            where=path,
            expected="an ArrayRecord file, whole",
            got=f"the first bytes of {found.name}",
            cure=found.cure,
        ) from None


def _read_footer(read: ReadRange, size_bytes: int, path: str, hashed: bool) -> Footer:
    cure = "the file is truncated, damaged or no ArrayRecord file: write it again"
    if size_bytes < 2 * BLOCK_BYTES or size_bytes % BLOCK_BYTES:
        raise CorruptShardError(
            "file size does not fit an ArrayRecord file",
            where=path,
            expected=f"a multiple of {BLOCK_BYTES:,} bytes, at least two",
            got=f"{size_bytes:,} bytes",
            cure=cure,
        )
    tail = size_bytes - BLOCK_BYTES
    try:
        joined, lengths = _records(read, tail, size_bytes, hashed)
        begin = _footer_offset(_fields(joined[: lengths[0]]), tail)
        # Chunks take more bytes in a file than their entries in its footer.
        return _parse_footer(*_records(read, begin, tail, hashed), begin)
    except (CorruptShardError, IndexError, ValueError) as e:
        raise CorruptShardError(
            "ArrayRecord footer cannot be read",
            where=path,
            got=(e.got or e.what) if isinstance(e, GristmillError) else e,
            cure=cure,
        ) from e


def _records(
    read: ReadRange, begin: int, end: int, hashed: bool
) -> tuple[bytes, IntArray]:
    """Returns the records, at least one, of the chunk in [begin, end).

    They lie end to end; int64 [records] are their lengths.
    """
    data = read(begin, end)
    if hashed:
        check_blocks(data, begin)
    chunk = logical(data, begin)
    table = chunk_table(np.array([0]), len(chunk), limit=end, hashed=hashed)
    ((_, lengths, joined),) = EncodedChunks(chunk, table, path="footer").each()
    if not len(lengths):
        raise ValueError("it holds no records")
    return joined, lengths


def _footer_offset(postscript: dict[int, int], tail: int) -> int:
    if postscript.get(2) != MAGIC:
        raise ValueError("the postscript has the wrong magic number")
    begin = postscript.get(1, 0)
    if not CHUNK_HEADER_BYTES <= begin < tail:
        raise ValueError(f"the footer's offset {begin:,} lies outside of the file")
    return begin


def _parse_footer(joined: bytes, lengths: IntArray, begin: int) -> Footer:
    """Returns the footer that begins at `begin`; raises ValueError if it is wrong."""
    about = _fields_bytes(joined[: lengths[0]], 1)
    claims = _fields(about)
    starts, decoded, counts = _footer_entries(joined[lengths[0] :], lengths[1:])
    if (counts < 0).any() or (counts > MAX_CHUNK_DECODED_BYTES).any():
        raise ValueError("a chunk has an impossible number of records")
    large = np.flatnonzero((decoded < 0) | (decoded > MAX_CHUNK_DECODED_BYTES))
    if len(large):
        raise ValueError(
            f"chunk {large[0]:,} decodes to {decoded[large[0]]:,} bytes; the most that "
            f"gristmill reads is {MAX_CHUNK_DECODED_BYTES:,}"
        )
    expected = claims.get(2, 0), claims.get(3, 0)
    got = len(starts), int(counts.sum())
    if expected != got:
        raise ValueError(
            f"it counts {expected[0]:,} chunks and {expected[1]:,} records, and lists "
            f"{got[0]:,} and {got[1]:,}"
        )
    offsets = np.append(starts, begin)
    if (np.diff(offsets) < CHUNK_HEADER_BYTES).any() or (starts < 0).any():
        raise ValueError("it lists chunks out of order")
    return Footer(
        chunk_offsets=offsets,
        chunk_records=counts,
        chunk_decoded_bytes=decoded,
        writer_options=_fields_bytes(about, 4).decode(),
    )


def _fields(message: bytes) -> dict[int, int]:
    """Returns the numeric fields of a message."""
    numbers = {}
    for number, wire, data in message_fields(message):
        if wire == 0:
            numbers[number], _ = varint_at(data, 0)
        elif wire == 1:
            numbers[number] = int.from_bytes(data, "little")
    return numbers


def _fields_bytes(message: bytes, number: int) -> bytes:
    """Returns the first bytes field of that number, empty if there is none."""
    for found, wire, data in message_fields(message):
        if (found, wire) == (number, 2):
            return data
    return b""


def _footer_entries(
    joined: bytes, lengths: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Parses footer records: {1: chunk_offset, 2: decoded_data_size, 3: num_records}.

    Many at once: there is one for each chunk, and plain Python takes 2 us each. Not all
    at once, as that takes ten times the memory of the result.
    """
    ends = np.append(0, np.cumsum(lengths))
    blocks = []
    for first in range(0, max(len(lengths), 1), _BLOCK_ENTRIES):
        some = lengths[first : first + _BLOCK_ENTRIES]
        begin, end = ends[first], ends[first + len(some)]
        blocks.append(_block_entries(joined[begin:end], some))
    starts, decoded, counts = map(np.concatenate, zip(*blocks, strict=True))
    return starts, decoded, counts


def _block_entries(
    joined: bytes, lengths: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    varints = decode_varints(np.frombuffer(joined, np.uint8))
    if len(varints) == 6 * len(lengths):
        table = varints.reshape(-1, 6)
        if (table[:, 0::2] == np.array([0x08, 0x10, 0x18])).all():
            return table[:, 1].copy(), table[:, 3].copy(), table[:, 5].copy()
    # A field that is zero is left out, so chunks of empty records come here.
    ends = np.cumsum(lengths).tolist()
    rows = [_fields(joined[a:b]) for a, b in itertools.pairwise([0, *ends])]
    return (
        np.array([row.get(1, 0) for row in rows], np.int64),
        np.array([row.get(2, 0) for row in rows], np.int64),
        np.array([row.get(3, 0) for row in rows], np.int64),
    )


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
        table = chunk_table(
            starts,
            np.append(starts[1:], len(buffer)),
            records=self.chunk_records,
            limit=self.chunk_decoded_bytes,
            hashed=hashed,
        )
        numbers = np.arange(self.first_chunk, self.last_chunk)[chosen]
        table = np.ascontiguousarray(table[chosen])
        return EncodedChunks(buffer, table, path=self.path, numbers=numbers)

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
