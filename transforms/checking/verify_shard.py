"""Verifying a shard: each of its files is read whole, and compared with all metadata.

A file has one finding at most, the first; the other files are read all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.footer import (
    ChunkRange,
    read_footer,
    walk_file,
)
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InvalidDatasetError,
    TransposedChunkError,
)
from gristmill.dataset.base.findings import (
    UNREADABLE,
    Finding,
    Findings,
    FirstOf,
    finding_of,
)
from gristmill.dataset.columns.column_file import ColumnType, decode_column
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import StoredColumn
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.metadata.shard_files import ShardFacts, check_index
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.packed.counts import IN_ROWS, PackedCounts
from gristmill.dataset.packed.recount import Ends, RowCounter
from gristmill.dataset.packed.row_format import RowFormat
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for

T = TypeVar("T")

_LEFTOVERS_KEPT = 1_000
_END_BYTES = 256 << 10  # Holds most footers and their postscripts.


class PackedShard(NamedTuple):
    """The facts of a packed shard in the table of shards.

    Attributes:
        row_format: The encoding of its rows.
        counts: The counts of its rows.
        segments_bytes: Size of its segment index.
        segments_crc32c: crc32c of the segment index.
        ends: The tokens that the dataset's options add to every document.
    """

    row_format: RowFormat
    counts: PackedCounts
    segments_bytes: int
    segments_crc32c: int
    ends: Ends = (None, None)


class VerifyTask(NamedTuple):
    """One shard to verify, with its row of the table of shards.

    Attributes:
        dataset: The dataset's directory.
        path: The shard, relative to it.
        content_digest: Digest by which a change of the dataset is noticed.
        file_bytes: Size of the shard.
        file_crc32c: crc32c of the whole file.
        digest: Digest of its records.
        packed: The table's facts about packed rows; None for other records.
        columns: The files with values of its records.
    """

    dataset: str
    path: str
    content_digest: str
    file_bytes: int
    file_crc32c: int
    digest: RecordsDigest
    packed: PackedShard | None = None
    columns: tuple[tuple[ColumnType, StoredColumn], ...] = ()


class ShardCheck(NamedTuple):
    """The result of verifying one shard.

    Attributes:
        path: The shard, relative to the dataset.
        records: Number of its records if all were decoded and compared, else 0.
        raw_bytes: Their size in bytes.
        findings: The faults, at most one per file.
        file_bytes: The expected size of the shard.
        packed: Counts of packed rows, if they could be counted.
    """

    path: str
    records: int
    raw_bytes: int
    findings: tuple[Finding, ...]
    file_bytes: int = 0
    packed: PackedCounts | None = None
    unfinished: int = 0

    def gather(self, gathered: Gathered) -> None:
        """Adds it to the gathered checks."""
        found = GatheredChecks(*(1, self.records, self.raw_bytes), packed=self.packed)
        found.findings.add(self.findings)
        found.gather(gathered)

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        counts = {
            **{"verified-shards": 1, "verified-records": self.records},
            **{"findings": len(self.findings), "shard-bytes": self.file_bytes},
        }
        said = f"{self.records} records compared"
        read = RecordsDigest(records=self.records, raw_bytes=self.raw_bytes)
        return Done(self.path, said, self.file_bytes, read, counts)


@dataclasses.dataclass
class GatheredChecks:
    """The checks of a dataset so far, in bounded memory.

    Attributes:
        shards: Shards that were checked.
        records: Records that were decoded and compared.
        raw_bytes: Their size in bytes.
        findings: The faults.
        leftovers: Files of commands that were killed, or are running.
        packed: Counts of packed rows; None if there are none.
        unfinished: How many of the leftovers are of unfinished work.
    """

    shards: int = 0
    records: int = 0
    raw_bytes: int = 0
    findings: Findings = dataclasses.field(default_factory=Findings)
    leftovers: FirstOf[str] = dataclasses.field(
        default_factory=lambda: FirstOf(_LEFTOVERS_KEPT, str)
    )
    packed: PackedCounts | None = None
    unfinished: int = 0

    def gather(self, gathered: Gathered) -> None:
        """Adds itself to the gathered checks."""
        gathered.rows.setdefault("checks", GatheredChecks()).extend(self)

    def extend(self, other: GatheredChecks) -> None:
        """Adds the checks of another part."""
        self.shards += other.shards
        self.records += other.records
        self.raw_bytes += other.raw_bytes
        self.findings.merge(other.findings)
        self.leftovers.merge(other.leftovers)
        self.unfinished += other.unfinished
        if other.packed is not None:
            self.packed = other.packed + (self.packed or PackedCounts())


class _FileError(CorruptShardError):
    """A fault of a file; the cure is the same for all, and comes with the result."""


def verify_shard(task: VerifyTask) -> ShardCheck:
    """Reads every byte of a shard and of the files beside it, and compares them.

    It compares the size and crc32c of each file, the crc32c of every decoded record
    with the index, the digest of all records with the table, and the index's chunk
    offsets with the shard's footer. It counts packed rows again, and compares their
    pieces with the segment index.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    some 20 bytes per record; for packed rows also some 80 bytes per piece.

    Raises:
        InvalidDatasetError: The dataset was replaced meanwhile.
    """
    findings: list[Finding] = []

    def checked(path: str, check: Callable[..., T], *given: Any) -> T | None:
        try:
            return check(task, *given)
        except (*UNREADABLE, CorruptShardError, TransposedChunkError) as error:
            findings.append(finding_of(path, error))
            return None

    index = checked(layout.index_path(task.path), _read_index)
    counter = None
    if task.packed is not None:
        segments = layout.segments_path(task.path)
        counter = checked(segments, _open_segments, task.packed)
    compared = checked(task.path, _read_shard, index, counter)
    for kind, column in task.columns:
        checked(column.path, _read_column, kind, column)
    if findings:
        check_same(task.dataset, task.content_digest)
    digest, counts = compared or (RecordsDigest(), None)
    return ShardCheck(
        *(task.path, digest.records, digest.raw_bytes),
        *(tuple(findings), task.file_bytes, counts),
    )


def check_same(dataset: str, content_digest: str) -> None:
    """Raises InvalidDatasetError if a dataset changed while it was verified."""
    now = read_manifest(dataset)
    if now is None or now.content_digest != content_digest:
        raise InvalidDatasetError(
            "dataset was changed while it was verified",
            where=dataset,
            expected=content_digest,
            got="no dataset" if now is None else now.content_digest,
            cure="verify it again, when the command that replaces it has ended",
        )


def _load(
    task: VerifyTask, relative: str, what: str, size: int = -1, crc32c: int = 0
) -> tuple[str, bytes]:
    """Returns path and content of a file beside a shard, compared if size >= 0."""
    path = layout.join(task.dataset, relative)
    content = storage_for(path).load(path)
    if content is None:
        raise _FileError(f"{what} is missing")
    if size >= 0:
        _check_size(what, size, len(content.data))
        if (got := google_crc32c.value(content.data)) != crc32c:
            raise _FileError(
                f"{what} is not the file that was written",
                expected=f"crc32c {crc32c:#010x}",
                got=f"{got:#010x}",
            )
    return path, content.data


def _check_size(what: str, expected: int, got: int) -> None:
    if got != expected:
        raise _FileError(
            f"{what} has the wrong size",
            expected=f"{expected:,} bytes",
            got=f"{got:,}",
        )


def _read_index(task: VerifyTask) -> ShardIndex:
    path, data = _load(task, layout.index_path(task.path), "shard index")
    index = parse_index(data, path=path)
    index.check()
    index.places()
    facts = ShardFacts(task.digest.records, task.file_bytes, task.file_crc32c)
    check_index(index, facts)
    return index


def _read_column(task: VerifyTask, kind: ColumnType, column: StoredColumn) -> None:
    facts = column.file_bytes, column.file_crc32c
    path, data = _load(task, column.path, "column", *facts)
    decode_column(data, path=path, kind=kind, records=task.digest)


def _open_segments(task: VerifyTask, packed: PackedShard) -> RowCounter:
    what, facts = "segment index", (packed.segments_bytes, packed.segments_crc32c)
    path, data = _load(task, layout.segments_path(task.path), what, *facts)
    index = SegmentIndex.decode(data, where=path)
    if index.documents != packed.counts.documents:
        raise _FileError(
            f"{what} has not the documents that the table of shards has",
            expected=f"{packed.counts.documents:,}",
            got=f"{index.documents:,}",
        )
    return RowCounter(packed.row_format, index, ends=packed.ends)


def _read_shard(
    task: VerifyTask, index: ShardIndex | None, counter: RowCounter | None
) -> tuple[RecordsDigest, PackedCounts | None]:
    """Compares a whole shard; returns its digest, and the counts of packed rows."""
    path = layout.join(task.dataset, task.path)
    storage, begin = storage_for(path), max(task.file_bytes - _END_BYTES, 0)
    # One read returns the size of the shard, and its footer.
    found = storage.load(path, begin, max(task.file_bytes, 1))
    if found is None:
        raise _FileError("shard is missing")
    end, version, size_bytes = found
    _check_size("shard", task.file_bytes, size_bytes)

    def read(first: int, stop: int) -> bytes:
        if begin <= first and stop <= begin + len(end):
            return end[first - begin : stop - begin]
        return storage.read(path, first, stop)

    footer = read_footer(read, size_bytes, path=path, hashed=index is None)
    if index is not None:
        numbers = np.arange(index.chunks + 1)
        if not (
            np.array_equal(index.chunk_offsets(numbers), footer.chunk_offsets)
            and np.array_equal(index.chunk_records(numbers[:-1]), footer.chunk_records)
        ):
            raise _FileError("shard index and the shard's footer list other chunks")
    digest, file_crc32c = RecordsDigest(), 0
    # Read forward, so that remote storage reads ahead.
    with storage.open(path, version=version) as file:
        walk = walk_file(file, footer, path=path, size_bytes=size_bytes)
        for data, chunks in walk:
            file_crc32c = google_crc32c.extend(file_crc32c, data)
            if chunks is not None:
                digest += _compare_chunks(chunks, index, counter)
    if file_crc32c != task.file_crc32c:
        raise _FileError(
            "bytes of the shard outside of its records changed",
            expected=f"crc32c {task.file_crc32c:#010x} of the file",
            got=f"{file_crc32c:#010x}",
        )
    if digest != task.digest:
        raise _FileError(
            "records are not those that the table of shards describes",
            expected=f"{task.digest.records:,} records, digest {task.digest.hex}",
            got=f"{digest.records:,} records, digest {digest.hex}",
        )
    if counter is None or task.packed is None:
        return digest, None
    return digest, _recounted(task.packed, counter)


def _compare_chunks(
    chunks: ChunkRange, index: ShardIndex | None, counter: RowCounter | None
) -> RecordsDigest:
    """Compares the records of chunks with the index, and returns their digest."""
    try:
        # Without an index there are no checksums of records, so compare those of
        # chunks.
        encoded = chunks.encoded(hashed=index is None)
        records: list[bytes] = []
        if counter is None:
            crc32cs, lengths = encoded.checksum()
        else:
            records = encoded.decode()
            crc32cs = np.array([*map(google_crc32c.value, records)], np.uint32)
            lengths = np.array([*map(len, records)], np.int64)
    except CorruptShardError as error:
        for _ in encoded.each(functools.partial(_undecodable, chunks)):
            pass
        raise error from None
    if index is not None:
        first = chunks.first_record
        stored = index.crc32cs[first : first + len(crc32cs)]
        for row in np.flatnonzero(stored != crc32cs)[:1].tolist():
            raise _FileError(
                f"record {first + row:,} is not the one that was written",
                expected=f"crc32c {stored[row]:#010x}",
                got=f"{crc32cs[row]:#010x}",
            )
    if counter is not None:
        with _placed():
            counter.add(records)
    return RecordsDigest.of(crc32cs, lengths)


@contextlib.contextmanager
def _placed() -> Iterator[None]:
    """Names the row in an error's text, as a finding has no place but a file."""
    try:
        yield
    except CorruptShardError as error:
        what = f"{error.where}: {error.what}"
        facts = {"expected": error.expected, "got": error.got}
        raise _FileError(what, **facts) from error


def _undecodable(chunks: ChunkRange, chunk: int, error: Exception) -> _FileError:
    """Returns the error for a chunk of a range."""
    counts = chunks.chunk_records
    first = chunks.first_record + int(counts[:chunk].sum())
    count, number = int(counts[chunk]), chunks.first_chunk + chunk
    records = f"record {first:,}"
    if count != 1:
        records = f"records {first:,} to {first + count:,}"
    return _FileError(
        f"{records} cannot be decoded: chunk {number:,} at byte offset "
        f"{int(chunks.footer.chunk_offsets[number]):,}",
        got=error,
    )


def _recounted(packed: PackedShard, counter: RowCounter) -> PackedCounts:
    """Returns the counts of all rows, compared with those of the table of shards."""
    with _placed():
        found = counter.finish()
    counts = packed.counts
    names = [name for name in IN_ROWS if getattr(counts, name) != getattr(found, name)]
    if names:
        raise _FileError(
            "rows do not hold what the table of shards says",
            expected=_listed(counts, names),
            got=_listed(found, names),
        )
    bos, eos = packed.ends
    ended = found.ended_documents + counts.truncated_documents
    for what, token, number in (
        ("begin", bos, found.begun_documents),
        ("end", eos, ended),
    ):
        if token is not None and number < found.documents:
            raise _FileError(
                f"documents do not {what} with the token of the dataset's options",
                expected=f"token {token:,} in {found.documents:,} documents",
                got=f"in {number:,}",
            )
    return counts


def _listed(counts: PackedCounts, names: Iterable[str]) -> str:
    shown = (f"{getattr(counts, name):,} {name.replace('_', ' ')}" for name in names)
    return ", ".join(shown)
