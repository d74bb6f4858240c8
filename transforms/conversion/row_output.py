"""Writing a shard of rows: its records are documents, which are packed."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import google_crc32c

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, WrittenShard
from gristmill.dataset.arrayrecord.walk import walk_file
from gristmill.dataset.base.errors import DataLossError, FastTokenizerDiffersError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.conversion.record_output import Progress, Tally
from gristmill.transforms.functions.user_functions import load_function
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.record_source import Source, source_of
from gristmill.transforms.sources.shards.packed import (
    earlier_counts,
    original_places,
)
from gristmill.transforms.tokens.row_packer import RowPacker


def may_be_fast(prepared: PreparedJob) -> bool:
    """Returns whether a job uses the fast path, and no worker found a difference."""
    pack = prepared.job.pack
    if pack is None or not pack.fast:
        return False
    path = _note_path(prepared)
    return storage_for(path).stat(path) is None


def note_difference(prepared: PreparedJob, found: FastTokenizerDiffersError) -> None:
    """Tells all workers of a job that the fast path differs."""
    path = _note_path(prepared)
    # Several may find out at once: any of their notes serves.
    storage_for(path).write(path, f"{found}\n".encode())


def _note_path(prepared: PreparedJob) -> str:
    """Returns the path of the note: among the files deleted by the commit."""
    job = prepared.job
    split, _ = layout.parse_edition_key(job.split)
    path = layout.result_path(job.name, split, prepared.fingerprint)
    return layout.join(job.output, path)


def write_rows(
    writer: ShardWriter,
    batches: Iterable[tuple[str, RecordBatch]],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
    *,
    packer: RowPacker,
    fast: bool,
) -> None:
    """Tokenises the documents of a shard, packs them, and writes the rows.

    Args:
        writer: Takes the rows.
        batches: The records, each batch with the file that it was read from.
        prepared: The job.
        tally: Counts the records.
        progress: Called after each batch.
        packer: Packs the documents.
        fast: Whether the fast tokenizer may be used.

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
    reader = reader_of(job.pack, prepared.files.spec, fast=fast)
    spans = 0
    for path, batch in batches:
        for _ in range(spans, len(tally.spans)):
            packer.end_span()
        spans = len(tally.spans)
        tally.count(batch)
        _check_records(batch, path, source)
        records: list[bytes] = []
        places: list[int] = []
        if function is None:
            records, places = batch.records, list(batch.places)
        else:
            for place, record in zip(batch.places, batch.records, strict=True):
                where = f"{path}, {source.place_text(place)}"
                results = tally.mapped(function, record, source=where)
                records += results
                places += [place] * len(results)
        place_of = functools.partial(_place_of, source, path, places)
        documents = reader.read(records, place_of)
        packer.add(documents, places)
        tally.tokens += len(documents.ids)
        tally.show(progress)
    for _ in range(spans, len(tally.spans)):
        packer.end_span()
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
            rows
            for _, chunks in walk_file(
                file, written.footer, path=local, size_bytes=written.file_bytes
            )
            if chunks is not None
            for rows in chunks.decode(hashed=False)
        )


def made_rows(
    packer: RowPacker,
    prepared: PreparedJob,
    spans: Sequence[SourceSpan],
    *,
    differed: bool,
) -> tuple[PackedCounts, bytes]:
    """Returns the counts of a shard's rows, and the file of its segment index.

    Args:
        packer: What made the rows.
        prepared: The job.
        spans: What was read for them.
        differed: Whether the fast tokenizer gave other ids than the reference.
    """
    counts, segments = packer.counts(), packer.segments()
    counts += PackedCounts(reference_shards=int(differed))
    files = prepared.files
    if files.spec.format == "packed":
        counts += earlier_counts(spans, files)
        segments = original_places(segments, spans, files)
    return counts, segments.encode()
