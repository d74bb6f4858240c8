"""The footer of ArrayRecord files, with the places of all chunks.

A file is a sequence of Riegeli chunks, interrupted at every multiple of 65,536 bytes
by a block header of 24 bytes; a footer chunk lists the data chunks, and the last
65,536 bytes have the footer's place. docs/reference/format.md has the tables. Sources:
riegeli/doc/riegeli_records_file_format.md, array_record/cpp/layout.proto.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from gristmill.dataset.arrayrecord.chunks import EncodedChunks
from gristmill.dataset.arrayrecord.simple_chunks import (
    BLOCK_BYTES,
    CHUNK_HEADER_BYTES,
    MAX_CHUNK_DECODED_BYTES,
    IntArray,
    check_blocks,
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
    chunk = EncodedChunks(
        logical(data, begin),
        np.array([0]),
        path="footer",
        max_decoded_bytes=end,
        hashed=hashed,
    )
    joined, lengths = chunk.join()
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
    """Returns the first bytes field of that number, or None."""
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
