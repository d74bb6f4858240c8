"""The records of a shard on their way: counted, mapped, and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.functions.user_functions import (
    RecordFunction,
    call,
    load_function,
)
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.record_source import source_of

Progress = Callable[[int, int, int], None]
"""Gets the records, raw bytes and tokens of a shard so far."""


@dataclasses.dataclass
class Tally:
    """What is counted while records are read.

    Attributes:
        read: Digest of the records.
        dropped_records: Those for which the user's function returned nothing.
        added_records: Those that it returned beyond one for each.
        changed_records: Those of which it returned only others.
        null_rows: Rows of which there is none, for their nulls.
        tokens: Tokens of documents, where they are packed.
        spans: Where they came from, of the ranges that were read to their end.
    """

    read: RecordsDigest = dataclasses.field(default_factory=RecordsDigest)
    dropped_records: int = 0
    added_records: int = 0
    changed_records: int = 0
    null_rows: int = 0
    tokens: int = 0
    spans: list[SourceSpan] = dataclasses.field(default_factory=list)

    def count(self, batch: RecordBatch) -> None:
        """Counts records that were read."""
        self.null_rows += batch.null_rows
        lengths = np.fromiter(map(len, batch.records), np.int64, len(batch.records))
        self.read += RecordsDigest.of(np.array(batch.crc32cs, np.uint32), lengths)

    def show(self, progress: Progress | None) -> None:
        """Tells how much was read, if somebody asks."""
        if progress is not None:
            progress(self.read.records, self.read.raw_bytes, self.tokens)

    def mapped(
        self, function: RecordFunction, record: bytes, *, source: str
    ) -> Sequence[bytes]:
        """Calls the user's function on a record, and counts what it returns.

        Args:
            function: The function.
            record: The record.
            source: Where it came from, for messages.

        Raises:
            UserFunctionError: The function failed.
        """
        results = call(function, record, source=source)
        if results:
            self.added_records += len(results) - 1
            self.changed_records += record not in results
        else:
            self.dropped_records += 1
        return results


def write_records(
    writer: ShardWriter,
    batches: Iterable[tuple[str, RecordBatch]],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
) -> None:
    """Writes the records of a shard.

    Args:
        writer: Takes them.
        batches: The records, each batch with the file that it was read from.
        prepared: The job.
        tally: Counts them.
        progress: Called after each batch.

    Raises:
        UserFunctionError: The user's function failed.
        StorageError: They cannot be written.
    """
    spec = prepared.job.map
    function = None if spec is None else load_function(spec)
    place_text = source_of(prepared.files.spec).place_text
    for path, batch in batches:
        tally.count(batch)
        if function is None:
            writer.write(batch.records, batch.crc32cs)
        else:
            for place, record in zip(batch.places, batch.records, strict=True):
                source = f"{path}, {place_text(place)}"
                results = tally.mapped(function, record, source=source)
                writer.write(results, list(map(google_crc32c.value, results)))
        tally.show(progress)
