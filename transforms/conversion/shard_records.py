"""The records of a shard on their way from a source, through stages, to a sink.

The reader of a range reports its places and the number of its records. The records are
counted again here, so that a fault of any reader fails the conversion and loses no
record.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NoReturn, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, WrittenShard
from gristmill.dataset.base.digest import RecordsDigest, check_crc32cs
from gristmill.dataset.base.errors import (
    CorruptRecordError,
    DataLossError,
    InputError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.transforms.chat.conversation_reader import reader_of
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.source import (
    KeptPass,
    RangeReader,
    ReadRequest,
    SkippedRegions,
    Source,
    source_of,
)
from gristmill.transforms.tokens.row_packer import RowPacker

# Bounds of what is fetched ahead of the range that is read: files can be small.
_AHEAD_BYTES = 4 << 20
_AHEAD_RANGES = 16


class Batch(NamedTuple):
    """Records on their way into a shard. Lists are [records].

    Attributes:
        source: The source of the file's format.
        path: The file.
        batch: The records.
        origins: The places of their origin.
    """

    source: Source
    path: str
    batch: RecordBatch
    origins: Places

    def place_of(self, number: int) -> str:
        """Returns the file and place of a record, for messages."""
        return f"{self.path}, {self.source.place_text(self.batch.places[number])}"

    def check(self) -> None:
        """Raises DataLossError if a record does not have the checksum that was read."""
        check_crc32cs(self.batch.records, self.batch.crc32cs, self.place_of)


@dataclasses.dataclass
class Tally:
    """The counts of a shard in the making.

    Attributes:
        read: Digest of the records read.
        left_out: Digest of the records that were not selected.
        dropped_records: Records for which the user's function returned nothing.
        added_records: Records that it returned beyond one for each.
        changed_records: Records that its results do not include.
        null_rows: Rows skipped for their nulls.
        spans: The spans of the ranges that were read to their end.
        places: The places of origin of the records written.
        packed: Totals of packed rows.
        segments: The file of their segment index.
    """

    read: RecordsDigest = dataclasses.field(default_factory=RecordsDigest)
    left_out: RecordsDigest = dataclasses.field(default_factory=RecordsDigest)
    dropped_records: int = 0
    added_records: int = 0
    changed_records: int = 0
    null_rows: int = 0
    spans: list[SourceSpan] = dataclasses.field(default_factory=list)
    places: list[Places] = dataclasses.field(default_factory=list)
    packed: PackedCounts | None = None
    segments: bytes | None = None

    def count(self, batch: RecordBatch) -> None:
        """Counts records that were read."""
        self.null_rows += batch.null_rows
        lengths = np.fromiter(map(len, batch.records), np.int64, len(batch.records))
        self.read += RecordsDigest.of(np.array(batch.crc32cs, np.uint32), lengths)


class ShardSource:
    """The records of a shard from its ranges of the inputs, with their counts.

    Args:
        prepared: The job.
        shard: Number of the shard.
        skipped: Takes damaged regions; None makes them errors.
        kept: As in `convert_shard`.

    Attributes:
        tally: The counts of the last pass over the records.
    """

    def __init__(
        self,
        prepared: PreparedJob,
        shard: int,
        *,
        skipped: SkippedRegions | None = None,
        kept: KeptPass | None = None,
    ):
        self.prepared, self._shard = prepared, shard
        self.skipped, self._kept = skipped, kept
        self.tally = Tally()
        self._source = source_of(prepared.files.spec)

    def batches(self) -> Iterator[Batch]:
        """Yields the records of all ranges a block at a time.

        Raises:
            CorruptInputError: A range is damaged, and there is no `skipped`.
            DataLossError: Records did not come once each, in order.
        """
        self.tally = tally = Tally()
        files = self.prepared.files
        for reader in self._opened_ahead(self.skipped, self._kept):
            check = SpanCheck(self._source, reader.path, self.skipped)
            for batch in reader.batches():
                places = check.follow(batch)
                tally.count(batch)
                if (taken := reader.taken(batch)) is not batch:
                    places = np.array(taken.places, np.int64)
                origins = reader.origins(files, places)
                yield Batch(self._source, reader.path, taken, origins)
            self._end(reader, check)

    def copy_to(self, copier: ShardWriter) -> Iterator[bool]:
        """Copies the chunks of each range; yields False for one with another encoding.

        Raises:
            CorruptShardError: A range is damaged.
            TransposedChunkError: A range holds transposed chunks.
            DataLossError: Not all were copied.
        """
        self.tally = tally = Tally()
        prepared = self.prepared
        for reader in self._opened_ahead(None, None):
            copied = reader.copy(copier, prepared.job.writer)
            if copied is not None:
                digest, places = copied
                check = SpanCheck(self._source, reader.path, None)
                check.add(digest)
                tally.read += digest
                tally.places.append(reader.origins(prepared.files, places))
                self._end(reader, check)
            yield copied is not None

    def _end(self, reader: RangeReader[Any], check: SpanCheck) -> None:
        check.finish(reader.span)
        self.tally.left_out += reader.left_out
        self.tally.spans.append(reader.span)

    def _opened_ahead(
        self, skipped: SkippedRegions | None, kept: KeptPass | None
    ) -> Iterator[RangeReader[Any]]:
        """Yields readers, while later ones fetch up to 8 MiB ahead from a bucket."""
        ready: deque[RangeReader[Any]] = deque()
        ahead_bytes = 0
        plan, files = self.prepared.plan, self.prepared.files
        for part in plan.ranges(self._shard):
            cuts = plan.cuts_within(part.file_index)
            reader = self._source.read(
                ReadRequest(files[part.file_index], part, skipped, cuts, kept)
            )
            ahead_bytes += reader.open_ahead()
            ready.append(reader)
            while (
                ahead_bytes - ready[0].ahead_bytes >= _AHEAD_BYTES
                or len(ready) > _AHEAD_RANGES
            ):
                first = ready.popleft()
                ahead_bytes -= first.ahead_bytes
                yield first
        yield from ready


class SpanCheck:
    """Follows the records of one range.

    Args:
        source: Source of the file's format.
        path: The file.
        skipped: Collects damaged regions, if they are accepted.
    """

    def __init__(self, source: Source, path: str, skipped: SkippedRegions | None):
        self._source, self._path, self._skipped = source, path, skipped
        self._regions = self._regions_now()
        self._last = -1
        self._records = self._raw_bytes = 0

    def _regions_now(self) -> int:
        skipped = self._skipped
        return 0 if skipped is None else len(skipped.found)

    def follow(self, batch: RecordBatch) -> npt.NDArray[np.int64]:
        """Counts records that were read, and returns their places: int64 [records].

        Raises:
            DataLossError: They are not in order, or one is repeated.
        """
        places = np.array(batch.places, np.int64)
        rising = np.diff(places, prepend=self._last) > 0
        counts = {len(places), len(batch.records), len(batch.crc32cs)}
        if not rising.all() or len(counts) > 1:
            at = int(np.argmin(rising))
            text = self._source.place_text
            self._raise_lost(
                "records of an input came twice, or in another order",
                f"a place after {text(self._last)}",
                text(int(places[at])),
            )
        self._last = int(places[-1]) if len(places) else self._last
        self._records += len(places)
        self._raw_bytes += sum(map(len, batch.records))
        return places

    def add(self, copied: RecordsDigest) -> None:
        """Counts records that were copied with their chunks."""
        self._records += copied.records
        self._raw_bytes += copied.raw_bytes

    def finish(self, span: SourceSpan) -> None:
        """Compares the records with their reader's report of the range.

        Raises:
            DataLossError: The counts differ, or the records do not fill the range.
        """
        if span.records != self._records:
            self._raise_lost(
                "records were lost or added while an input was read",
                f"{span.records:,} records of {span}",
                f"{self._records:,}",
            )
        damaged = self._regions_now() != self._regions
        if not damaged and not self._source.holds(span, self._raw_bytes):
            self._raise_lost(
                "the records of an input do not fill the range that they are from",
                f"all of {span}",
                f"{self._records:,} records with {self._raw_bytes:,} bytes",
            )

    def _raise_lost(self, what: str, expected: str, got: str) -> NoReturn:
        cure = "run again; if it repeats, please report it"
        raise DataLossError(what, self._path, expected, got, cure)


_MAPPED_BYTES = 1 << 20


def map_records(
    batches: Iterable[Batch], function: str, tally: Tally
) -> Iterator[Batch]:
    """Yields the records that the user's function returns for others.

    Args:
        batches: The other records.
        function: `module:function`.
        tally: Counts the results.

    Raises:
        UserFunctionError: The function failed.
        DataLossError: A record is not the one that was read.
    """
    called = load_function(function)
    for given in batches:
        given.check()
        source, path, batch, origins = given
        records: list[bytes] = []
        counts: list[int] = []
        size = first = 0
        for number, record in enumerate(batch.records):
            results = call(called, record, source=given.place_of(number))
            if results:
                tally.added_records += len(results) - 1
                tally.changed_records += record not in results
            else:
                tally.dropped_records += 1
            records += results
            counts.append(len(results))
            size += sum(map(len, results))
            if size >= _MAPPED_BYTES or number == len(batch.records) - 1:
                places = np.array(batch.places[first : number + 1], np.int64)
                made = RecordBatch(
                    np.repeat(places, counts).tolist(),
                    records,
                    list(map(google_crc32c.value, records)),
                )
                own = origins.taken(np.arange(first, number + 1)).repeated(counts)
                yield Batch(source, path, made, own)
                records, counts, size, first = [], [], 0, number + 1


class RecordSink:
    """A shard of records in their order. Use it in a `with` statement.

    Args:
        local: The file to write.
        source: The source of the records, whose tally gets their places.
    """

    def __init__(self, local: str, source: ShardSource):
        self._writer = ShardWriter(local, options=source.prepared.job.writer)
        self._tally = source.tally

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._writer.__exit__(kind, error, traceback)

    def write(self, given: Batch) -> None:
        """Writes records.

        Raises:
            StorageError: They cannot be written.
        """
        self._writer.write(given.batch.records, given.batch.crc32cs)
        self._tally.places.append(given.origins)

    def finish(self) -> WrittenShard:
        """Finishes the file, and reads it back.

        Raises:
            DataLossError: It does not hold what was written.
        """
        return self._writer.finish()


class RowSink(RecordSink):
    """A shard of rows of tokens, packed from documents.

    Args:
        local: The file to write.
        source: The source of the documents, whose tally counts tokens and rows. If it
            accepts damage, it accepts documents on which the tokenizer fails.
        pack: The options of rows.
    """

    def __init__(self, local: str, source: ShardSource, pack: PackOptions):
        tell = None if source.skipped is None else self._leave_out
        self._skipped = source.skipped
        self._reader = reader_of(pack, source.prepared.files.spec, tell=tell)
        super().__init__(local, source)
        self._packer = RowPacker(pack, directory=os.path.dirname(local))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._packer.close()
        super().__exit__(kind, error, traceback)

    def write(self, given: Batch) -> None:
        """Tokenises and packs documents.

        Raises:
            FastTokenizerDiffersError: The fast tokenizer returns other ids.
            UserFunctionError: The user's tokenizer failed.
            DataLossError: A record is not the one that was read.
        """
        given.check()
        self._given = given
        documents = self._reader.read(given.batch.records, given.place_of)
        self._packer.add(documents, given.origins)

    def _leave_out(self, number: int, failure: InputError) -> None:
        """Lists a document, which gets no tokens, with the skipped damage."""
        place = self._given.batch.places[number]
        damage = CorruptRecordError(
            failure.what, where=failure.where, cure=failure.cure
        )
        damage.reason, damage.detail = "document", failure.what
        assert self._skipped is not None
        self._skipped.add(damage, self._given.path, region=(place, place))

    def finish(self) -> WrittenShard:
        """Writes the rows, and reads the file back.

        Raises:
            DataLossError: It does not hold what was written.
            StorageError: They cannot be written.
        """
        for rows in self._packer.rows():
            self._writer.write(rows, list(map(google_crc32c.value, rows)))
        written = self._writer.finish()
        self._tally.packed = self._packer.counts()
        self._tally.segments = self._packer.segments().encode()
        return written
