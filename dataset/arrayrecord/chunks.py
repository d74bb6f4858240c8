"""Simple chunks of Riegeli: their parts, the block headers between, and their decoder.

A chunk is a header of 40 bytes (header hash, data size, data hash, type and number of
records, decoded size), then one byte of compression type, a varint size of the
compressed record sizes, those, and the compressed records end to end. Source:
riegeli/doc/riegeli_records_file_format.md. The two hashes are compared if no index has
a crc32c of every record.

Positions in a file are *physical*: they count block headers. A run of bytes with the
block headers taken out is *logical*.

Chunks of zstd or without compression are decoded by the compiled part where there is
one. It leaves all others, and whatever is damaged, to the code here.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunk_hash import hash_bytes, hash_spans
from gristmill.dataset.arrayrecord.compression import COMPRESSIONS, decompress_parts
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    TransposedChunkError,
)
from gristmill.dataset.base.varints import (
    MAX_VARINT_BYTES,
    decode_varints,
    varints_at,
)

BLOCK_BYTES = 1 << 16
BLOCK_HEADER_BYTES = 24

CHUNK_HEADER_BYTES = 40
HASH_BYTES = 8  # The header's own hash covers the rest of the header.

# No chunk of a valid file decodes to more: the official writer buffers whole chunks in
# memory. A larger length field counts as damage.
MAX_CHUNK_DECODED_BYTES = 1 << 31

SIMPLE, _TRANSPOSED = ord("r"), ord("t")  # Types of chunks.
_KNOWN_COMPRESSION = np.isin(np.arange(256), COMPRESSIONS)

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

HEADER_DTYPE = np.dtype(
    [
        ("header_hash", "<u8"),
        ("data_size", "<u8"),
        ("data_hash", "<u8"),
        ("type_and_records", "<u8"),
        ("decoded_data_size", "<u8"),
    ]
)


def _int64s(*names: str) -> np.dtype[Any]:
    return np.dtype([(name, "<i8") for name in names])


CHUNKS = _int64s("file", "begin", "end", "records", "limit", "hashed")
"""A chunk: the number of its file, its bytes [begin, end), its records (-1 if they are
not known), the bytes that it may decode to, and whether to compare its hashes."""

WANTED = _int64s("chunk", "row", "number", "place", "crc32c")
"""A wanted record: its chunk, its number there and in the file, its place in the
result, and its checksum, -1 for none to compare with."""

# Rows of `CHUNKS` or `WANTED`.
Table: TypeAlias = np.ndarray[Any, np.dtype[np.void]]


def chunk_table(
    begin: IntArray,
    end: IntArray | int,
    *,
    records: IntArray | int = -1,
    limit: IntArray | int = MAX_CHUNK_DECODED_BYTES,
    hashed: bool = False,
) -> Table:
    """Returns the `CHUNKS` of one file or buffer: an array has a number for each."""
    table = np.zeros(len(begin), CHUNKS)
    columns = {"begin": begin, "end": end, "records": records, "limit": limit}
    for name, column in {**columns, "hashed": hashed}.items():
        table[name] = column
    return table


def pick_records(
    files: IntArray,
    data: Sequence[bytes] | bytes | memoryview | None,
    chunks: Table,
    wanted: Table,
    out: list[Any],
) -> list[int]:
    """Puts wanted records into a list by the compiled part.

    Args:
        files: int64 [files], their descriptors.
        data: The physical bytes of each chunk, logical bytes that hold all chunks, or
            None to read the files.
        chunks: Chunks, each of which has a wanted record.
        wanted: The records, in the order of the chunks.
        out: Gets each record at its place.

    Returns:
        The numbers of chunks that are left: all where there is no compiled part.
    """
    decoder = compiled.decoder()
    if decoder is None:
        return list(range(len(chunks)))
    left: list[int] = decoder.pick(files, data, chunks, wanted, out)
    return left


@dataclasses.dataclass(frozen=True)
class Parts:
    """One of the two parts of each chunk, still compressed. All are [chunks].

    buffer[begin[i] : end[i]] decodes to decoded_bytes[i] bytes.
    """

    begin: IntArray
    end: IntArray
    decoded_bytes: IntArray


@dataclasses.dataclass(frozen=True)
class SimpleChunks:
    """Parsed simple chunks of one logical buffer. All are [chunks]."""

    records: IntArray
    compression: npt.NDArray[np.uint8]
    sizes: Parts
    values: Parts


def parse_chunks(data: npt.NDArray[np.uint8], table: Table) -> SimpleChunks:
    """Parses the headers of chunks; raises ValueError where they are damaged."""
    starts, ends = table["begin"], table["end"]
    begin = starts + CHUNK_HEADER_BYTES
    if (begin + 2 > np.minimum(ends, len(data))).any():
        raise ValueError("a chunk's header reaches past the end of the data")
    # A view with a header at every byte: only the chosen ones are copied.
    count = max(0, len(data) - CHUNK_HEADER_BYTES + 1)
    header = np.ndarray(count, HEADER_DTYPE, data, strides=(1,))[starts]
    chosen = np.flatnonzero(table["hashed"])
    if len(chosen):
        rest = starts[chosen] + HASH_BYTES, begin[chosen]
        _compare("header", data, *rest, header["header_hash"][chosen])
    kinds = header["type_and_records"] & 0xFF
    if (kinds == _TRANSPOSED).any():
        raise TransposedChunkError(
            "chunk is transposed",
            cure="read the file with array_record's own reader, and write its records "
            "with gristmill.dataset.Writer",
        )
    if (kinds != SIMPLE).any():
        raise ValueError(f"chunk type {kinds[kinds != SIMPLE][0]:#04x}, not simple")
    if (header["data_size"] > (ends - begin).astype(np.uint64)).any():
        raise ValueError("a chunk reaches past the end of the data")
    end = begin + header["data_size"].astype(np.int64)
    if len(chosen):
        _compare("data", data, begin[chosen], end[chosen], header["data_hash"][chosen])
    compression = data[begin]
    unknown = compression[~_KNOWN_COMPRESSION[compression]]
    if len(unknown):
        raise ValueError(f"unknown compression type {unknown[0]:#04x}")
    sizes_bytes, sizes_begin = varints_at(data, begin + 1)
    if (sizes_bytes > end - sizes_begin).any():
        raise ValueError("a chunk's record sizes reach past its end")
    sizes_end = sizes_begin + sizes_bytes
    chunks = SimpleChunks(
        records=(header["type_and_records"] >> np.uint64(8)).astype(np.int64),
        compression=compression,
        sizes=_parts(data, compression, sizes_begin, sizes_end),
        values=_parts(data, compression, sizes_end, end),
    )
    _check_claims(chunks, header["decoded_data_size"], table["limit"])
    expected = table["records"]
    wrong = np.flatnonzero((chunks.records != expected) & (expected >= 0))
    if len(wrong):
        raise ValueError(
            f"a chunk says that it holds {chunks.records[wrong[0]]:,} records "
            f"instead of {expected[wrong[0]]:,}"
        )
    return chunks


def _compare(
    what: str,
    data: npt.NDArray[np.uint8],
    begin: IntArray,
    end: IntArray,
    expected: npt.NDArray[np.uint64],
) -> None:
    """Compares the hashes of a part of each chunk."""
    got = hash_spans(data, begin, end)
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        raise ValueError(
            f"the hash of a chunk's {what} is {got[wrong[0]]:#018x} instead of "
            f"{expected[wrong[0]]:#018x}"
        )


def _parts(
    data: npt.NDArray[np.uint8],
    compression: npt.NDArray[np.uint8],
    begin: IntArray,
    end: IntArray,
) -> Parts:
    decoded_bytes, begin = end - begin, begin.copy()
    # Compressed data begin with their decoded size.
    packed = np.flatnonzero(compression)
    decoded_bytes[packed], begin[packed] = varints_at(data, begin[packed])
    if (begin > end).any():
        raise ValueError("a compressed part of a chunk is cut short")
    return Parts(begin=begin, end=end, decoded_bytes=decoded_bytes)


def _check_claims(
    chunks: SimpleChunks, decoded_data_size: npt.NDArray[np.uint64], limits: IntArray
) -> None:
    """Checks all sizes against each other, before any allocation."""
    wrong = np.flatnonzero(decoded_data_size > limits.astype(np.uint64))
    if len(wrong):
        raise ValueError(
            f"a chunk claims to decode to {decoded_data_size[wrong[0]]:,} bytes, over "
            f"the limit of {limits[wrong[0]]:,}"
        )
    claims = chunks.values.decoded_bytes
    wrong = np.flatnonzero(claims != decoded_data_size.astype(np.int64))
    if len(wrong):
        raise ValueError(
            f"a chunk's records claim to decode to {claims[wrong[0]]:,} bytes instead "
            f"of {decoded_data_size[wrong[0]]:,}"
        )
    claims = chunks.sizes.decoded_bytes
    wrong = np.flatnonzero(
        (claims < chunks.records)
        | (claims > MAX_VARINT_BYTES * chunks.records)
        | (claims > MAX_CHUNK_DECODED_BYTES)
    )
    if len(wrong):
        raise ValueError(
            f"the sizes of {chunks.records[wrong[0]]:,} records in a chunk claim to "
            f"decode to {claims[wrong[0]]:,} bytes"
        )


def blocks_before(positions: IntArray | int, origin: IntArray | int) -> Any:
    """Returns the number of block headers that begin in [origin, position)."""
    return (positions - 1) // BLOCK_BYTES - (origin - 1) // BLOCK_BYTES


def logical(data: bytes | memoryview, begin: int) -> bytes | memoryview:
    """Returns the bytes of a file from a physical offset on without block headers.

    `begin`, the offset, must not lie inside a block header.
    """
    first_block = -(-begin // BLOCK_BYTES) * BLOCK_BYTES
    if first_block >= begin + len(data):
        return data
    view = memoryview(data)
    pieces = [view[: first_block - begin]]
    for block in range(first_block, begin + len(data), BLOCK_BYTES):
        start = block - begin + BLOCK_HEADER_BYTES
        pieces.append(view[start : block - begin + BLOCK_BYTES])
    return b"".join(pieces)


def check_blocks(data: bytes | memoryview, begin: int) -> None:
    """Compares the hashes of the block headers in some bytes of a file.

    `begin` is the physical offset of the bytes. Raises ValueError.
    """
    first_block = -(-begin // BLOCK_BYTES) * BLOCK_BYTES
    end = begin + len(data) - BLOCK_HEADER_BYTES
    for block in range(first_block, end + 1, BLOCK_BYTES):
        header = data[block - begin : block - begin + BLOCK_HEADER_BYTES]
        got, expected = hash_bytes(header[8:]), int.from_bytes(header[:8], "little")
        if got != expected:
            raise ValueError(
                f"the hash of the block header at byte offset {block:,} is {got:#018x} "
                f"instead of {expected:#018x}"
            )


# Errors of decoding a chunk.
CHUNK_ERRORS: tuple[type[GristmillError], ...] = (
    CorruptShardError,
    TransposedChunkError,
)

E = TypeVar("E", bound=Exception)


def damaged_chunks(
    count: int, decode: Callable[[int], object], *, errors: tuple[type[E], ...]
) -> Iterator[tuple[int, E]]:
    """Decodes chunks one at a time, and yields those that cannot be decoded.

    Args:
        count: Number of chunks.
        decode: Decodes chunk 0, 1, ... of them.
        errors: Errors of `decode` for a damaged chunk; they are yielded with it.
    """
    for chunk in range(count):
        try:
            decode(chunk)
        except errors as error:
            yield chunk, error


def _decode_parts(
    buffer: bytes | memoryview,
    chunks: SimpleChunks,
    parts: Parts,
    members: IntArray | slice = slice(None),
) -> Iterator[bytes]:
    """Decompresses one part of each chunk, or member."""
    return decompress_parts(
        buffer,
        chunks.compression[members],
        parts.begin[members],
        parts.end[members],
        parts.decoded_bytes[members],
    )


def _lengths(buffer: bytes | memoryview, chunks: SimpleChunks) -> IntArray:
    """Returns int64 [records], the length of each record, without the records."""
    single = chunks.records == 1
    if single.all():
        # The length of a single record is that of the values.
        return chunks.values.decoded_bytes
    grouped = np.flatnonzero(~single)
    sizes = list(_decode_parts(buffer, chunks, chunks.sizes, grouped))
    lengths = _grouped_lengths(
        sizes, chunks.records[grouped], chunks.values.decoded_bytes[grouped]
    )
    if len(grouped) == len(single):
        return lengths
    in_group = np.repeat(~single, chunks.records)
    merged = np.empty(len(in_group), np.int64)
    merged[in_group] = lengths
    merged[~in_group] = chunks.values.decoded_bytes[single]
    return merged


def _grouped_lengths(
    sizes: list[Any], records: IntArray, decoded_bytes: IntArray
) -> IntArray:
    """Decodes the record sizes of chunks, all at once, and checks that they add up."""
    data = np.frombuffer(b"".join(sizes), np.uint8)
    part_bytes = np.fromiter(map(len, sizes), np.int64, len(sizes))
    part_ends = np.cumsum(part_bytes)
    lasts = data < 0x80  # The last byte of each varint.
    if not lasts[part_ends[part_bytes > 0] - 1].all():
        raise ValueError("the last size of a chunk's records is cut short")
    varints = np.append(0, np.cumsum(lasts))
    if (varints[part_ends] - varints[part_ends - part_bytes] != records).any():
        raise ValueError("a chunk does not hold as many sizes as records")
    lengths = decode_varints(data)
    totals = np.repeat(decoded_bytes, records)
    # Each by itself first: a sum of impossible sizes could wrap around.
    if (lengths > totals).any() or (sums_of(lengths, records) != decoded_bytes).any():
        raise ValueError("the sizes of a chunk's records do not add up")
    return lengths


def sums_of(values: IntArray, counts: IntArray) -> IntArray:
    """Returns the sums of runs of values: int64 [runs] for int64 [runs] counts."""
    sums = np.append(0, np.cumsum(values))
    ends = np.cumsum(counts)
    return np.asarray(sums[ends] - sums[ends - counts])


def _before(values: IntArray) -> IntArray:
    """Returns the sum of all values before each."""
    return np.asarray(np.cumsum(values) - values)


def _places(counts: IntArray) -> IntArray:
    """Returns the number of each record in its chunk: int64 [records]."""
    return np.arange(counts.sum()) - np.repeat(_before(counts), counts)


@dataclasses.dataclass(frozen=True)
class EncodedChunks:
    """Simple chunks to decode: every compression, any number of records in each.

    The methods raise CorruptShardError if a chunk is damaged, TransposedChunkError if
    one is transposed.

    Attributes:
        buffer: Logical bytes (see `logical`) that hold the chunks whole.
        table: The chunks. Without their `records`, from the footer or an index, one
            flipped bit can turn all records of a chunk into one. Their hashes have to
            be compared if no index has a checksum of every record.
        path: Path of the file, for messages.
        numbers: [chunks], their numbers in the file, for messages; by default counted
            from 0.
    """

    buffer: bytes | memoryview
    table: Table
    _: dataclasses.KW_ONLY
    path: str
    numbers: Sequence[int] | IntArray | None = None

    def decode(self) -> list[bytes]:
        """Returns the records of all chunks, in order."""
        counts = self.table["records"]
        if (counts > 0).all():
            wanted = np.zeros(counts.sum(), WANTED)
            wanted["chunk"] = np.repeat(np.arange(len(counts)), counts)
            wanted["row"], wanted["crc32c"] = _places(counts), -1
            wanted["place"] = np.arange(len(wanted))
            out: list[bytes] = [b""] * len(wanted)
            none = np.empty(0, np.int64)
            if not pick_records(none, self.buffer, self.table, wanted, out):
                return out
        with self._explained():
            return list(self._decode()[0])

    def join(self) -> tuple[bytes, IntArray]:
        """Returns all records end to end, and their lengths, int64 [records]."""
        with self._explained():
            chunks = self._parse()
            values = _decode_parts(self.buffer, chunks, chunks.values)
            return b"".join(values), _lengths(self.buffer, chunks)

    def checksum(self) -> tuple[npt.NDArray[np.uint32], IntArray]:
        """Returns crc32cs, uint32 [records], and lengths, int64 [records]."""
        decoder, counts = compiled.decoder(), self.table["records"]
        if decoder is not None and (counts > 0).all():
            total = int(counts.sum())
            columns = np.empty(total, np.uint32), np.empty(total, np.int64)
            if decoder.checksum(self.buffer, self.table, *columns):
                return columns
        with self._explained():
            records, lengths = self._decode()
            crcs = map(google_crc32c.value, records)
            return np.fromiter(crcs, np.uint32, len(lengths)), lengths

    def survey(self) -> tuple[SimpleChunks, IntArray]:
        """Returns the places of the parts of chunks, and lengths, int64 [records]."""
        with self._explained():
            chunks = self._parse()
            return chunks, _lengths(self.buffer, chunks)

    def pick(self, wanted: Table) -> list[bytes]:
        """Returns only the wanted records, in order; every chunk has one of them."""
        with self._explained():
            chunks = self._parse()
            firsts = _before(chunks.records)
            rows = firsts[wanted["chunk"]] + wanted["row"]
            counts = np.bincount(wanted["chunk"], minlength=len(firsts))
            return list(self._cut(chunks, rows, counts)[0])

    def _parse(self) -> SimpleChunks:
        return parse_chunks(np.frombuffer(self.buffer, np.uint8), self.table)

    def _decode(self) -> tuple[Iterator[bytes], IntArray]:
        """Returns all records, and their lengths, int64 [records]."""
        chunks = self._parse()
        return self._cut(chunks, np.arange(chunks.records.sum()), chunks.records)

    def _cut(
        self, chunks: SimpleChunks, rows: IntArray, counts: IntArray
    ) -> tuple[Iterator[bytes], IntArray]:
        """Returns some of all records, `counts` of each chunk, and their lengths."""
        lengths = _lengths(self.buffer, chunks)
        before = np.repeat(_before(chunks.values.decoded_bytes), counts)
        ends = np.cumsum(lengths)[rows] - before
        lengths = lengths[rows]
        spans = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        values = _decode_parts(self.buffer, chunks, chunks.values)
        pieces = zip(values, counts.tolist(), strict=True)
        return (
            value[begin:end]
            for value, count in pieces
            for begin, end in itertools.islice(spans, count)
        ), lengths

    def _decode_one(self, index: int) -> None:
        one = dataclasses.replace(self, table=self.table[index : index + 1])
        collections.deque(one._decode()[0], maxlen=0)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns errors of decoding into one that names the chunk."""
        try:
            yield
        except (ValueError, IndexError) as e:
            where = self.path
            error: Exception = e
            damaged = damaged_chunks(
                len(self.table), self._decode_one, errors=(ValueError, IndexError)
            )
            if first := next(damaged, None):
                index, error = first
                number = index if self.numbers is None else self.numbers[index]
                where = f"{self.path}, chunk {number:,}"
            if isinstance(error, TransposedChunkError):
                raise TransposedChunkError(
                    "ArrayRecord file has transposed chunks",
                    where=where,
                    cure="read it with array_record's ArrayRecordReader, and write its "
                    "records with gristmill.dataset.Writer",
                ) from e
            raise CorruptShardError(
                "corrupt ArrayRecord chunk",
                where=where,
                got=str(error),
                cure="restore the file from a copy, or convert this shard again",
            ) from e
