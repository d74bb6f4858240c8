"""Decoding simple chunks, many at a time, for records, checksums or lengths."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.compression import decompress_parts
from gristmill.dataset.arrayrecord.damaged_chunks import damaged_chunks
from gristmill.dataset.arrayrecord.simple_chunks import (
    MAX_CHUNK_DECODED_BYTES,
    IntArray,
    Parts,
    SimpleChunks,
    parse_chunks,
)
from gristmill.dataset.errors import CorruptShardError, TransposedChunkError
from gristmill.dataset.varints import decode_varints


def _decode_parts(
    buffer: bytes | memoryview,
    chunks: SimpleChunks,
    parts: Parts,
    members: IntArray | None = None,
) -> Iterator[Any]:
    """Decompresses one part of each chunk, or of each member."""
    chosen = slice(None) if members is None else members
    return decompress_parts(
        buffer,
        chunks.compression[chosen],
        parts.begin[chosen],
        parts.end[chosen],
        parts.decoded_bytes[chosen],
    )


def _lengths(buffer: bytes | memoryview, chunks: SimpleChunks) -> IntArray:
    """Returns int64 [records], the length of each record, without the records."""
    single = chunks.records == 1
    if single.all():
        # A chunk of one record: its length is that of the values.
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
    # Each by itself first: a sum of sizes that cannot be could wrap around.
    if (lengths > totals).any() or (_sums(lengths, records) != decoded_bytes).any():
        raise ValueError("the sizes of a chunk's records do not add up")
    return lengths


def _sums(values: IntArray, counts: IntArray) -> IntArray:
    """Returns the sums of runs of values: int64 [runs] for int64 [runs] counts."""
    sums = np.append(0, np.cumsum(values))
    ends = np.cumsum(counts)
    return np.asarray(sums[ends] - sums[ends - counts])


def _before(values: IntArray) -> IntArray:
    """Returns the sum of all values before each."""
    return np.asarray(np.cumsum(values) - values)


def _cut(
    values: Iterator[Any], counts: IntArray, begins: IntArray, ends: IntArray
) -> Iterator[bytes]:
    """Yields the bytes [begin, end) of values, so many of each as `counts` says."""
    spans = zip(begins.tolist(), ends.tolist(), strict=True)
    for value, count in zip(values, counts.tolist(), strict=True):
        view = memoryview(value)
        for begin, end in itertools.islice(spans, count):
            yield bytes(view[begin:end])


@dataclasses.dataclass(frozen=True)
class _Run:
    """Chunks to decode: the arguments of `decode_chunks`."""

    buffer: bytes | memoryview
    starts: IntArray
    path: str
    chunk_numbers: Sequence[int] | None
    chunk_records: IntArray | None
    max_decoded_bytes: IntArray | int
    ends: IntArray | None = None

    def parse(self) -> SimpleChunks:
        data = np.frombuffer(self.buffer, np.uint8)
        ends = len(data) if self.ends is None else self.ends
        chunks = parse_chunks(data, self.starts, ends, self.max_decoded_bytes)
        if self.chunk_records is not None:
            wrong = np.flatnonzero(chunks.records != self.chunk_records)
            if len(wrong):
                raise ValueError(
                    f"a chunk says that it holds {chunks.records[wrong[0]]:,} records "
                    f"instead of {self.chunk_records[wrong[0]]:,}"
                )
        return chunks

    def decode(self) -> tuple[Iterator[Any], IntArray]:
        """Returns all records with the buffer protocol, int64 [records] lengths."""
        chunks = self.parse()
        lengths = _lengths(self.buffer, chunks)
        values = _decode_parts(self.buffer, chunks, chunks.values)
        if (chunks.records == 1).all():
            return values, lengths
        ends = np.cumsum(lengths)
        before = np.repeat(_before(chunks.values.decoded_bytes), chunks.records)
        ends -= before
        return _cut(values, chunks.records, ends - lengths, ends), lengths

    def pick(self, chunk_of: IntArray, rows: IntArray) -> list[bytes]:
        """Returns some records, as `decode_records` describes it."""
        chunks = self.parse()
        values = _decode_parts(self.buffer, chunks, chunks.values)
        if (chunks.records == 1).all():
            records = list(map(bytes, values))
            if len(records) == len(chunk_of):
                return records
            return [records[chunk] for chunk in chunk_of.tolist()]
        lengths = _lengths(self.buffer, chunks)
        wanted = _before(chunks.records)[chunk_of] + rows
        before = _before(chunks.values.decoded_bytes)[chunk_of]
        ends = np.cumsum(lengths)[wanted] - before
        counts = np.bincount(chunk_of, minlength=len(chunks.records))
        return list(_cut(values, counts, ends - lengths[wanted], ends))

    def single(self, index: int) -> _Run:
        """Returns one chunk of the run as a run of its own."""
        one = slice(index, index + 1)
        limits = self.max_decoded_bytes
        return dataclasses.replace(
            self,
            starts=self.starts[one],
            chunk_records=None
            if self.chunk_records is None
            else self.chunk_records[one],
            max_decoded_bytes=limits[one] if isinstance(limits, np.ndarray) else limits,
            ends=None if self.ends is None else self.ends[one],
        )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turns errors of decoding into one that names the chunk."""
        try:
            yield
        except (ValueError, IndexError) as e:
            where = self.path
            error: Exception = e
            damaged = damaged_chunks(
                len(self.starts), self._decode_one, errors=(ValueError, IndexError)
            )
            if first := next(damaged, None):
                index, error = first
                numbers = self.chunk_numbers
                number = index if numbers is None else numbers[index]
                where = f"{self.path}, chunk {number:,}"
            if isinstance(error, TransposedChunkError):
                raise TransposedChunkError(
                    "transposed chunk",
                    where=where,
                    cure="write the file again without transpose:true, or read it "
                    "with the official reader",
                ) from e
            raise CorruptShardError(
                "corrupt ArrayRecord chunk",
                where=where,
                got=str(error),
                cure="restore the file from a copy, or convert this shard again",
            ) from e

    def _decode_one(self, index: int) -> None:
        records, _ = self.single(index).decode()
        for _ in records:
            pass


def decode_chunks(
    buffer: bytes | memoryview,
    starts: IntArray,
    *,
    path: str,
    chunk_numbers: Sequence[int] | None = None,
    chunk_records: IntArray | None = None,
    max_decoded_bytes: IntArray | int = MAX_CHUNK_DECODED_BYTES,
) -> list[bytes]:
    """Decodes simple chunks: every compression, any number of records in each.

    Args:
        buffer: Logical bytes (see `logical`) that hold the chunks whole.
        starts: int64 [chunks], where each chunk's header begins in the buffer.
        path: For messages.
        chunk_numbers: [chunks], their numbers in the file, for messages; by default
            they count from 0.
        chunk_records: int64 [chunks], how many records each has to hold, from the
            footer or an index. Without it, one flipped bit can make one record of
            all that are in a chunk.
        max_decoded_bytes: Most bytes that one chunk may decode to, or int64 [chunks].

    Returns:
        The records of all chunks, in order.

    Raises:
        CorruptShardError: A chunk is damaged.
        TransposedChunkError: A chunk is transposed.
    """
    run = _Run(buffer, starts, path, chunk_numbers, chunk_records, max_decoded_bytes)
    with run.explained():
        records, _ = run.decode()
        return list(map(bytes, records))


def decode_joined(
    buffer: bytes | memoryview,
    starts: IntArray,
    *,
    path: str,
    max_decoded_bytes: int = MAX_CHUNK_DECODED_BYTES,
) -> tuple[bytes, IntArray]:
    """Decodes chunks as `decode_chunks` does, and leaves their records end to end.

    Returns:
        All records, and int64 [records] the length of each.
    """
    run = _Run(buffer, starts, path, None, None, max_decoded_bytes)
    with run.explained():
        chunks = run.parse()
        values = _decode_parts(buffer, chunks, chunks.values)
        return b"".join(values), _lengths(buffer, chunks)


def decode_records(
    buffer: bytes | memoryview,
    starts: IntArray,
    ends: IntArray,
    *,
    chunks: IntArray,
    rows: IntArray,
    path: str,
    chunk_records: IntArray,
    max_decoded_bytes: IntArray,
) -> list[bytes]:
    """Decodes chunks as `decode_chunks` does, and makes only the records wanted.

    Args:
        buffer: Logical bytes that hold the chunks whole.
        starts: int64 [chunks], where each chunk's header begins in the buffer.
        ends: int64 [chunks], where each chunk has to be over.
        chunks: int64 [records], which of the chunks each wanted record is in, in
            order; all chunks are there.
        rows: int64 [records], the number of each within its chunk, below the chunk's
            number of records.
        path: For messages.
        chunk_records: int64 [chunks], how many records each has to hold.
        max_decoded_bytes: int64 [chunks], most bytes that each may decode to.

    Returns:
        The wanted records, in order.

    Raises:
        CorruptShardError: A chunk is damaged.
        TransposedChunkError: A chunk is transposed.
    """
    run = _Run(buffer, starts, path, None, chunk_records, max_decoded_bytes, ends)
    with run.explained():
        return run.pick(chunks, rows)


def checksum_chunks(
    buffer: bytes | memoryview,
    starts: IntArray,
    *,
    path: str,
    chunk_numbers: Sequence[int] | None = None,
    chunk_records: IntArray | None = None,
    max_decoded_bytes: IntArray | int = MAX_CHUNK_DECODED_BYTES,
) -> tuple[npt.NDArray[np.uint32], IntArray]:
    """Decodes chunks as `decode_chunks` does, for the checksums of their records.

    Returns:
        uint32 [records] crc32c of each record, and int64 [records] its length.
    """
    run = _Run(buffer, starts, path, chunk_numbers, chunk_records, max_decoded_bytes)
    with run.explained():
        records, lengths = run.decode()
        crcs = map(google_crc32c.value, records)
        return np.fromiter(crcs, np.uint32, len(lengths)), lengths


def measure_chunks(
    buffer: bytes | memoryview,
    starts: IntArray,
    *,
    path: str,
    chunk_numbers: Sequence[int] | None = None,
    chunk_records: IntArray | None = None,
    max_decoded_bytes: IntArray | int = MAX_CHUNK_DECODED_BYTES,
) -> IntArray:
    """Returns the lengths of the records of chunks, without decoding the records.

    Returns:
        int64 [records], in bytes.
    """
    run = _Run(buffer, starts, path, chunk_numbers, chunk_records, max_decoded_bytes)
    with run.explained():
        return _lengths(buffer, run.parse())
