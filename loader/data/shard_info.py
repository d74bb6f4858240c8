"""The facts known about a shard of an opened dataset."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.metadata.shard_report import SourceSpan


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One shard of a dataset.

    Attributes:
        path: The file.
        first_record: Number, in the dataset, of its first record.
        records: How many records it has.
        file_bytes: Size of the file, where known.
        records_digest: Order-independent digest of its records, where known.
        edition: The edition of its split that it was made for, where known.
        spans: The ranges of source files that it was made from, where known. Numbers of
            files are those of the edition.
        dropped_records: Source records for which the user's function returned none.
        added_records: Records that it returned beyond one for each.
    """

    path: str
    first_record: int
    records: int
    file_bytes: int | None
    records_digest: str | None
    edition: int | None
    spans: tuple[SourceSpan, ...]
    dropped_records: int
    added_records: int
