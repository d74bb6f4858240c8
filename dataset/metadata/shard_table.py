"""The table of shards of one split, as columns: cheap at a million shards.

It is a numpy `.npz` file, one array a column, so that any numpy reads it. Texts are
one UTF-8 blob, and the end of each text in it. A report takes two kilobytes as an
object, about 200 bytes as a row of a table, and about 80 compressed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import (
    Int64,
    Texts,
    are_ends,
    check_columns,
    columns_of,
    encode_texts,
    last_of_each,
    load_arrays,
    save_arrays,
)
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, InvalidDatasetError, parsed
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.packed.counts import (
    MOST_PIECES,
    OPTIONAL,
    PACKED_COLUMNS,
    PackedCounts,
)
from gristmill.dataset.storage.lookup import storage_for

VERSION = 1
_FEW_REPORTS = 64
_PLAIN_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_IN_NAMES = np.array([bool(re.match(r"[\w.-]", chr(n), re.ASCII)) for n in range(256)])

# Columns of one number a shard: their types on disk, and where a report has them.
_SHARD_COLUMNS = {
    "records": ("<i8", "written.records"),
    "raw_bytes": ("<i8", "written.raw_bytes"),
    "file_bytes": ("<i8", "file_bytes"),
    "file_crc32c": ("<u4", "file_crc32c"),
    "digest_low": ("<u8", "written.low"),
    "digest_high": ("<u8", "written.high"),
    "dropped_records": ("<i8", "dropped_records"),
    "added_records": ("<i8", "added_records"),
    "skipped_regions": ("<i8", "skipped_regions"),
    "skipped_bytes": ("<i8", "skipped_bytes"),
    "index_bytes": ("<i8", "index_bytes"),
}
# Columns that a table has until it is written: the records read for each shard.
_GATHERED_COLUMNS = {
    "shard_index": ("<i8", "shard_index"),
    "read_records": ("<i8", "read.records"),
    "read_raw_bytes": ("<i8", "read.raw_bytes"),
    "read_low": ("<u8", "read.low"),
    "read_high": ("<u8", "read.high"),
    "changed_records": ("<i8", "changed_records"),
    "null_rows": ("<i8", "null_rows"),
}
# Further columns of packed rows, beside their counts.
_SEGMENT_COLUMNS = {"segments_bytes": "<i8", "segments_crc32c": "<u4"}
# Columns that a file has only if one of them is not 0.
_OPTIONAL_COLUMNS = ("index_bytes", *(f"packed_{name}" for name in OPTIONAL))
# Columns of one number a span, and `span_ends`: where each shard's spans end.
_SPAN_COLUMNS = {
    "span_file": "<i4",
    "span_begin_bytes": "<i8",
    "span_end_bytes": "<i8",
    "span_start_bytes": "<i8",  # -1: no frame begins in the span.
    "span_stop_bytes": "<i8",
    "span_records": "<i8",
    "span_whole": "|b1",
}
WRITTEN_DIGEST = ("records", "raw_bytes", "digest_low", "digest_high")
"""Columns of the digest of the records of a shard."""
_READ_DIGEST = ("read_records", "read_raw_bytes", "read_low", "read_high")
_NO_RECORDS = RecordsDigest()

SHARD_TYPES = {name: dtype for name, (dtype, _) in _SHARD_COLUMNS.items()}
_ROW_TYPES = PACKED_COLUMNS | _SEGMENT_COLUMNS
_REPORTED = _SHARD_COLUMNS | _GATHERED_COLUMNS
_SPAN_FIELDS = [field.name for field in dataclasses.fields(SourceSpan)]
_PACKED_FIELDS = [field.name for field in dataclasses.fields(PackedCounts)]
_report_values = operator.attrgetter(*(place for _, place in _REPORTED.values()))
_segment_values = operator.attrgetter(*_SEGMENT_COLUMNS)
_span_values = operator.attrgetter(*_SPAN_FIELDS)


def read_described(
    path: str, size_bytes: int, crc32c: int, *, what: str, cure: str
) -> bytes:
    """Reads a file whose size and checksum `dataset.json` has.

    Raises InvalidDatasetError if they differ.
    """
    data = storage_for(path).read(path)
    if (len(data), got := google_crc32c.value(data)) != (size_bytes, crc32c):
        raise InvalidDatasetError(
            f"{what} is not the one that dataset.json describes",
            where=path,
            expected=f"{size_bytes:,} bytes, crc32c {crc32c:#010x}",
            got=f"{len(data):,} bytes, crc32c {got:#010x}",
            cure=cure,
        )
    return data


def total_digest(
    records: Int64,
    raw_bytes: Int64,
    low: npt.NDArray[np.uint64],
    high: npt.NDArray[np.uint64],
) -> RecordsDigest:
    """Returns the sum of digests that are given as columns."""
    return RecordsDigest(
        records=int(records.sum()),
        raw_bytes=int(raw_bytes.sum()),
        low=int(np.sum(low, dtype=np.uint64)),
        high=int(np.sum(high, dtype=np.uint64)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileTable:
    """Files, one of each shard of an edition, as columns.

    Attributes:
        paths: Relative to the dataset.
        columns: The numbers of each file, by name, with the digest of the shard's
            records; see docs/reference/format.md.
    """

    paths: Sequence[str]
    columns: dict[str, npt.NDArray[Any]]

    _noun: ClassVar[str]
    _cure: ClassVar[str]

    def __len__(self) -> int:
        return len(self.paths)

    def digest(self, shard: int | slice | Int64 | None = None) -> RecordsDigest:
        """Returns the digest of the records of one shard, of some, or of all."""
        return self._digest(WRITTEN_DIGEST, shard)

    def _digest(
        self, names: Iterable[str], shard: int | slice | Int64 | None
    ) -> RecordsDigest:
        rows = slice(None) if shard is None else shard
        if isinstance(rows, int):
            rows = slice(rows, rows + 1)
        return total_digest(*(self.columns[name][rows] for name in names))

    def encode(self) -> bytes:
        """Returns the table as the bytes of its file."""
        blob, ends = encode_texts(self.paths)
        arrays = self.columns | {"path_blob": blob, "path_ends": ends}
        return save_arrays(VERSION, arrays)

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> Self:
        """Parses a table and checks it.

        Raises:
            InvalidDatasetError: It is damaged or contradicts itself.
            FormatVersionError: Its version is unknown.
        """
        columns = load_arrays(data, where=where, version=VERSION)
        with parsed(f"{cls._noun} is damaged", where, cls._cure):
            paths = Texts.parse(columns.pop("path_blob"), columns.pop("path_ends"))
            cls._check(columns, len(paths))
        return cls(paths=paths, columns=columns)

    @classmethod
    def _check(cls, columns: dict[str, npt.NDArray[Any]], shards: int) -> None:
        """Adds optional columns; raises ValueError if columns do not fit."""
        raise NotImplementedError

    def check_paths(self, *, where: str) -> None:
        """Checks that every path stays in the dataset, and that none occurs twice.

        Raises:
            InvalidDatasetError: A path leaves it, or occurs twice.
        """
        if isinstance(self.paths, Texts) and _are_plain_names(*self.paths.encoded):
            return
        names = [*self.paths]
        plain = _PLAIN_NAME.fullmatch
        for path in names:
            if not plain(path):  # Ten times as fast as the check.
                layout.check_relative(path, where=where)
        if len({*names}) != len(names):
            what = f"{self._noun} lists a file twice"
            raise InvalidDatasetError(what, where, cure=self._cure)


class ShardTable(FileTable):
    """All shards of a split. Columns are [shards] unless noted.

    There are columns of spans too, of which a shard has any number.

    Attributes:
        paths: Relative to the dataset.
        columns: The numbers of each shard and span, by name; see
            docs/reference/format.md.
    """

    _noun = "table of shards"
    _cure = "restore it from a copy, or run the conversion again with --overwrite"

    @property
    def records(self) -> Int64:
        """int64 [shards], records in each shard."""
        return self.columns["records"]

    @property
    def file_bytes(self) -> Int64:
        """int64 [shards], size of each shard."""
        return self.columns["file_bytes"]

    @property
    def file_crc32cs(self) -> npt.NDArray[np.uint32]:
        """uint32 [shards], crc32c of each whole file."""
        return self.columns["file_crc32c"]

    @property
    def numbers(self) -> Int64:
        """int64 [shards], the number of each shard; only in a gathered table."""
        return self.columns["shard_index"]

    @property
    def index_bytes(self) -> Int64:
        """int64 [shards], bytes of each index before the places; 0 without places."""
        return self.columns["index_bytes"]

    def total(self, column: str) -> int:
        """Returns the sum of a column."""
        return int(self.columns[column].sum())

    def read_digest(self, shard: int | None = None) -> RecordsDigest:
        """Returns the digest of the records read for one shard, or for all."""
        return self._digest(_READ_DIGEST, shard)

    def check_counts(
        self, *, mapped: bool, left_out: RecordsDigest = _NO_RECORDS
    ) -> None:
        """Checks that each shard holds the records that were read for it.

        Args:
            mapped: Whether a function of the user's may have changed records.
            left_out: Digest of the records that were not selected, of one shard.

        Raises:
            DataLossError: One does not.
        """
        columns, packed = self.columns, self.is_packed
        read, dropped = columns["read_records"], columns["dropped_records"]
        added, got = columns["added_records"], columns["records"]
        if packed:
            got = columns["packed_documents"] + columns["packed_empty_documents"]
        for shard in np.flatnonzero(got != read - dropped + added).tolist():
            expected = read[shard] - dropped[shard] + added[shard]
            raise DataLossError(
                "records were lost or added on the way into a shard",
                where=self.paths[shard],
                expected=f"{expected:,} records ({read[shard]:,} read, "
                f"{dropped[shard]:,} dropped, {added[shard]:,} added)",
                got=f"{got[shard]:,}" + (" documents" if packed else ""),
                cure="run again; if it repeats, please report it",
            )
        if mapped or packed:
            return
        less = (left_out.records, left_out.raw_bytes, left_out.low, left_out.high)
        differs = np.zeros(len(self), bool)
        for ours, theirs, one in zip(WRITTEN_DIGEST, _READ_DIGEST, less, strict=True):
            kept = columns[theirs] - columns[theirs].dtype.type(one)
            differs |= columns[ours] != kept  # Lanes wrap around, modulo 2**64.
        for shard in np.flatnonzero(differs).tolist():
            raise DataLossError(
                "records changed on the way into a shard",
                where=self.paths[shard],
                expected=f"digest {(self.read_digest(shard) - left_out).hex}",
                got=self.digest(shard).hex,
                cure="check disk and memory of this machine, then run again",
            )

    @property
    def shards_digest(self) -> str:
        """SHA-256 over path, size, crc32c and records of each shard, in order.

        The bytes of the file itself depend on the version of the library that
        compresses it.
        """
        blob, ends = encode_texts(self.paths)
        hasher = hashlib.sha256()
        for column in (blob, ends, self.file_bytes, self.file_crc32cs, self.records):
            hasher.update(np.ascontiguousarray(column).tobytes())
        return "sha256:" + hasher.hexdigest()

    def spans(self, shard: int) -> tuple[SourceSpan, ...]:
        """Returns the spans that the records of a shard came from, in order."""
        ends = self.columns["span_ends"]
        rows = slice(int(ends[shard - 1]) if shard else 0, int(ends[shard]))
        columns = [self.columns[name][rows].tolist() for name in _SPAN_COLUMNS]
        spans = []
        for row in zip(*columns, strict=True):
            fields = dict(zip(_SPAN_FIELDS, row, strict=True))
            if fields["start_bytes"] < 0:
                fields |= {"start_bytes": None, "stop_bytes": None}
            spans.append(SourceSpan(**fields))
        return tuple(spans)

    @property
    def is_packed(self) -> bool:
        """Whether the records are packed rows."""
        return "segments_bytes" in self.columns

    def packed(self, begin: int, end: int) -> Iterator[PackedCounts | None]:
        """Yields totals of the packed rows of shards [begin, end), else None."""
        if not self.is_packed:
            yield from itertools.repeat(None, len(range(len(self))[begin:end]))
            return
        columns = [self.columns[name][begin:end].tolist() for name in PACKED_COLUMNS]
        for row in zip(*columns, strict=True):
            yield PackedCounts(**dict(zip(_PACKED_FIELDS, row, strict=True)))

    def packed_total(self, shards: slice = slice(None)) -> PackedCounts | None:
        """Returns totals of the packed rows of all or some shards, else None."""
        if not self.is_packed:
            return None
        columns = [self.columns[name][shards] for name in PACKED_COLUMNS]
        counts = {
            name: int(column.max(initial=0) if name == MOST_PIECES else column.sum())
            for name, column in zip(_PACKED_FIELDS, columns, strict=True)
        }
        return PackedCounts(**counts)

    def taken(self, shards: Int64) -> ShardTable:
        """Returns a table of some of the shards, and empties this one.

        Both at once would need gigabytes at millions of shards.

        Args:
            shards: int64 [shards], the rows to keep, in order.
        """
        ends = self.columns.pop("span_ends")
        counts = np.diff(ends, prepend=0)[shards]
        new_ends = np.cumsum(counts)
        # Counted from where the spans of each shard begin.
        shifts = (ends - np.diff(ends, prepend=0))[shards] - (new_ends - counts)
        rows = np.repeat(shifts, counts) + np.arange(counts.sum())
        columns = {
            name: self.columns.pop(name)[rows if name in _SPAN_COLUMNS else shards]
            for name in list(self.columns)
        }
        columns["span_ends"] = new_ends.astype("<i8")
        return ShardTable(paths=[self.paths[i] for i in shards], columns=columns)

    @classmethod
    def joined(cls, tables: Sequence[ShardTable]) -> Self:
        """Returns the shards of one or more tables, and empties those.

        Columns that this version does not know stay if all tables have them.
        """
        counts = [np.diff(t.columns.pop("span_ends"), prepend=0) for t in tables]
        columns = {
            name: np.concatenate([table.columns.pop(name) for table in tables])
            for name in list(tables[0].columns)
            if all(name in table.columns for table in tables)
        }
        columns["span_ends"] = np.cumsum(np.concatenate(counts)).astype("<i8")
        texts = [table.paths for table in tables if isinstance(table.paths, Texts)]
        if len(texts) == len(tables):
            return cls(paths=Texts.joined(texts), columns=columns)
        paths = [path for table in tables for path in table.paths]
        return cls(paths=paths, columns=columns)

    @classmethod
    def of(cls, reports: Sequence[ShardReport]) -> Self:
        """Returns the table of the reports of all shards, in the order of shards."""
        types = {name: dtype for name, (dtype, _) in _REPORTED.items()}
        columns = columns_of(types, map(_report_values, reports))
        spans = [span for report in reports for span in report.spans]
        rows = ([-1 if v is None else v for v in _span_values(span)] for span in spans)
        columns |= columns_of(_SPAN_COLUMNS, rows)
        counts = [len(report.spans) for report in reports]
        columns["span_ends"] = np.cumsum(counts).astype("<i8")
        packed = [report.packed for report in reports if report.packed is not None]
        if packed:
            columns |= columns_of(PACKED_COLUMNS, map(dataclasses.astuple, packed))
            columns |= columns_of(_SEGMENT_COLUMNS, map(_segment_values, reports))
        return cls(paths=[report.path for report in reports], columns=columns)

    def encode(self, *, gathered: bool = False) -> bytes:
        """Returns the table as the bytes of its file.

        Args:
            gathered: Whether to keep the columns of records read.
        """
        columns = dict(self.columns)
        for name in () if gathered else _GATHERED_COLUMNS:
            columns.pop(name, None)
        for name in _OPTIONAL_COLUMNS:
            if name in columns and not columns[name].any():
                del columns[name]
        return FileTable(paths=self.paths, columns=columns).encode()

    @classmethod
    def _check(cls, columns: dict[str, npt.NDArray[Any]], shards: int) -> None:
        types = dict(SHARD_TYPES)
        if columns.keys() & _ROW_TYPES.keys():
            types |= _ROW_TYPES
        for name in _OPTIONAL_COLUMNS:
            if name in types:
                columns.setdefault(name, np.zeros(shards, "<i8"))
        check_columns(columns, types, shards)
        check_columns(columns, {"span_ends": "<i8"}, shards)
        spans = len(columns.get("span_file", np.zeros(0)).reshape(-1))
        check_columns(columns, _SPAN_COLUMNS, spans)
        if not are_ends(columns["span_ends"], spans):
            raise ValueError("a column span_ends that does not fit the others")
        for name, dtype in types.items():
            # Also catches sums that overflow: no dataset has 2**62 bytes.
            values = columns[name]
            if dtype == "<i8" and (
                (values < 0).any() or float(values.sum(dtype=float)) > 2**62
            ):
                raise ValueError(f"impossible values in the column {name}")


def _are_plain_names(blob: npt.NDArray[np.uint8], ends: Int64) -> bool:
    """Returns whether texts are plain names of one length, in ascending order.

    Names of the shards of a conversion are. A million take a moment.
    """
    lengths = np.diff(ends, prepend=0)
    length = int(lengths[0]) if len(lengths) else 0
    if not length or (lengths != length).any():
        return False
    names = blob.view(f"S{length}")
    begins = blob[::length]
    plain = (begins != ord(".")) & (begins != ord("-"))
    return bool(
        _IN_NAMES[blob].all() and plain.all() and (names[1:] > names[:-1]).all()
    )


class ShardCollector:
    """Collects reports of one job in any order, and pickles compactly.

    Args:
        block_reports: How many reports are compressed together.
    """

    def __init__(self, *, block_reports: int = 4096):
        self._block_reports = block_reports
        self._pending: list[ShardReport] = []
        self._blocks: list[bytes] = []

    def add(self, report: ShardReport) -> None:
        """Adds a report. A later one of the same shard replaces it."""
        self._pending.append(report)
        if len(self._pending) >= self._block_reports:
            self._pack()

    def extend(self, other: Self) -> None:
        """Adds the reports of another collector of the job, in no certain order."""
        self._blocks += other._blocks
        for report in other._pending:
            self.add(report)

    def table(self) -> ShardTable:
        """Returns the table of the shards, with one row of each, by number."""
        self._pack()
        blocks = [ShardTable.decode(one, where="reports") for one in self._blocks]
        for block in blocks:
            for read, written in zip(_READ_DIGEST, WRITTEN_DIGEST, strict=True):
                block.columns[read] += block.columns[written]
        table = ShardTable.joined(blocks or [ShardTable.of(())])
        return table.taken(last_of_each(table.numbers))

    def _pack(self) -> None:
        if self._pending:
            table = ShardTable.of(self._pending)
            # Differences are mostly 0, which compresses to nothing.
            for read, written in zip(_READ_DIGEST, WRITTEN_DIGEST, strict=True):
                table.columns[read] -= table.columns[written]
            self._blocks.append(table.encode(gathered=True))
            self._pending = []

    def __getstate__(self) -> dict[str, Any]:
        # As columns, a few reports would take more time and memory.
        if len(self._pending) >= _FEW_REPORTS:
            self._pack()
        return self.__dict__
