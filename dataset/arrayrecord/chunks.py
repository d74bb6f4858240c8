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

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunk_hash import hash_bytes, hash_spans
from gristmill.dataset.arrayrecord.compression import COMPRESSIONS, decompress
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    TransposedChunkError,
)
from gristmill.dataset.base.varints import (
    MAX_VARINT_BYTES,
    decode_varints,
    varint_at,
)

BLOCK_BYTES = 1 << 16
BLOCK_HEADER_BYTES = 24

CHUNK_HEADER_BYTES = 40
HASH_BYTES = 8  # The header's own hash covers the rest of the header.

# No chunk of a valid file decodes to more: the official writer buffers whole chunks in
# memory. A larger length field counts as damage.
MAX_CHUNK_DECODED_BYTES = 1 << 31

SIMPLE, _TRANSPOSED = ord("r"), ord("t")  # Types of chunks.

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
    """Puts wanted records into a list, as far as the compiled part can.

    Args:
        files: int64 [files], their descriptors.
        data: The physical bytes of each chunk, logical bytes that hold all chunks, or
            None to read the files.
        chunks: Chunks, each of which has a wanted record.
        wanted: The records, in the order of the chunks.
        out: Receives each record at its place.

    Returns:
        The numbers of the chunks that are left: all if there is no compiled part.
    """
    decoder = compiled.decoder()
    if decoder is None:
        return list(range(len(chunks)))
    left: list[int] = decoder.pick(files, data, chunks, wanted, out)
    return left


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

# The computed hashes of a header and of the data after it.
_Hashes: TypeAlias = tuple[int, int] | None


def headers_of(buffer: bytes | memoryview, starts: IntArray) -> Table:
    """Returns the headers of chunks, `HEADER_DTYPE` [chunks].

    Raises ValueError if one is not in the buffer as a whole.
    """
    data = np.frombuffer(buffer, np.uint8)
    # A view with a header at every byte: only the chosen ones are copied.
    count = len(data) - CHUNK_HEADER_BYTES + 1
    if len(starts) and int(starts.max()) >= count:
        raise ValueError("a chunk's header reaches past the end of the data")
    return np.ndarray(max(0, count), HEADER_DTYPE, data, strides=(1,))[starts]


def _decode_chunk(
    view: memoryview, expected: int, limit: int, hashes: _Hashes, *, values: bool
) -> tuple[IntArray, bytes]:
    """Decodes one chunk; raises ValueError, which includes TransposedChunkError.

    Returns:
        The length of each record, int64 [records], and the records end to end, empty
        without `values`.
    """
    if len(view) < CHUNK_HEADER_BYTES + 2:
        raise ValueError("a chunk's header reaches past the end of the data")
    (header,) = np.frombuffer(view[:CHUNK_HEADER_BYTES], HEADER_DTYPE).tolist()
    header_hash, data_bytes, data_hash, kind, decoded_bytes = header
    _compare_hashes("header", hashes and hashes[0], header_hash)
    kind, records = kind & 0xFF, kind >> 8
    if kind == _TRANSPOSED:
        raise TransposedChunkError(
            "chunk is transposed",
            cure="read the file with array_record's own reader, and write its records "
            "with gristmill.dataset.Writer",
        )
    if kind != SIMPLE:
        raise ValueError(f"chunk type {kind:#04x}, not simple")
    end = CHUNK_HEADER_BYTES + data_bytes
    if end > len(view):
        raise ValueError("a chunk reaches past the end of the data")
    _compare_hashes("data", hashes and hashes[1], data_hash)
    compression = view[CHUNK_HEADER_BYTES]
    if compression not in COMPRESSIONS:
        raise ValueError(f"unknown compression type {compression:#04x}")
    sizes_bytes, at = varint_at(view, CHUNK_HEADER_BYTES + 1)
    if sizes_bytes > end - at:
        raise ValueError("a chunk's record sizes reach past its end")
    sizes, sizes_claim = _part(view[at : at + sizes_bytes], compression)
    packed, claim = _part(view[at + sizes_bytes : end], compression)
    # All sizes are checked against each other before any allocation.
    if decoded_bytes > limit:
        raise ValueError(
            f"a chunk claims to decode to {decoded_bytes:,} bytes, over the limit of "
            f"{limit:,}"
        )
    if claim != decoded_bytes:
        raise ValueError(
            f"a chunk's records claim to decode to {claim:,} bytes instead of "
            f"{decoded_bytes:,}"
        )
    most = min(MAX_VARINT_BYTES * records, MAX_CHUNK_DECODED_BYTES)
    if not records <= sizes_claim <= most:
        raise ValueError(
            f"the sizes of {records:,} records in a chunk claim to decode to "
            f"{sizes_claim:,} bytes"
        )
    if expected not in (-1, records):
        raise ValueError(
            f"a chunk says that it holds {records:,} records instead of {expected:,}"
        )
    lengths = np.array([decoded_bytes])
    if records != 1:  # Otherwise the length is that of the values.
        plain = decompress(compression, sizes, sizes_claim)
        lengths = decode_varints(np.frombuffer(plain, np.uint8))
        if len(lengths) != records:
            raise ValueError("a chunk does not hold as many sizes as records")
        # Each by itself first: a sum of impossible sizes could wrap around.
        if (lengths > decoded_bytes).any() or lengths.sum() != decoded_bytes:
            raise ValueError("the sizes of a chunk's records do not add up")
    return lengths, decompress(compression, packed, claim) if values else b""


def _compare_hashes(what: str, got: int | None, expected: int) -> None:
    if got not in (None, expected):
        raise ValueError(
            f"the hash of a chunk's {what} is {got:#018x} instead of {expected:#018x}"
        )


def _part(part: memoryview, compression: int) -> tuple[memoryview, int]:
    """Returns a part of a chunk, and the size that it claims to decode to."""
    if not compression:
        return part, len(part)
    try:
        claim, at = varint_at(part, 0)
    except IndexError:
        raise ValueError("a compressed part of a chunk is cut short") from None
    return part[at:], claim


def sums_of(values: IntArray, counts: IntArray) -> IntArray:
    """Returns the sums of runs of values: int64 [runs] for int64 [runs] counts."""
    sums = np.append(0, np.cumsum(values))
    ends = np.cumsum(counts)
    return np.asarray(sums[ends] - sums[ends - counts])


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
        if self._is_whole:
            wanted = np.zeros(counts.sum(), WANTED)
            wanted["chunk"] = np.repeat(np.arange(len(counts)), counts)
            wanted["place"] = places = np.arange(len(wanted))
            wanted["row"] = places - np.repeat(np.cumsum(counts) - counts, counts)
            wanted["crc32c"] = -1
            out: list[bytes] = [b""] * len(wanted)
            none = np.empty(0, np.int64)
            if not pick_records(none, self.buffer, self.table, wanted, out):
                return out
        return [r for _, lengths, values in self.each() for r in cut(values, lengths)]

    @property
    def _is_whole(self) -> bool:
        """Whether all chunks have records and are in the buffer: files may be cut."""
        begins, ends = self.table["begin"], self.table["end"]
        inside = (begins < ends) & (ends <= len(self.buffer))
        return bool((inside & (self.table["records"] > 0)).all())

    def checksum(self) -> tuple[npt.NDArray[np.uint32], IntArray]:
        """Returns crc32cs, uint32 [records], and lengths, int64 [records]."""
        crc32cs = np.empty(max(0, int(self.table["records"].sum())), np.uint32)
        if (known := self._natively(crc32cs)) is not None:
            return crc32cs, known
        found: list[int] = []
        sizes = [np.empty(0, np.int64)]
        for _, lengths, values in self.each():
            found += map(google_crc32c.value, cut(values, lengths))
            sizes.append(lengths)
        return np.array(found, np.uint32), np.concatenate(sizes)

    def lengths(self) -> IntArray:
        """Returns the lengths of all records, int64 [records], without decoding them.

        The hashes of chunks are compared where the table says so.
        """
        if (known := self._natively(np.empty(0, np.uint32))) is not None:
            return known
        sizes = [lengths for _, lengths, _ in self.each(values=False)]
        return np.concatenate([np.empty(0, np.int64), *sizes])

    def _natively(self, crc32cs: npt.NDArray[np.uint32]) -> IntArray | None:
        """Returns lengths by the compiled part, and fills in checksums if any."""
        decoder, counts = compiled.decoder(), self.table["records"]
        if decoder is None or not self._is_whole:
            return None
        lengths = np.empty(counts.sum(), np.int64)
        done = decoder.checksum(self.buffer, self.table, crc32cs, lengths)
        return lengths if done else None

    def each(
        self,
        explained: Callable[[int, Exception], Exception] | None = None,
        *,
        values: bool = True,
    ) -> Iterator[tuple[int, IntArray, bytes]]:
        """Decodes chunk after chunk, without the compiled part.

        Args:
            explained: Turns the number of a chunk and what is wrong with it into the
                error to raise, by default one about this file.
            values: Whether to decode the records, and not only their lengths.

        Yields:
            The number of a chunk among these, the lengths of its records, int64
            [records], and these end to end.
        """
        view, hashes = memoryview(self.buffer), self._hashes()
        columns = self.table[["begin", "end", "records", "limit"]].tolist()
        for number, (begin, end, records, limit) in enumerate(columns):
            try:
                got = hashes.get(number)
                found = _decode_chunk(
                    view[begin:end], records, limit, got, values=values
                )
            except (ValueError, IndexError) as e:
                raise (explained or self._error)(number, e) from e
            yield number, *found

    def _hashes(self) -> dict[int, _Hashes]:
        """Returns the hashes that are to be compared, all computed at once."""
        begin, end = (
            self.table["begin"],
            np.minimum(self.table["end"], len(self.buffer)),
        )
        fits = end - begin > CHUNK_HEADER_BYTES
        chosen = np.flatnonzero((self.table["hashed"] != 0) & fits)
        starts = begin[chosen]
        data_bytes = headers_of(self.buffer, starts)["data_size"]
        starts_of_data = starts + CHUNK_HEADER_BYTES
        # Data beyond the end of its chunk is reported as such.
        room = (end[chosen] - starts_of_data).astype(np.uint64)
        ends = starts_of_data + np.minimum(data_bytes, room).astype(np.int64)
        headers = hash_spans(self.buffer, starts + HASH_BYTES, starts_of_data)
        data = hash_spans(self.buffer, starts_of_data, ends)
        pairs = zip(headers.tolist(), data.tolist(), strict=True)
        return dict(zip(chosen.tolist(), pairs, strict=True))

    def _error(self, number: int, error: Exception) -> Exception:
        """Returns an error that names the chunk."""
        if self.numbers is not None:
            number = int(self.numbers[number])
        where = f"{self.path}, chunk {number:,}"
        if isinstance(error, TransposedChunkError):
            return TransposedChunkError(
                "ArrayRecord file has transposed chunks",
                where=where,
                cure="read it with array_record's ArrayRecordReader, and write its "
                "records with gristmill.dataset.Writer",
            )
        return CorruptShardError(
            "corrupt ArrayRecord chunk",
            where=where,
            got=str(error),
            cure="restore the file from a copy, or convert this shard again",
        )


def cut(values: bytes, lengths: IntArray) -> list[bytes]:
    """Returns records that lie end to end, one by one."""
    ends = [0, *np.cumsum(lengths).tolist()]
    return [values[begin:end] for begin, end in itertools.pairwise(ends)]
