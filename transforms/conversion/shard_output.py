"""The output of a shard: records that are mapped and written, or packed into rows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.chunk_encoder import check_versions
from gristmill.dataset.arrayrecord.shard_copier import ShardCopier
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, WrittenShard
from gristmill.dataset.arrayrecord.walk import walk_file
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.base.places import Places
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.chat.template_file import with_template
from gristmill.transforms.conversion.span_check import SpanCheck
from gristmill.transforms.functions.user_functions import (
    RecordFunction,
    call,
    load_function,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import (
    RangeReader,
    SkippedRegions,
    Source,
    source_of,
)
from gristmill.transforms.tokens.row_packer import RowPacker
from gristmill.transforms.tokens.tokenizers import find_tokenizer


class ReadBatch(NamedTuple):
    """Records that were read.

    Attributes:
        path: The file.
        batch: The records that are taken.
        origins: Their sources.
    """

    path: str
    batch: RecordBatch
    origins: Places


Progress = Callable[[int, int, int], None]
"""Gets the records, raw bytes and tokens of a shard so far."""


@dataclasses.dataclass
class Tally:
    """What is counted while records are read.

    Attributes:
        read: Digest of the records.
        left_out: Digest of those that were not selected.
        dropped_records: Those for which the user's function returned nothing.
        added_records: Those that it returned beyond one for each.
        changed_records: Those of which it returned only others.
        null_rows: Rows of which there is none, for their nulls.
        tokens: Tokens of documents, where they are packed.
        spans: Where they came from, of the ranges that were read to their end.
        places: The sources of the records that were written.
    """

    read: RecordsDigest = dataclasses.field(default_factory=RecordsDigest)
    left_out: RecordsDigest = dataclasses.field(default_factory=RecordsDigest)
    dropped_records: int = 0
    added_records: int = 0
    changed_records: int = 0
    null_rows: int = 0
    tokens: int = 0
    spans: list[SourceSpan] = dataclasses.field(default_factory=list)
    places: list[Places] = dataclasses.field(default_factory=list)

    def count(self, batch: RecordBatch) -> None:
        """Counts records that were read."""
        self.null_rows += batch.null_rows
        lengths = np.fromiter(map(len, batch.records), np.int64, len(batch.records))
        self.read += RecordsDigest.of(np.array(batch.crc32cs, np.uint32), lengths)

    def end_range(self, reader: RangeReader[Any]) -> None:
        """Counts a range that was read to its end."""
        self.left_out += reader.left_out
        self.spans.append(reader.span)

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
    batches: Iterable[ReadBatch],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
) -> None:
    """Writes the records of a shard.

    Args:
        writer: Takes them.
        batches: The records.
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
    for path, batch, origins in batches:
        if function is None:
            writer.write(batch.records, batch.crc32cs)
        else:
            counts = []
            for place, record in zip(batch.places, batch.records, strict=True):
                source = f"{path}, {place_text(place)}"
                results = tally.mapped(function, record, source=source)
                writer.write(results, list(map(google_crc32c.value, results)))
                counts.append(len(results))
            origins = origins.repeated(counts)
        tally.places.append(origins)
        tally.show(progress)


def write_rows(
    writer: ShardWriter,
    batches: Iterable[ReadBatch],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
    packer: RowPacker,
) -> None:
    """Tokenises the documents of a shard, packs them, and writes the rows.

    Args:
        writer: Takes the rows.
        batches: The records.
        prepared: The job.
        tally: Counts the records.
        progress: Called after each batch.
        packer: Packs the documents.

    Raises:
        FastTokenizerDiffersError: The fast tokenizer gives other ids.
        UserFunctionError: The user's function failed.
        DataLossError: A record is not the one that was read.
        StorageError: They cannot be written.
    """
    job = prepared.job
    assert job.pack is not None  # It writes rows.
    function = None if job.map is None else load_function(job.map)
    source = source_of(prepared.files.spec)
    reader = reader_of(job.pack, prepared.files.spec)
    for path, batch, origins in batches:
        _check_records(batch, path, source)
        records: list[bytes] = []
        places: list[int] = []
        if function is None:
            records, places = batch.records, list(batch.places)
        else:
            counts = []
            for place, record in zip(batch.places, batch.records, strict=True):
                where = f"{path}, {source.place_text(place)}"
                results = tally.mapped(function, record, source=where)
                records += results
                places += [place] * len(results)
                counts.append(len(results))
            origins = origins.repeated(counts)
        place_of = functools.partial(_place_of, source, path, places)
        documents = reader.read(records, place_of)
        packer.add(documents, origins)
        tally.tokens += len(documents.ids)
        tally.show(progress)
    for rows in packer.rows():
        writer.write(rows, list(map(google_crc32c.value, rows)))


def _check_records(batch: RecordBatch, path: str, source: Source) -> None:
    """Checks that records are those whose checksums were read: no row has these.

    Raises DataLossError if one is not.
    """
    found = list(map(google_crc32c.value, batch.records))
    if found == batch.crc32cs:
        return
    for place, expected, got in zip(batch.places, batch.crc32cs, found, strict=True):
        if got != expected:
            raise DataLossError(
                "a record changed on the way to the tokenizer",
                where=f"{path}, {source.place_text(place)}",
                expected=f"crc32c {expected:#010x}",
                got=f"{got:#010x}",
                cure="check the memory of this machine, then run again",
            )


def _place_of(source: Source, path: str, places: Sequence[int], number: int) -> str:
    return f"{path}, {source.place_text(places[number])}"


def prove_rows(packer: RowPacker, local: str, written: WrittenShard) -> None:
    """Proves that a finished file holds every token of every document, once.

    Args:
        packer: What made the rows.
        local: The file.
        written: What it holds.

    Raises:
        DataLossError: It does not.
    """
    with open(local, "rb", buffering=0) as file:
        packer.prove(
            chunks.decode(hashed=False)
            for _, chunks in walk_file(
                file, written.footer, path=local, size_bytes=written.file_bytes
            )
            if chunks is not None
        )


TRIED_FILES = 8  # The first of them that has a record is taken.
TRIED_RECORDS = 10
_READ_BYTES = 1 << 16


def try_function(job: ConversionJob, files: Sequence[InputFile]) -> None:
    """Calls function and tokenizer of a job on the first records.

    What they return is dropped.

    Raises:
        UserFunctionError: The function fails, or returns a value that cannot be
            written.
        InputError: The tokenizer cannot be used, or the records are not documents.
        CorruptInputError: An input is damaged at its beginning, and the job does not
            accept that.
    """
    if job.map is None and job.pack is None:
        return
    function = None if job.map is None else load_function(job.map)
    pack = job.pack
    if pack is not None:
        pack = dataclasses.replace(pack, found=find_tokenizer(pack))
        pack = pack if pack.chat is None else with_template(pack)
    for number, file in enumerate(files):
        plain = file.compression == "none"
        beginning = SourceRange(
            file_index=number,
            begin_bytes=0,
            end_bytes=min(file.size_bytes, _READ_BYTES) if plain else -1,
        )
        skipped = SkippedRegions() if job.on_corrupt == "skip" else None
        source = source_of(file.spec)
        ranges = source.read(file, beginning, skipped=skipped)
        for batch in map(ranges.taken, ranges.batches()):
            reader = None
            if pack is not None:
                reader = reader_of(pack, source.spec)
            found = zip(batch.places, batch.records, strict=True)
            for place, record in itertools.islice(found, TRIED_RECORDS):
                where = f"{file.path}, {source.place_text(place)}"
                results: Sequence[bytes] = (record,)
                if function is not None:
                    results = call(function, record, source=where)
                if reader is not None:
                    reader.read(results, functools.partial(_always, where))
            if batch.records:
                return


def _always(place: str, number: int) -> str:
    del number
    return place


def may_be_copied(prepared: PreparedJob) -> bool:
    """Returns whether the records of a job stay as they are, and are in shards."""
    job = prepared.job
    is_shards = prepared.files.spec.format == "arrayrecord"
    return is_shards and job.map is None and job.pack is None


def copied_records(
    local: str,
    readers: Iterable[RangeReader[Any]],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
) -> WrittenShard | None:
    """Writes a shard of the records of ranges, in the chunks that they are in.

    Args:
        local: File to write.
        readers: Readers of the ranges.
        prepared: The job, which `may_be_copied`.
        tally: Counts the records.
        progress: Called after each range.

    Returns:
        The shard. None if a range is encoded otherwise than the job asks for: its
        records are to be read and written one by one.

    Raises:
        CorruptShardError: A range is damaged.
        TransposedChunkError: A range holds transposed chunks.
        StorageError: Reading or writing failed.
        DataLossError: The finished shard does not hold what was copied.
    """
    job, source = prepared.job, source_of(prepared.files.spec)
    check_versions(job.writer, where=local)
    with ShardCopier(local, options=job.writer) as copier:
        for reader in readers:
            copied = reader.copy(copier, job.writer)
            if copied is None:
                return None
            digest, places = copied
            check = SpanCheck(source, reader.path, None)
            check.add(digest)
            check.finish(reader.span)
            tally.read += digest
            tally.places.append(reader.origins(prepared.files, places))
            tally.end_range(reader)
            tally.show(progress)
        return copier.finish()
