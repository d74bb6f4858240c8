"""Verifying a shard: every byte is read and compared with all metadata.

Continues after the first finding, as a repair needs all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunks import (
    CHUNK_ERRORS,
    EncodedChunks,
    damaged_chunks,
)
from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.arrayrecord.walk import ChunkRange, walk_file
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageError,
    TransposedChunkError,
)
from gristmill.dataset.base.findings import (
    UNREADABLE,
    Finding,
    finding_of,
    wrong_size,
)
from gristmill.dataset.columns.column_file import decode_column
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import StoredColumn
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.shards.open_shard import ShardFacts, check_index
from gristmill.dataset.storage.base import FileInfo, Storage
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.checking.metadata import VerifyTask, check_same
from gristmill.transforms.checking.result import ShardCheck
from gristmill.transforms.checking.rows import RowsCheck

_SHOWN_RECORDS = 10  # A finding for each of the first; the others are counted.
_END_BYTES = 256 << 10  # Most footers are in there, with what says where they are.
_KEPT = 100  # Findings of a shard, in the order of its records; likewise.


class _Findings:
    """The findings of one shard: a shard may have a million damaged chunks."""

    def __init__(self) -> None:
        self.first: list[Finding] = []
        self.count = 0

    def append(self, finding: Finding) -> None:
        self.count += 1
        if self.count <= _KEPT:
            self.first.append(finding)

    def __bool__(self) -> bool:
        return bool(self.count)


def verify_shard(task: VerifyTask) -> ShardCheck:
    """Reads every byte of a shard and of its index, and compares them.

    Compared are: size and crc32c of the file, the crc32c of every decoded record with
    the index, the digest of all records with the table, and the index's chunk offsets
    with the shard's own footer. Of packed rows every document is joined from its
    pieces, and compared with the table.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    some 20 bytes a record; of packed rows also some 80 bytes a piece.

    Args:
        task: Which shard.

    Raises:
        InvalidDatasetError: The dataset was replaced meanwhile.
    """
    findings = _Findings()
    digest = RecordsDigest()
    storage = storage_for(task.dataset)
    rows = counts = None
    try:
        if task.packed is not None:
            rows = RowsCheck(task.dataset, task.path, task.packed, findings.append)
        index = _open_index(storage, task, findings)
        end = _peek(storage, task)
        if end is None:
            findings.append(Finding(task.path, "shard is missing"))
        else:
            size_bytes = end.info.size_bytes
            if size_bytes != task.file_bytes:
                findings.append(wrong_size(task.path, task.file_bytes, size_bytes))
            digest = _read_shard(storage, task, end, index, findings, rows)
            counts = None if rows is None else rows.finish()
        for kind, column in task.columns:
            _check_column(storage, task, kind, column, findings)
    except StorageError as error:
        findings.append(finding_of(task.path, error))
    # Reported only without a finding that says more.
    if digest != task.digest and not findings:
        findings.append(
            Finding(
                task.path,
                "records are not those that the table of shards describes",
                expected=f"{task.records:,} records, digest {task.digest.hex}",
                got=f"{digest.records:,} records, digest {digest.hex}",
            )
        )
    if findings:
        check_same(task.dataset, f"sha256:{task.content_sha256.hex()}")
    return ShardCheck(
        task.path,
        digest.records,
        digest.raw_bytes,
        tuple(findings.first),
        task.file_bytes,
        findings.count - len(findings.first),
        counts,
    )


def _open_index(
    storage: Storage, task: VerifyTask, findings: _Findings
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
        index.places()
        check_index(index, ShardFacts(task.records, task.file_bytes))
    except (*UNREADABLE, CorruptShardError) as error:
        findings.append(finding_of(relative, error))
        return None
    return index


def _check_column(
    storage: Storage,
    task: VerifyTask,
    kind: ColumnType,
    column: StoredColumn,
    findings: _Findings,
) -> None:
    """Compares the values of a shard with their checksums, and with its records."""
    path = layout.join(task.dataset, column.path)
    content = storage.load(path)
    if content is None:
        findings.append(Finding(column.path, "column is missing"))
        return
    size, crc32c = len(content.data), google_crc32c.value(content.data)
    if size != column.file_bytes:
        findings.append(wrong_size(column.path, column.file_bytes, size, what="column"))
        return
    try:
        decode_column(content.data, path=path, kind=kind, records=task.digest)
    except UNREADABLE as error:
        findings.append(finding_of(column.path, error))
        return
    if crc32c != column.file_crc32c:
        findings.append(
            Finding(
                column.path,
                "column is not the file that was written",
                expected=f"crc32c {column.file_crc32c:#010x}",
                got=f"{crc32c:#010x}",
            )
        )


class _End(NamedTuple):
    """The end of a shard, where its footer usually is: one read says all of it.

    Attributes:
        info: The file as it was then.
        begin: Offset of `data`, which goes to where the file should end.
        data: The bytes.
    """

    info: FileInfo
    begin: int
    data: bytes

    def read(self, storage: Storage, begin: int, end: int) -> bytes:
        """Returns a range of the shard, of these bytes if they have it."""
        if self.begin <= begin and end <= self.begin + len(self.data):
            return self.data[begin - self.begin : end - self.begin]
        return storage.read(self.info.path, begin, end)


def _peek(storage: Storage, task: VerifyTask) -> _End | None:
    path = layout.join(task.dataset, task.path)
    begin = max(task.file_bytes - _END_BYTES, 0)
    found = storage.peek(path, begin, max(task.file_bytes, 1))
    return None if found is None else _End(found[0], begin, found[1])


def _read_shard(
    storage: Storage,
    task: VerifyTask,
    end: _End,
    index: ShardIndex | None,
    findings: _Findings,
    rows: RowsCheck | None,
) -> RecordsDigest:
    """Reads a whole shard; returns the digest of the records that can be decoded."""
    info, path = end.info, end.info.path
    read = functools.partial(end.read, storage)
    footer = None
    try:
        footer = read_footer(read, info.size_bytes, path=path, hashed=index is None)
    except CorruptShardError as error:
        findings.append(finding_of(task.path, error))
    if footer is not None and index is not None:
        if not _same_chunks(index, footer):
            findings.append(
                Finding(
                    layout.index_path(task.path),
                    "shard index and the shard's footer list different chunks",
                )
            )
        if index.records != footer.records:
            index = None  # The digest is left to compare.
    digest = RecordsDigest()
    file_crc = 0
    different = _DifferentRecords(task.path)
    # Read forward, so that remote storage reads ahead.
    with storage.open(path, version=info.version) as file:
        walk = walk_file(file, footer, path=path, size_bytes=info.size_bytes)
        for data, chunks in walk:
            file_crc = google_crc32c.extend(file_crc, data)
            hashed = index is None
            if chunks is None:
                continue
            for part in _decode(chunks, task.path, hashed, kept=rows is not None):
                if isinstance(part, Finding):
                    findings.append(part)
                    if rows is not None:
                        rows.lose()
                    continue
                number, crcs, lengths, records = part
                if rows is not None:
                    rows.add(records)
                digest += RecordsDigest.of(crcs, lengths)
                if index is not None:
                    stored = index.crc32cs[number : number + len(crcs)]
                    different.compare(number, stored, crcs)
    for finding in different.findings():
        findings.append(finding)
    if file_crc != task.file_crc32c and not findings:
        findings.append(
            Finding(
                task.path,
                "bytes of the shard outside of its records changed",
                expected=f"crc32c {task.file_crc32c:#010x} of the file",
                got=f"{file_crc:#010x}",
            )
        )
    return digest


def _same_chunks(index: ShardIndex, footer: Footer) -> bool:
    numbers = np.arange(index.chunks + 1)
    return np.array_equal(
        index.chunk_offsets(numbers), footer.chunk_offsets
    ) and np.array_equal(index.chunk_records(numbers[:-1]), footer.chunk_records)


class _Decoded(NamedTuple):
    """Records of a shard: the number of the first, and of each checksum and length.

    The records themselves are there only where they are asked for.
    """

    number: int
    crc32cs: npt.NDArray[np.uint32]
    lengths: npt.NDArray[np.int64]
    records: Sequence[bytes] = ()

    @classmethod
    def of(cls, number: int, records: Sequence[bytes]) -> Self:
        crcs = np.fromiter(map(google_crc32c.value, records), "<u4", len(records))
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return cls(number, crcs, lengths, records)


def _decode(
    chunks: ChunkRange, shard: str, hashed: bool, *, kept: bool
) -> Iterator[_Decoded | Finding]:
    """Yields what is in chunks, and findings for those that are damaged.

    Where no index has the checksums to compare with, chunks are `hashed`. Records are
    `kept`, or not made.
    """
    try:
        yield _decoded(chunks.first_record, chunks.encoded(hashed=hashed), kept)
    except TransposedChunkError as error:
        yield finding_of(shard, error)
    except CorruptShardError:
        yield from _decode_singly(chunks, shard, hashed, kept)


def _decoded(number: int, encoded: EncodedChunks, kept: bool) -> _Decoded:
    if kept:
        return _Decoded.of(number, encoded.decode())
    return _Decoded(number, *encoded.checksum())


def _decode_singly(
    chunks: ChunkRange, shard: str, hashed: bool, kept: bool
) -> Iterator[_Decoded | Finding]:
    """Decodes chunks one at a time, so that the good ones are compared."""
    counts = chunks.chunk_records
    firsts = chunks.first_record + np.cumsum(counts) - counts
    decoded = {}

    def decode(chunk: int) -> None:
        one = chunks.encoded(slice(chunk, chunk + 1), hashed=hashed)
        decoded[chunk] = _decoded(int(firsts[chunk]), one, kept)

    damaged = dict(damaged_chunks(len(counts), decode, errors=CHUNK_ERRORS))
    offsets = chunks.footer.chunk_offsets[chunks.first_chunk :]
    for chunk, first in enumerate(firsts.tolist()):
        if chunk in decoded:
            yield decoded[chunk]
            continue
        records, count = f"record {first:,}", int(counts[chunk])
        if count != 1:
            records = f"records {first:,} to {first + count:,}"
        yield Finding(
            shard,
            f"{records} cannot be decoded: chunk {chunks.first_chunk + chunk:,} at "
            f"byte offset {int(offsets[chunk]):,}",
            got=damaged[chunk].got or "",
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
