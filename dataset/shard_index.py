"""The index of one shard: where every chunk is, and the checksum of every record.

A reader needs nothing else to fetch a record: no look at the shard's own footer. The
file is little-endian, made to be memory-mapped, and opened without reading more than
its first 80 bytes. docs/format.md has the table of its fields.
"""

from __future__ import annotations

import dataclasses
import mmap
import struct
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord import Footer
from gristmill.dataset.chunk_codec import MAX_CHUNK_DECODED_BYTES
from gristmill.dataset.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.shard_report import ShardReport

MAGIC = b"GMINDEX\n"
VERSION = 1
HEADER_BYTES = 80

# magic, version, group_size, records, chunks, end of the last chunk, size of the
# shard, largest decoded chunk, base stride, report bytes, body crc, header crc.
_HEADER = struct.Struct("<8sIIqqqqqIIII8x")
_CRC_AT = 68
# A base of 64 bits every 64 chunks: 4.125 bytes a chunk instead of 8.
_STRIDE = 64

_CURE = "delete this index and run the conversion, or `gristmill index`, again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """An open index.

    Attributes:
        path: Where it came from, for messages.
        records: Number of records in the shard.
        chunks: Number of chunks.
        group_size: Records in every chunk but the last, 0 if that varies.
        file_bytes: Size of the shard.
        max_chunk_decoded_bytes: Size of the largest decoded chunk.
        crc32cs: uint32 [records], the checksum of each record.
    """

    path: str
    records: int
    chunks: int
    group_size: int
    file_bytes: int
    max_chunk_decoded_bytes: int
    crc32cs: npt.NDArray[np.uint32]
    _stride: int
    _bases: npt.NDArray[np.int64]
    _relative: npt.NDArray[np.uint32]
    _first_records: npt.NDArray[np.int64]
    _end_bytes: int
    _report: bytes
    _body_crc32c: int
    _body: memoryview

    def chunk_offsets(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns where chunks begin in the shard.

        Args:
            chunks: int64 [n], numbers of chunks; `self.chunks` gives the end of the
                last one, so chunk i is [chunk_offsets(i), chunk_offsets(i + 1)).

        Returns:
            int64 [n], physical byte offsets.
        """
        past = chunks == self.chunks
        inside = np.where(past, 0, chunks)
        if not self.chunks:
            return np.full(len(chunks), self._end_bytes, np.int64)
        offsets = self._bases[inside // self._stride] + self._relative[inside].astype(
            np.int64
        )
        return np.where(past, self._end_bytes, offsets)

    def chunk_of(
        self, records: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the chunk of each record and the record's place in it.

        Args:
            records: int64 [n], numbers of records in the shard.

        Returns:
            int64 [n] chunk, int64 [n] number of the record within the chunk.
        """
        if self.group_size:
            return records // self.group_size, records % self.group_size
        chunks = np.searchsorted(self._first_records, records, side="right") - 1
        return chunks, records - self._first_records[chunks]

    def chunk_records(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns how many records chunks hold: int64 [n] for int64 [n]."""
        if self.group_size:
            return np.minimum(self.group_size, self.records - chunks * self.group_size)
        ends = np.append(self._first_records[1:], self.records)
        return np.asarray(ends[chunks] - self._first_records[chunks])

    def report(self) -> ShardReport:
        """Returns what the writer of the shard counted."""
        return ShardReport.from_json(self._report, where=self.path)

    def check(self) -> None:
        """Reads the whole index and compares its checksum.

        Raises:
            InvalidDatasetError: It is damaged.
        """
        got = google_crc32c.value(bytes(self._body))
        if got != self._body_crc32c:
            raise InvalidDatasetError(
                "shard index is damaged",
                where=self.path,
                expected=f"crc32c {self._body_crc32c:#010x}",
                got=f"{got:#010x}",
                cure=_CURE,
            )


def encode_index(
    *,
    footer: Footer,
    crc32cs: npt.NDArray[np.uint32],
    report: ShardReport,
) -> bytes:
    """Returns the index of a shard as the bytes of its file.

    Args:
        footer: The shard's footer.
        crc32cs: uint32 [records], the checksum of each record.
        report: What was counted while it was written.
    """
    counts = footer.chunk_records
    chunks = len(counts)
    records = int(counts.sum())
    if len(crc32cs) != records:
        raise ValueError(f"{len(crc32cs)} checksums for {records} records")
    group_size = int(counts[0]) if chunks else 1
    regular = bool((counts[:-1] == group_size).all()) and (
        not chunks or 0 < counts[-1] <= group_size
    )
    offsets = footer.chunk_offsets
    stride = _STRIDE
    relative = offsets[:-1] - np.repeat(offsets[:-1:stride], stride)[:chunks]
    if (relative >= 1 << 32).any():
        # Chunks of 64 MiB and more on average: a base for each.
        stride, relative = 1, np.zeros(chunks, np.int64)
    first = np.empty(0, np.int64)
    if not regular:
        group_size, first = 0, np.cumsum(counts) - counts
    meta = report.to_json()
    body = b"".join(
        (
            offsets[:-1:stride].astype("<i8").tobytes(),
            first.astype("<i8").tobytes(),
            relative.astype("<u4").tobytes(),
            crc32cs.astype("<u4").tobytes(),
            meta,
        )
    )
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        group_size,
        records,
        chunks,
        int(offsets[-1]),
        report.file_bytes,
        int(footer.chunk_decoded_bytes.max(initial=0)),
        stride,
        len(meta),
        google_crc32c.value(body),
        0,
    )
    crc = google_crc32c.value(header[:_CRC_AT])
    return b"".join((header[:_CRC_AT], struct.pack("<I8x", crc), body))


def map_index(path: str) -> ShardIndex:
    """Opens the index in a local file, memory-mapped.

    Raises:
        InvalidDatasetError: It is no index, or damaged.
        FormatVersionError: Its version is unknown.
    """
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # An empty file cannot be mapped.
            return parse_index(b"", path=path)
    return parse_index(data, path=path)


def parse_index(data: bytes | mmap.mmap, *, path: str) -> ShardIndex:
    """Opens an index from its bytes, copying none of them.

    Args:
        data: The whole file.
        path: For messages.

    Raises:
        InvalidDatasetError: It is no index, or damaged.
        FormatVersionError: Its version is unknown.
    """

    def invalid(what: str, *, expected: Any = None, got: Any = None) -> Exception:
        return InvalidDatasetError(
            what, where=path, expected=expected, got=got, cure=_CURE
        )

    if len(data) < HEADER_BYTES or data[:8] != MAGIC:
        raise invalid("not a shard index", expected=MAGIC, got=bytes(data[:8]))
    (
        _,
        version,
        group_size,
        records,
        chunks,
        end_bytes,
        file_bytes,
        decoded,
        stride,
        report_bytes,
        body_crc,
        header_crc,
    ) = _HEADER.unpack_from(data)
    if version != VERSION:
        raise FormatVersionError(
            "shard index of an unknown version",
            where=path,
            expected=VERSION,
            got=version,
            cure="install the version of gristmill that wrote it, or a later one",
        )
    got = google_crc32c.value(bytes(data[:_CRC_AT]))
    if got != header_crc:
        raise invalid(
            "shard index has a damaged header",
            expected=f"crc32c {header_crc:#010x}",
            got=f"{got:#010x}",
        )
    if (
        min(records, chunks) < 0
        or not 0 <= end_bytes <= file_bytes
        or not 0 <= decoded <= MAX_CHUNK_DECODED_BYTES
        or stride < 1
        or (group_size and chunks != -(-records // group_size))
    ):
        raise invalid("shard index contradicts itself")
    bases = -(-chunks // stride)
    first = 0 if group_size else chunks
    sizes = (8 * bases, 8 * first, 4 * chunks, 4 * records, report_bytes)
    if len(data) != HEADER_BYTES + sum(sizes):
        raise invalid(
            "shard index has the wrong size",
            expected=f"{HEADER_BYTES + sum(sizes):,} bytes",
            got=f"{len(data):,}",
        )
    at = [HEADER_BYTES]
    for size in sizes:
        at.append(at[-1] + size)
    return ShardIndex(
        path=path,
        records=records,
        chunks=chunks,
        group_size=group_size,
        file_bytes=file_bytes,
        max_chunk_decoded_bytes=decoded,
        crc32cs=np.frombuffer(data, "<u4", records, at[3]),
        _stride=stride,
        _bases=np.frombuffer(data, "<i8", bases, at[0]),
        _first_records=np.frombuffer(data, "<i8", first, at[1]),
        _relative=np.frombuffer(data, "<u4", chunks, at[2]),
        _end_bytes=end_bytes,
        _report=bytes(memoryview(data)[at[4] : at[5]]),
        _body_crc32c=body_crc,
        _body=memoryview(data)[HEADER_BYTES:],
    )
