"""The decoder of simple chunks, many at a time, for records, checksums or lengths."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.compression import decompress_parts
from gristmill.dataset.arrayrecord.simple_chunks import (
    MAX_CHUNK_DECODED_BYTES,
    BoolArray,
    IntArray,
    Parts,
    SimpleChunks,
    parse_chunks,
)
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    TransposedChunkError,
)
from gristmill.dataset.base.varints import decode_varints

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
    members: IntArray | None = None,
) -> Iterator[Any]:
    """Decompresses one part of each chunk, or member."""
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


def _cut(
    values: Iterator[Any], counts: IntArray, begins: IntArray, ends: IntArray
) -> Iterator[bytes]:
    """Yields the bytes [begin, end) of values, `counts` of each."""
    spans = zip(begins.tolist(), ends.tolist(), strict=True)
    for value, count in zip(values, counts.tolist(), strict=True):
        view = memoryview(value)
        for begin, end in itertools.islice(spans, count):
            yield bytes(view[begin:end])


@dataclasses.dataclass(frozen=True)
class EncodedChunks:
    """Simple chunks to decode: every compression, any number of records in each.

    The methods raise CorruptShardError if a chunk is damaged, TransposedChunkError if
    one is transposed.

    Attributes:
        buffer: Logical bytes (see `logical`) that hold the chunks whole.
        starts: int64 [chunks], where each chunk's header begins in the buffer.
        path: Path of the file, for messages.
        numbers: [chunks], their numbers in the file, for messages; by default counted
            from 0.
        records: int64 [chunks], number of records of each, from the footer or an index.
            Without it, one flipped bit can turn all records of a chunk into one.
        max_decoded_bytes: Maximum decoded bytes of a chunk, or int64 [chunks].
        ends: int64 [chunks], end of each; None for the buffer's end.
        hashed: bool [chunks], or one for all, whether to compare the chunk's own
            hashes: needed if no index has a checksum of every record.
    """

    buffer: bytes | memoryview
    starts: IntArray
    _: dataclasses.KW_ONLY
    path: str
    numbers: Sequence[int] | IntArray | None = None
    records: IntArray | None = None
    max_decoded_bytes: IntArray | int = MAX_CHUNK_DECODED_BYTES
    ends: IntArray | None = None
    hashed: BoolArray | bool = False

    def decode(self) -> list[bytes]:
        """Returns the records of all chunks, in order."""
        with self._explained():
            records, _ = self._decode()
            return list(map(bytes, records))

    def join(self) -> tuple[bytes, IntArray]:
        """Returns all records end to end, and their lengths, int64 [records]."""
        with self._explained():
            chunks = self._parse()
            values = _decode_parts(self.buffer, chunks, chunks.values)
            return b"".join(values), _lengths(self.buffer, chunks)

    def checksum(self) -> tuple[npt.NDArray[np.uint32], IntArray]:
        """Returns crc32cs, uint32 [records], and lengths, int64 [records]."""
        with self._explained():
            records, lengths = self._decode()
            given: Iterable[Any] = records
            if google_crc32c.implementation == "python":  # It accepts only bytes.
                given = map(bytes, records)
            crcs = map(google_crc32c.value, given)
            return np.fromiter(crcs, np.uint32, len(lengths)), lengths

    def measure(self) -> IntArray:
        """Returns int64 [records], the length of each; decodes no records."""
        with self._explained():
            return _lengths(self.buffer, self._parse())

    def survey(self) -> tuple[SimpleChunks, IntArray]:
        """Returns the places of the parts of chunks, and lengths, int64 [records]."""
        with self._explained():
            chunks = self._parse()
            return chunks, _lengths(self.buffer, chunks)

    def pick(self, chunk_of: IntArray, rows: IntArray) -> list[bytes]:
        """Returns only the requested records, in order.

        Args:
            chunk_of: int64 [records], the chunk of each, ascending; every chunk occurs.
            rows: int64 [records], the number of each within its chunk, below the
                chunk's number of records.
        """
        with self._explained():
            chunks = self._parse()
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

    def _parse(self) -> SimpleChunks:
        data = np.frombuffer(self.buffer, np.uint8)
        ends = len(data) if self.ends is None else self.ends
        chunks = parse_chunks(
            data, self.starts, ends, self.max_decoded_bytes, self.hashed
        )
        if self.records is not None:
            wrong = np.flatnonzero(chunks.records != self.records)
            if len(wrong):
                raise ValueError(
                    f"a chunk says that it holds {chunks.records[wrong[0]]:,} records "
                    f"instead of {self.records[wrong[0]]:,}"
                )
        return chunks

    def _decode(self) -> tuple[Iterator[Any], IntArray]:
        """Returns all records as one buffer, and their lengths, int64 [records]."""
        chunks = self._parse()
        lengths = _lengths(self.buffer, chunks)
        values = _decode_parts(self.buffer, chunks, chunks.values)
        if (chunks.records == 1).all():
            return values, lengths
        ends = np.cumsum(lengths)
        before = np.repeat(_before(chunks.values.decoded_bytes), chunks.records)
        ends -= before
        return _cut(values, chunks.records, ends - lengths, ends), lengths

    def _decode_one(self, index: int) -> None:
        names = ("starts", "records", "max_decoded_bytes", "ends", "hashed")
        columns = {name: getattr(self, name) for name in names}
        one: dict[str, Any] = {
            name: column[index : index + 1]
            for name, column in columns.items()
            if isinstance(column, np.ndarray)
        }
        collections.deque(dataclasses.replace(self, **one)._decode()[0], maxlen=0)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
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
