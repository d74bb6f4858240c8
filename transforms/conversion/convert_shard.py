"""Making one shard: its ranges of the inputs are read, written and checked."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, WrittenShard
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DataLossError,
    TransposedChunkError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.shard_output import (
    Progress,
    ReadBatch,
    Tally,
    copied_records,
    may_be_copied,
    prove_rows,
    write_records,
    write_rows,
)
from gristmill.transforms.conversion.span_check import SpanCheck
from gristmill.transforms.jobs.conversion_job import PreparedJob, check_current
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.source import (
    KeptPass,
    RangeReader,
    SkippedRegions,
    source_of,
)
from gristmill.transforms.tokens.row_packer import RowPacker

# How much of the ranges after the one that is read is fetched: files can be small.
_AHEAD_BYTES = 4 << 20
_AHEAD_RANGES = 16
_NOTHING = RecordsDigest()


def finished_shard(prepared: PreparedJob, shard: int) -> ShardReport | None:
    """Returns the report of a shard that an earlier run finished, None if none did."""
    place = prepared.shard_place(shard)
    return place.finished(prepared.fingerprint)


def convert_shard(
    prepared: PreparedJob,
    shard: int,
    *,
    place: ShardPlace | None = None,
    kept: KeptPass | None = None,
    progress: Progress | None = None,
    cpu_lock: AbstractContextManager[Any] | None = None,
) -> ShardReport:
    """Makes one shard, its index, and the list of what it leaves out.

    The same arguments give the same bytes: it can run again, or twice at once.

    Args:
        prepared: The job.
        shard: Number of the shard.
        place: What is there already; by default that is looked up.
        kept: Has the pass over a file in which earlier shards were made, and gets that
            of this shard. By default the file is read from its start.
        progress: Called after each block that was read.
        cpu_lock: Held while the shard is converted, not while storage is waited for.

    Returns:
        What was counted.

    Raises:
        CorruptInputError: The input is damaged, and that is not accepted.
        FastTokenizerDiffersError: The fast tokenizer gives other ids.
        JobChangedError: Another conversion has taken over the output.
        UserFunctionError: The user's function failed.
        DataLossError: The finished shard does not hold what was read.
        StorageError: Reading or writing failed.
    """
    job, ranges = prepared.job, prepared.plan.ranges(shard)
    if place is None:
        place = prepared.shard_place(shard)
    if cpu_lock is None:
        cpu_lock = nullcontext()
    skipped = SkippedRegions(job.max_corrupt)
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    with (
        storage_for(job.output).temporary(temporary) as local,
        _packer(job.pack, local) as packer,
    ):
        packed = segments = None
        written, tally = _copied(prepared, ranges, local, progress, cpu_lock)
        if written is None:
            tally = Tally()
            accepted = skipped if job.on_corrupt == "skip" else None
            batches = record_batches(prepared, ranges, accepted, tally, kept)
            begun = list(itertools.islice(batches, 1))  # Waits for the first bytes.
            with cpu_lock, ShardWriter(local, options=job.writer) as writer:
                batches = itertools.chain(begun, batches)
                del begun
                if packer is None:
                    write_records(writer, batches, prepared, tally, progress)
                else:
                    write_rows(writer, batches, prepared, tally, progress, packer)
                written = writer.finish()
                if packer is not None:
                    prove_rows(packer, local, written)
                    packed = packer.counts()
                    segments = packer.segments().encode()
        report = ShardReport(
            path=place.path,
            shard_index=shard,
            job=prepared.fingerprint,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=tally.read,
            written=written.digest,
            dropped_records=tally.dropped_records + tally.left_out.records,
            added_records=tally.added_records,
            changed_records=tally.changed_records,
            null_rows=tally.null_rows,
            skipped_regions=len(skipped.found),
            skipped_bytes=skipped.bytes,
            spans=tuple(tally.spans),
            packed=packed,
        )
        check_counts(report, mapped=job.map is not None, left_out=tally.left_out)
        check_current(prepared)  # Another job may have begun hours ago.
        skipped.publish(place)
        places = None if job.pack is not None else Places.joined(tally.places)
        return place.publish(local, written, report, segments=segments, places=places)


def _copied(
    prepared: PreparedJob,
    ranges: Sequence[SourceRange],
    local: str,
    progress: Progress | None,
    cpu_lock: AbstractContextManager[Any],
) -> tuple[WrittenShard | None, Tally]:
    """Returns a shard that was copied and what was counted; None if it cannot be."""
    if may_be_copied(prepared):
        # What was damaged in transit is right the second time. Bytes of the shard must
        # not depend on it: chunks that are encoded again can differ.
        for _ in range(1 + storage_for(prepared.files[0].path).remote):
            tally = Tally()
            readers = _opened_ahead(_readers(prepared, ranges))
            with contextlib.suppress(CorruptShardError, TransposedChunkError), cpu_lock:
                copied = copied_records(local, readers, prepared, tally, progress)
                return copied, tally
    return None, Tally()


def _packer(
    options: PackOptions | None, local: str
) -> AbstractContextManager[RowPacker | None]:
    """Returns the packer of documents into rows, with its files beside a shard."""
    if options is None:
        return nullcontext()
    return RowPacker(options, directory=os.path.dirname(local))


def read_again(
    prepared: PreparedJob, report: ShardReport, *, kept: KeptPass | None = None
) -> tuple[RecordsDigest, tuple[SourceSpan, ...]]:
    """Reads the inputs of a finished shard, as they are now.

    Args:
        prepared: The job.
        report: Report of the shard.
        kept: As in `convert_shard`.

    Returns:
        What the report would say was read, and where.

    Raises:
        CorruptInputError: It is damaged where it was not.
        StorageError: Reading failed.
    """
    tally, ranges = Tally(), prepared.plan.ranges(report.shard_index)
    for _ in record_batches(prepared, ranges, SkippedRegions(), tally, kept):
        pass
    return tally.read, tuple(tally.spans)


def check_counts(
    report: ShardReport, *, mapped: bool, left_out: RecordsDigest = _NOTHING
) -> None:
    """Checks that a shard holds what was read for it.

    Args:
        report: What was counted.
        mapped: Whether a function of the user's may have changed records.
        left_out: Digest of those that were not selected.

    Raises:
        DataLossError: It does not.
    """
    expected = report.read.records - report.dropped_records + report.added_records
    packed = report.packed
    got = report.written.records
    if packed is not None:
        got = packed.documents + packed.empty_documents
    if got != expected:
        raise DataLossError(
            "records were lost or added on the way into a shard",
            where=report.path,
            expected=f"{expected:,} records ({report.read.records:,} read, "
            f"{report.dropped_records:,} dropped, {report.added_records:,} added)",
            got=f"{got:,}" + " documents" * (packed is not None),
            cure="run again; if it repeats, please report it",
        )
    kept = report.read - left_out
    if not mapped and packed is None and report.written != kept:
        raise DataLossError(
            "records changed on the way into a shard",
            where=report.path,
            expected=f"digest {kept.hex}",
            got=report.written.hex,
            cure="check disk and memory of this machine, then run again",
        )


def record_batches(
    prepared: PreparedJob,
    ranges: Sequence[SourceRange],
    skipped: SkippedRegions | None,
    tally: Tally,
    kept: KeptPass | None,
) -> Iterator[ReadBatch]:
    """Yields the records of all ranges a block at a time.

    Args:
        prepared: The job.
        ranges: The ranges.
        skipped: Takes damaged regions; None makes them errors.
        tally: Gets the span of each range that was read to its end.
        kept: As in `convert_shard`.
    """
    source = source_of(prepared.files.spec)
    readers = _readers(prepared, ranges, skipped, kept)
    for reader in _opened_ahead(readers):
        check = SpanCheck(source, reader.path, skipped)
        for batch in reader.batches():
            places = check.follow(batch)
            tally.count(batch)
            if (taken := reader.taken(batch)) is not batch:
                places = np.array(taken.places, np.int64)
            yield ReadBatch(reader.path, taken, reader.origins(prepared.files, places))
        check.finish(reader.span)
        tally.end_range(reader)


def _readers(
    prepared: PreparedJob,
    ranges: Sequence[SourceRange],
    skipped: SkippedRegions | None = None,
    kept: KeptPass | None = None,
) -> Iterator[RangeReader[Any]]:
    """Yields a reader for each range."""
    source = source_of(prepared.files.spec)
    for part in ranges:
        yield source.read(
            prepared.files[part.file_index],
            part,
            skipped=skipped,
            cuts=prepared.plan.cuts_within(part.file_index),
            kept=kept,
        )


def _opened_ahead(readers: Iterable[RangeReader[Any]]) -> Iterator[RangeReader[Any]]:
    """Yields readers; those after them fetch already, where the storage is remote.

    Memory: at most 8 MiB for what is fetched ahead.
    """
    ready: deque[RangeReader[Any]] = deque()
    ahead_bytes = 0
    for reader in readers:
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
