"""The index of one shard: the place of every chunk and the checksum of every record.

A reader needs nothing else to fetch a record, not even the shard's footer. The file is
little-endian, made to be memory-mapped, and opened by reading only its first 80 bytes.
After it comes the place of every record in its source, which readers neither map nor
fetch. docs/reference/format.md has the table of its fields.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import mmap
import os
import re
import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunks import MAX_CHUNK_DECODED_BYTES
from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
    StorageError,
    SystemLimitError,
    parsed,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.local import open_regular

MAGIC = b"GMINDEX\n"
# Magic of an index without checksums and report: only caches of loaders hold these.
_FOOTER_MAGIC = b"GMFOOTR\n"
VERSION = 1
HEADER_BYTES = 80

# magic, version, group_size, records, chunks, end of the last chunk, size of the
# shard, largest decoded chunk, base stride, report bytes, body crc, header crc, bytes
# of the places after the report.
HEADER = struct.Struct("<8sIIqqqqqIIIIQ")
CRC_AT = 68
# A 64-bit base every 64 chunks: 4.125 bytes a chunk instead of 8.
_STRIDE = 64

# Found in the report, as quotes within its texts are escaped.
_FILE_CRC32C = re.compile(rb'"file_crc32c":(\d+)')

_CURE = "delete this index and run the conversion, or `gristmill index`, again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """An open index.

    Attributes:
        path: Where it came from, for messages.
        records: Number of records in the shard.
        chunks: Number of chunks.
        group_size: Records in every chunk but the last, 0 if it varies.
        file_bytes: Size of the shard.
        max_chunk_decoded_bytes: Size of the largest decoded chunk.
        crc32cs: uint32 [records], the checksum of each record; uint32 [0] in an
            index made from a footer alone.
        index_bytes: Bytes of its file before the places of records.
    """

    path: str
    records: int
    chunks: int
    group_size: int
    file_bytes: int
    max_chunk_decoded_bytes: int
    crc32cs: npt.NDArray[np.uint32]
    index_bytes: int
    _stride: int
    _bases: npt.NDArray[np.int64]
    _relative: npt.NDArray[np.uint32]
    _first_records: npt.NDArray[np.int64]
    _end_bytes: int
    _report: memoryview
    _body_crc32c: int
    _body: memoryview
    _places_bytes: int
    _places: memoryview

    def chunk_offsets(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the physical byte offsets of chunks in the shard: int64 [n].

        Args:
            chunks: int64 [n], numbers of chunks; `self.chunks` gives the end of the
                last one, so chunk i is [chunk_offsets(i), chunk_offsets(i + 1)).
        """
        if not self.chunks:
            return np.full(len(chunks), self._end_bytes, np.int64)
        inside = np.minimum(chunks, self.chunks - 1)
        offsets = self._bases.take(inside // self._stride)
        offsets += self._relative.take(inside)
        offsets[chunks == self.chunks] = self._end_bytes
        return offsets

    def chunk_of(
        self, records: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the chunk of each record, and its place there: int64 [n] each."""
        if self.group_size == 1:
            return records, np.zeros_like(records)
        if self.group_size:
            chunks = records // self.group_size
            return chunks, records - self.group_size * chunks
        chunks = np.searchsorted(self._first_records, records, side="right") - 1
        return chunks, records - self._first_records[chunks]

    def chunk_records(self, chunks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the number of records in each chunk: int64 [n] for int64 [n]."""
        if self.group_size:
            return np.minimum(self.group_size, self.records - chunks * self.group_size)
        after = np.minimum(chunks + 1, self.chunks - 1)
        ends = np.where(
            chunks + 1 < self.chunks, self._first_records[after], self.records
        )
        return np.asarray(ends - self._first_records[chunks])

    def place_records(self, records: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the same as `find_records`, faster for many records: int64 [n, 5]."""
        table = np.empty((len(records), 5), np.int64)
        chunks, table[:, 4] = self.chunk_of(records)
        table[:, 0] = chunks
        table[:, 1] = self.chunk_offsets(chunks)
        table[:, 2] = self.chunk_offsets(chunks + 1)
        table[:, 3] = self.chunk_records(chunks)
        return table

    def find_records(
        self, records: Sequence[int]
    ) -> list[tuple[int, int, int, int, int]]:
        """Returns the places of records, faster for a few records.

        A batch in random order has only a few records of each shard, and a call of
        numpy takes as long as this loop for thirty.

        Returns:
            For each (chunk, begin, end, records in the chunk, number of the record
            within the chunk); the chunk's physical bytes are [begin, end).
        """
        stride, chunks = self._stride, self.chunks
        group, total = self.group_size, self.records
        bases, relative, firsts = self._columns
        found = []
        for record in records:
            if group:
                chunk, place = divmod(record, group)
                count = min(group, total - chunk * group)
            else:
                chunk = bisect.bisect_right(firsts, record) - 1
                following = firsts[chunk + 1] if chunk + 1 < chunks else total
                place, count = record - firsts[chunk], following - firsts[chunk]
            after = chunk + 1
            begin = bases[chunk // stride] + relative[chunk]
            end = (
                bases[after // stride] + relative[after]
                if after < chunks
                else self._end_bytes
            )
            found.append((chunk, begin, end, count, place))
        return found

    @functools.cached_property
    def _columns(self) -> tuple[Any, Any, Any]:
        # Memory views return plain numbers, faster than numpy.
        columns = (self._bases, self._relative, self._first_records)
        bases, relative, firsts = (column.data for column in columns)
        return bases, relative, firsts

    @property
    def file_crc32c(self) -> int:
        """The checksum of the whole shard, which the report has in full."""
        # The report of a shard made from many files takes milliseconds to parse.
        found = _FILE_CRC32C.search(self._report)
        return int(found[1]) if found else self.report().file_crc32c

    def report(self) -> ShardReport:
        """Returns the report of the shard."""
        report = ShardReport.from_json(bytes(self._report), where=self.path)
        if not self._places_bytes:
            return report
        return dataclasses.replace(report, index_bytes=self.index_bytes)

    def places(self) -> Places | None:
        """Returns the places of the records in their sources; None if it has none.

        The index must have been read whole.
        """
        if not self._places_bytes:
            return None
        return decode_places(self._places, self.records, path=self.path)

    def check(self) -> None:
        """Reads the whole index; raises InvalidDatasetError if its checksum differs."""
        got = google_crc32c.value(np.frombuffer(self._body, np.uint8))
        if got != self._body_crc32c:
            raise InvalidDatasetError(
                "shard index is damaged",
                where=self.path,
                expected=f"crc32c {self._body_crc32c:#010x}",
                got=f"{got:#010x}",
                cure=_CURE,
            )


def decode_places(data: bytes | memoryview, records: int, *, path: str) -> Places:
    """Returns the places of the records of a shard from those bytes of its index.

    Raises InvalidDatasetError if they are damaged.
    """
    with parsed("shard index has damaged places of records", path, _CURE):
        return Places.decode(data, records)


def index_of_footer(footer: Footer, *, path: str, file_bytes: int) -> ShardIndex:
    """Returns an index made from the footer of a file that has none.

    It has no checksums of records, and no report.
    """
    return _parse(encode_footer(footer, file_bytes=file_bytes), _FOOTER_MAGIC, path)


def encode_index(
    *,
    footer: Footer,
    crc32cs: npt.NDArray[np.uint32],
    report: ShardReport,
    places: bytes = b"",
) -> bytes:
    """Returns the index of a shard as the bytes of its file.

    Args:
        footer: The shard's footer.
        crc32cs: uint32 [records], the checksum of each record.
        report: Counts made while it was written.
        places: The result of `Places.encode`; empty if unknown.
    """
    if len(crc32cs) != footer.records:
        raise ValueError(f"{len(crc32cs)} checksums for {footer.records} records")
    meta = report.to_json()
    return _encode(MAGIC, footer, crc32cs, meta, report.file_bytes, places)


def encode_footer(footer: Footer, *, file_bytes: int) -> bytes:
    """Returns the result of `index_of_footer` as a file's bytes, for `map_footer`."""
    return _encode(_FOOTER_MAGIC, footer, np.empty(0, np.uint32), b"", file_bytes)


def _encode(
    magic: bytes,
    footer: Footer,
    crc32cs: npt.NDArray[np.uint32],
    meta: bytes,
    file_bytes: int,
    places: bytes = b"",
) -> bytes:
    counts, offsets = footer.chunk_records, footer.chunk_offsets
    chunks = len(counts)
    group_size = int(counts[0]) if chunks else 1
    regular = bool((counts[:-1] == group_size).all()) and (
        not chunks or 0 < counts[-1] <= group_size
    )
    stride = _STRIDE
    relative = offsets[:-1] - np.repeat(offsets[:-1:stride], stride)[:chunks]
    if (relative >= 1 << 32).any():
        # Chunks of 64 MiB and more on average: a base for each.
        stride, relative = 1, np.zeros(chunks, np.int64)
    first = np.empty(0, np.int64)
    if not regular:
        group_size, first = 0, np.cumsum(counts) - counts
    columns = (
        offsets[:-1:stride].astype("<i8"),
        first.astype("<i8"),
        relative.astype("<u4"),
        crc32cs.astype("<u4"),
    )
    body = b"".join([*(column.tobytes() for column in columns), meta])
    fields = [
        magic,
        VERSION,
        group_size,
        footer.records,
        chunks,
        int(offsets[-1]),
        file_bytes,
        int(footer.chunk_decoded_bytes.max(initial=0)),
        stride,
        len(meta),
    ]
    return _joined(fields, body, places)


def _joined(fields: Sequence[Any], body: bytes, places: bytes) -> bytes:
    """Returns the bytes of a file with these header fields."""
    header = HEADER.pack(*fields, google_crc32c.value(body), 0, 0)
    crc = google_crc32c.value(header[:CRC_AT])
    last = struct.pack("<IQ", crc, len(places))
    return b"".join((header[:CRC_AT], last, body, places))


def map_index(path: str) -> ShardIndex:
    """Opens the index in a local file, memory-mapped.

    Raises as `parse_index` does, and StorageError if it cannot be opened.
    """
    return _parse(_mapped(path), MAGIC, path)


def map_footer(path: str) -> ShardIndex:
    """Opens a file that `encode_footer` made, as `map_index` does."""
    return _parse(_mapped(path), _FOOTER_MAGIC, path)


def _mapped(path: str) -> bytes | mmap.mmap:
    """Returns a file without the places of records."""
    try:
        with open_regular(path, buffering=0) as file:
            header = os.pread(file.fileno(), HEADER_BYTES, 0)
            length = os.fstat(file.fileno()).st_size
            if len(header) == HEADER_BYTES:
                # A damaged file is mapped whole, and found to be damaged.
                length = min(length, max(HEADER_BYTES, sum(_sizes(header))))
            return mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
    except StorageError:
        raise
    except OSError as e:
        raise StorageError(
            "cannot open shard index",
            where=path,
            got=e.strerror,
            cure=SystemLimitError.CURES.get(e.errno or 0)
            or "restore it from a copy, or run the conversion again with --overwrite",
        ) from e
    except ValueError:  # An empty file cannot be mapped.
        return b""


def parse_index(
    data: bytes | mmap.mmap, *, path: str, whole: bool = True
) -> ShardIndex:
    """Opens an index from the bytes of its file, copying none of them.

    Args:
        data: The bytes.
        path: Where they came from, for messages.
        whole: Whether the places of records must be there.

    Raises:
        InvalidDatasetError: It is not an index, or is damaged.
        FormatVersionError: Its version is unknown.
    """
    return _parse(data, MAGIC, path, whole=whole)


def _sizes(data: bytes | mmap.mmap) -> list[int]:
    """Returns the sizes of a file's header, columns and report, from its header."""
    magic, _, group_size, records, chunks, *rest = HEADER.unpack_from(data)
    bases = -(-chunks // max(rest[3], 1))
    first = 0 if group_size else chunks
    checksums = records if magic == MAGIC else 0
    columns = [8 * bases, 8 * first, 4 * chunks, 4 * checksums]
    return [HEADER_BYTES, *columns, rest[4]]


def _parse(
    data: bytes | mmap.mmap, magic: bytes, path: str, *, whole: bool = False
) -> ShardIndex:
    invalid = functools.partial(InvalidDatasetError, where=path, cure=_CURE)
    if len(data) < HEADER_BYTES or data[:8] != magic:
        raise invalid("not a shard index", expected=magic, got=bytes(data[:8]))
    _, version, group_size, records, chunks, *rest = HEADER.unpack_from(data)
    end_bytes, file_bytes, decoded, stride, _, *checks = rest
    body_crc, header_crc, places_bytes = checks
    if version != VERSION:
        raise FormatVersionError.unknown(
            "shard index", where=path, expected=VERSION, got=version
        )
    got = google_crc32c.value(bytes(data[:CRC_AT]))
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
        or (magic == _FOOTER_MAGIC and places_bytes)  # It has none.
    ):
        raise invalid("shard index contradicts itself")
    sizes = _sizes(data)
    index_bytes = sum(sizes)
    size = index_bytes + places_bytes
    if len(data) != size and (whole or len(data) != index_bytes):
        raise invalid(
            "shard index has the wrong size",
            expected=f"{size:,} bytes",
            got=f"{len(data):,}",
        )
    at = list(itertools.accumulate(sizes))
    return ShardIndex(
        path=path,
        records=records,
        chunks=chunks,
        group_size=group_size,
        file_bytes=file_bytes,
        max_chunk_decoded_bytes=decoded,
        crc32cs=np.frombuffer(data, "<u4", sizes[4] // 4, at[3]),
        index_bytes=index_bytes,
        _stride=stride,
        _bases=np.frombuffer(data, "<i8", sizes[1] // 8, at[0]),
        _first_records=np.frombuffer(data, "<i8", sizes[2] // 8, at[1]),
        _relative=np.frombuffer(data, "<u4", chunks, at[2]),
        _end_bytes=end_bytes,
        _report=memoryview(data)[at[4] : at[5]],
        _body_crc32c=body_crc,
        _body=memoryview(data)[HEADER_BYTES:index_bytes],
        _places_bytes=places_bytes,
        _places=memoryview(data)[index_bytes:],
    )
