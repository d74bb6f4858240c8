"""The report of one shard: its writer's counts, kept in the shard's index."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import parsed
from gristmill.dataset.packed.counts import PackedCounts

INDEXED_JOB = "indexed"  # In place of a job's fingerprint, for indexed files.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSpan:
    """The part of one input file that went into a shard.

    Attributes:
        file_index: Number of the input file in the job's sorted list.
        begin_bytes: Planned start; a frame belongs to the span of its first byte.
        end_bytes: Planned end, exclusive.
        start_bytes: Start of the bytes taken, at a frame or a region left out. None if
            no frame begins in the span. Offsets count decompressed bytes.
        stop_bytes: Their end, which can lie past `end_bytes`; None as well.
        records: Number of good frames taken.
        whole: Whether reading continued to the end of the file.
    """

    file_index: int
    begin_bytes: int
    end_bytes: int
    start_bytes: int | None
    stop_bytes: int | None
    records: int
    whole: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardReport:
    """Counts and checksums of one finished shard.

    Records in = records out + dropped - added, where records in are the
    good frames; regions left out are counted apart.

    Attributes:
        path: The shard, relative to the dataset.
        shard_index: Its number in the split.
        job: Fingerprint of the job that wrote it.
        file_bytes: Size of the shard.
        file_crc32c: crc32c of the whole file.
        read: Digest of the records read from the inputs.
        written: Digest of the records in the shard, read back from the finished file.
        dropped_records: Records for which the user's function returned nothing.
        added_records: Records that it returned beyond one each.
        changed_records: Records that it replaced by others.
        null_rows: Rows of the inputs that were left out for their nulls.
        skipped_regions: Damaged regions of the inputs that were left out.
        skipped_bytes: Their size.
        spans: Where the records came from, in order.
        packed: Totals of the packed rows, None if the records are not packed rows. The
            counts of records read, dropped and added are then counts of documents.
        segments_bytes: Size of the segment index of packed rows.
        segments_crc32c: crc32c of that whole file.
        index_bytes: Size of the shard's index before the places of its records; 0 if
            it has none. The index itself says so.
    """

    path: str
    shard_index: int
    job: str
    file_bytes: int
    file_crc32c: int
    read: RecordsDigest
    written: RecordsDigest
    dropped_records: int = 0
    added_records: int = 0
    changed_records: int = 0
    null_rows: int = 0
    skipped_regions: int = 0
    skipped_bytes: int = 0
    spans: tuple[SourceSpan, ...] = ()
    packed: PackedCounts | None = None
    segments_bytes: int = 0
    segments_crc32c: int = 0
    index_bytes: int = 0

    def counts(self, *, resumed: bool = False) -> dict[str, int]:
        """Returns its counts for metrics, as a shard made now or found finished."""
        if resumed:
            return {"resumed-shards": 1}
        return {
            "made-shards": 1,
            "records": self.written.records,
            "raw-bytes": self.written.raw_bytes,
            "shard-bytes": self.file_bytes,
        }

    def to_json(self) -> bytes:
        """Returns the report as compact JSON."""
        fields = dataclasses.asdict(self)
        del fields["index_bytes"]
        if not self.changed_records:  # Most conversions have no function.
            del fields["changed_records"]
        if not self.null_rows:
            del fields["null_rows"]
        if self.packed is not None:
            fields["packed"] = self.packed.as_dict()
        else:
            for name in ("packed", "segments_bytes", "segments_crc32c"):
                del fields[name]
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, *, where: str) -> ShardReport:
        """Parses a report.

        Raises:
            InvalidDatasetError: It is not a report.
        """
        with parsed(
            "report in the shard index cannot be read",
            where,
            "delete this index and run the conversion again",
        ):
            fields: dict[str, Any] = json.loads(data)
            return cls(
                **fields
                | {
                    "read": RecordsDigest(**fields["read"]),
                    "written": RecordsDigest(**fields["written"]),
                    "spans": tuple(SourceSpan(**span) for span in fields["spans"]),
                    "packed": PackedCounts.of_dict(fields["packed"])
                    if "packed" in fields
                    else None,
                }
            )
