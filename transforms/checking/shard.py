"""Verifying a shard: every byte of it read, and all that is known of it compared.

Goes on after the first finding, since whoever repairs a dataset wants all of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunks import checksum_chunks
from gristmill.dataset.arrayrecord.footer import (
    Footer,
    chunk_windows,
    logical_chunks,
    read_footer,
)
from gristmill.dataset.arrayrecord.official_reader import read_with_official_reader
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import (
    CorruptShardError,
    GristmillError,
    StorageError,
    TransposedChunkError,
)
from gristmill.dataset.findings import (
    UNREADABLE,
    Finding,
    fact_of,
    finding_of,
    first_line,
    wrong_size,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.storage.base import FileInfo, Storage
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.checking.metadata import VerifyTask

_BLOCK_BYTES = 4 << 20
_SHOWN_RECORDS = 10  # A finding for each of the first; the others are counted.


class ShardCheck(NamedTuple):
    """What was found in one shard.

    Attributes:
        path: The shard, relative to the dataset.
        records: Records that were decoded and compared.
        raw_bytes: Their size.
        findings: What is wrong.
    """

    path: str
    records: int
    raw_bytes: int
    findings: tuple[Finding, ...]


def verify_shard(task: VerifyTask) -> ShardCheck:
    """Reads every byte of a shard and of its index, and compares all that is known.

    Compared are: size and crc32c of the file, the crc32c of every decoded record with
    the index, the digest of all records with the table, and the index's chunk offsets
    with the shard's own footer.

    Memory: a window of 4 MiB of the file (up to 16 MiB decoded), or one chunk if that
    is larger, and some 20 bytes a record.

    Args:
        task: Which shard.
    """
    findings: list[Finding] = []
    digest = RecordsDigest()
    storage = storage_for(task.dataset)
    try:
        index = _open_index(storage, task, findings)
        info = storage.stat(layout.join(task.dataset, task.path))
        if info is None:
            findings.append(Finding(task.path, "shard is missing"))
        else:
            if info.size_bytes != task.file_bytes:
                findings.append(wrong_size(task.path, task.file_bytes, info.size_bytes))
            digest = _read_shard(storage, task, info, index, findings)
    except StorageError as error:
        findings.append(finding_of(task.path, error))
    # A sum that differs says less than a record that does: told for want of better.
    if digest != task.digest and not findings:
        findings.append(
            Finding(
                task.path,
                "records are not those that the table of shards describes",
                expected=f"{task.digest.records:,} records, digest {task.digest.hex}",
                got=f"{digest.records:,} records, digest {digest.hex}",
            )
        )
    return ShardCheck(task.path, digest.records, digest.raw_bytes, tuple(findings))


def _open_index(
    storage: Storage, task: VerifyTask, findings: list[Finding]
) -> ShardIndex | None:
    relative = layout.index_path(task.path)
    path = layout.join(task.dataset, relative)
    content = storage.load(path)
    if content is None:
        findings.append(Finding(relative, "shard index is missing"))
        return None
    try:
        index = parse_index(content.data, path=path)
        index.check()
    except UNREADABLE as error:
        findings.append(finding_of(relative, error))
        return None
    stated = index.records, index.file_bytes
    if stated != (task.digest.records, task.file_bytes):
        findings.append(
            Finding(
                relative,
                "shard index is not the one of this shard",
                expected=f"{task.digest.records:,} records in "
                f"{task.file_bytes:,} bytes",
                got=f"{stated[0]:,} records in {stated[1]:,} bytes",
            )
        )
        return None
    return index


def _read_shard(
    storage: Storage,
    task: VerifyTask,
    info: FileInfo,
    index: ShardIndex | None,
    findings: list[Finding],
) -> RecordsDigest:
    """Reads a whole shard; returns the digest of the records that can be decoded."""
    path = layout.join(task.dataset, task.path)
    read = functools.partial(storage.read, path)
    footer = None
    try:
        footer = read_footer(read, info.size_bytes, path=path)
    except CorruptShardError as error:
        findings.append(finding_of(task.path, error))
    if footer is not None and index is not None:
        if not _same_chunks(index, footer):
            findings.append(
                Finding(
                    layout.index_path(task.path),
                    "shard index has the chunks elsewhere than the shard's own footer",
                )
            )
        if index.records != footer.records:
            index = None  # The digest is left to compare.
    digest = RecordsDigest()
    file_crc = 0
    first_record = 0
    different = _DifferentRecords(task.path)
    # One after the other: where answers take a while, the next are on their way.
    with storage.open(path, version=info.version) as file:
        for begin, end, chunks in _pieces(footer, info.size_bytes):
            data = _read_fully(file, end - begin)
            file_crc = google_crc32c.extend(file_crc, data)
            if footer is None or chunks is None:
                continue
            decoded = _decode_window(data, footer, chunks, path, first_record)
            for part in decoded:
                if isinstance(part, Finding):
                    findings.append(dataclasses.replace(part, path=task.path))
                    continue
                number, crcs, lengths = part
                digest += RecordsDigest.of(crcs, lengths)
                if index is not None:
                    stored = index.crc32cs[number : number + len(crcs)]
                    different.compare(number, stored, crcs)
            first_record += int(footer.chunk_records[slice(*chunks)].sum())
    findings += different.findings()
    if file_crc != task.file_crc32c and not findings:
        findings.append(
            Finding(
                task.path,
                "bytes of the shard changed, though none of a record",
                expected=f"crc32c {task.file_crc32c:#010x} of the file",
                got=f"{file_crc:#010x}",
            )
        )
    return digest


def _read_fully(file: BinaryIO, size_bytes: int) -> bytes:
    """Reads so many bytes, fewer only at the end of the file."""
    data = file.read(size_bytes)
    while len(data) < size_bytes and (piece := file.read(size_bytes - len(data))):
        data += piece
    return data


def _same_chunks(index: ShardIndex, footer: Footer) -> bool:
    numbers = np.arange(index.chunks + 1)
    return np.array_equal(
        index.chunk_offsets(numbers), footer.chunk_offsets
    ) and np.array_equal(index.chunk_records(numbers[:-1]), footer.chunk_records)


def _pieces(
    footer: Footer | None, size: int
) -> Iterator[tuple[int, int, tuple[int, int] | None]]:
    """Yields byte ranges that cover a file, and the chunks [first, last) in each."""
    offsets = np.zeros(1, np.int64) if footer is None else footer.chunk_offsets
    yield 0, int(offsets[0]), None
    if footer is not None:
        for first, last in chunk_windows(footer):
            yield int(offsets[first]), int(offsets[last]), (first, last)
    for begin in range(int(offsets[-1]), size, _BLOCK_BYTES):
        yield begin, min(begin + _BLOCK_BYTES, size), None


_Decoded = tuple[int, npt.NDArray[np.uint32], npt.NDArray[np.int64]]


def _decode_window(
    data: bytes, footer: Footer, chunks: tuple[int, int], path: str, first_record: int
) -> Iterator[_Decoded | Finding]:
    """Yields record number, checksums and lengths; findings for chunks without."""
    buffer, starts = logical_chunks(data, footer, *chunks)
    limit = int(footer.chunk_decoded_bytes[slice(*chunks)].max())
    counts = footer.chunk_records[slice(*chunks)]
    decode = functools.partial(
        checksum_chunks, buffer, path=path, max_decoded_bytes=limit
    )
    try:
        yield first_record, *decode(starts, chunk_records=counts)
    except TransposedChunkError:
        end = first_record + int(counts.sum())
        yield from _decode_transposed(path, first_record, end, footer)
    except CorruptShardError:
        # One at a time: what cannot be decoded is named, and all else compared.
        for chunk, count in enumerate(counts.tolist()):
            try:
                one = slice(chunk, chunk + 1)
                yield first_record, *decode(starts[one], chunk_records=counts[one])
            except (CorruptShardError, TransposedChunkError) as error:
                records = f"record {first_record:,}"
                if count != 1:
                    records = f"records {first_record:,} to {first_record + count:,}"
                yield Finding(
                    "",
                    f"{records} cannot be decoded: chunk {chunks[0] + chunk:,} at byte "
                    f"offset {int(footer.chunk_offsets[chunks[0] + chunk]):,}",
                    got=fact_of(error, "got"),
                )
            first_record += count


def _decode_transposed(
    path: str, begin: int, end: int, footer: Footer
) -> Iterator[_Decoded | Finding]:
    mean = int(footer.chunk_decoded_bytes.sum()) // max(footer.records, 1)
    try:
        for batch in read_with_official_reader(path, begin, end, mean_bytes=mean):
            crcs = np.array([google_crc32c.value(record) for record in batch], "<u4")
            yield begin, crcs, np.array([len(record) for record in batch], np.int64)
            begin += len(batch)
    except GristmillError as error:
        yield Finding(
            "", f"records {begin:,} to {end:,}: {first_line(error)}", got=str(error)
        )


class _DifferentRecords:
    """Collects records whose checksum is not the one in the index."""

    def __init__(self, path: str):
        self._path = path
        self._shown: list[Finding] = []
        self._count = 0

    def compare(
        self,
        number: int,
        expected: npt.NDArray[np.uint32],
        got: npt.NDArray[np.uint32],
    ) -> None:
        for at in np.flatnonzero(expected != got).tolist():
            self._count += 1
            if self._count <= _SHOWN_RECORDS:
                self._shown.append(
                    Finding(
                        self._path,
                        f"record {number + at:,} is not the one that was written",
                        expected=f"crc32c {expected[at]:#010x}",
                        got=f"{got[at]:#010x}",
                    )
                )

    def findings(self) -> list[Finding]:
        if self._count <= _SHOWN_RECORDS:
            return self._shown
        more = f"{self._count - _SHOWN_RECORDS:,} more records are not as written"
        return [*self._shown, Finding(self._path, more)]
