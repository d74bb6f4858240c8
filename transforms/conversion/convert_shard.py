"""Making one shard: its ranges of the inputs are read, written and checked."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import DataLossError, FalseStartError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.streams.record_batch import RecordBatch
from gristmill.transforms.conversion.span_check import SpanCheck
from gristmill.transforms.jobs.map_function import RecordFunction, call
from gristmill.transforms.jobs.prepared_job import PreparedJob, check_current
from gristmill.transforms.named_function import load_function
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler, Quarantine
from gristmill.transforms.sources.kept_pass import KeptPass
from gristmill.transforms.sources.protocol import RangeReader
from gristmill.transforms.sources.source_of import certain_place, source_of

# How much of the ranges after the one that is read is fetched: files can be small.
_AHEAD_BYTES = 4 << 20
_AHEAD_RANGES = 16

Progress = Callable[[int, int], None]  # Gets the records and raw bytes read so far.


@dataclasses.dataclass
class _Tally:
    """What is counted while records are read."""

    read: RecordsDigest = dataclasses.field(default_factory=RecordsDigest)
    dropped_records: int = 0
    added_records: int = 0
    changed_records: int = 0
    spans: list[SourceSpan] = dataclasses.field(default_factory=list)

    def count(self, batch: RecordBatch) -> None:
        lengths = np.fromiter(map(len, batch.records), np.int64, len(batch.records))
        self.read += RecordsDigest.of(np.array(batch.crc32cs, np.uint32), lengths)


def finished_shard(prepared: PreparedJob, shard: int) -> ShardReport | None:
    """Returns the report of a shard that an earlier run finished, None if none did."""
    place = prepared.shard_place(shard)
    return place.finished(prepared.fingerprint)


def convert_shard(
    prepared: PreparedJob,
    shard: int,
    *,
    place: ShardPlace | None = None,
    first_place: int | None = None,
    kept: KeptPass | None = None,
    progress: Progress | None = None,
    cpu_lock: AbstractContextManager[Any] | None = None,
) -> ShardReport:
    """Makes one shard, its index, and what it sets aside.

    The same arguments give the same bytes: it can run again, or twice at once.

    Args:
        prepared: The job.
        shard: Number of the shard.
        place: What is there already; by default that is looked up.
        first_place: Where the first record of its first range begins, if that is
            known; otherwise the range is searched for it.
        kept: Has the pass over a compressed file in which earlier shards were made, and
            gets that of this shard. By default the file is read from its begin.
        progress: Called after each block that was read.
        cpu_lock: Held while the shard is converted, not while storage is waited for.

    Returns:
        What was counted.

    Raises:
        CorruptInputError: The input is damaged, and that is not accepted.
        JobChangedError: Another conversion has taken over the output.
        UserFunctionError: The user's function failed.
        DataLossError: The finished shard does not hold what was read.
        StorageError: Reading or writing failed.
    """
    ranges = prepared.plan.ranges(shard)
    if place is None:
        place = prepared.shard_place(shard)
    convert = functools.partial(
        _convert,
        prepared,
        shard,
        ranges,
        place=place,
        kept=kept,
        progress=progress,
        cpu_lock=nullcontext() if cpu_lock is None else cpu_lock,
    )
    try:
        return convert(first_place)
    except FalseStartError:
        # A frame inside a record, or real damage. Damage should be known before
        # terabytes are converted, so this does not wait for the commit.
        begin = ranges[0].begin_bytes
        file = prepared.files[ranges[0].file_index]
        damage = DamageHandler() if prepared.job.on_corrupt == "quarantine" else None
        return convert(certain_place(file, begin, on_damage=damage))


def _convert(
    prepared: PreparedJob,
    shard: int,
    ranges: Sequence[SourceRange],
    first_place: int | None,
    *,
    place: ShardPlace,
    kept: KeptPass | None,
    progress: Progress | None,
    cpu_lock: AbstractContextManager[Any],
) -> ShardReport:
    job = prepared.job
    path = place.path
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    tally = _Tally()
    with (
        closing(
            Quarantine(place, temporary, max_regions=job.max_corrupt)
        ) as quarantine,
        storage_for(job.output).temporary(temporary) as local,
    ):
        batches = _batches(
            prepared,
            ranges,
            first_place,
            quarantine if job.on_corrupt == "quarantine" else None,
            tally,
            kept,
        )
        begun = list(itertools.islice(batches, 1))  # Waits for the first bytes.
        with cpu_lock, ShardWriter(local, options=job.writer) as writer:
            batches = itertools.chain(begun, batches)
            del begun
            _write(writer, batches, prepared, tally, progress)
            written = writer.finish(check=job.check)
        report = ShardReport(
            path=path,
            shard_index=shard,
            job=prepared.fingerprint,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=tally.read,
            written=written.digest,
            dropped_records=tally.dropped_records,
            added_records=tally.added_records,
            changed_records=tally.changed_records,
            quarantined_regions=quarantine.regions,
            quarantined_bytes=quarantine.bytes,
            spans=tuple(tally.spans),
        )
        check_counts(report, mapped=job.map is not None)
        check_current(prepared)  # Another job may have begun hours ago.
        quarantine.publish()
        place.publish(local, written, report)
    return report


def read_again(
    prepared: PreparedJob, report: ShardReport, *, kept: KeptPass | None = None
) -> tuple[RecordsDigest, tuple[SourceSpan, ...]]:
    """Reads what a finished shard was made of, as it is now.

    Args:
        prepared: The job.
        report: Of the shard.
        kept: As for `convert_shard`.

    Returns:
        What the report would say was read, and where.

    Raises:
        CorruptInputError: It is damaged where it was not.
        StorageError: Reading failed.
    """
    tally, begin = _Tally(), None
    ranges = prepared.plan.ranges(report.shard_index)
    # Where a search led, or what was known later, is known now.
    if ranges and not ranges[0].exact:
        begin = report.spans[0].start_bytes
        if begin is None:
            begin = ranges[0].end_bytes  # All is in a record that begins before.
    for _, batch in _batches(prepared, ranges, begin, DamageHandler(), tally, kept):
        tally.count(batch)
    return tally.read, tuple(tally.spans)


def check_counts(report: ShardReport, *, mapped: bool) -> None:
    """Checks that a shard holds what was read for it.

    Args:
        report: What was counted.
        mapped: Whether a function of the user's may have changed records.

    Raises:
        DataLossError: It does not.
    """
    expected = report.read.records - report.dropped_records + report.added_records
    if report.written.records != expected:
        raise DataLossError(
            "records were lost or added on the way into a shard",
            where=report.path,
            expected=f"{expected:,} records ({report.read.records:,} read, "
            f"{report.dropped_records:,} dropped, {report.added_records:,} added)",
            got=f"{report.written.records:,}",
            cure="run again; if it repeats, please report it",
        )
    if not mapped and report.written != report.read:
        raise DataLossError(
            "records changed on the way into a shard",
            where=report.path,
            expected=f"digest {report.read.hex}",
            got=report.written.hex,
            cure="check disk and memory of this machine, then run again",
        )


def _batches(
    prepared: PreparedJob,
    ranges: Sequence[SourceRange],
    first_place: int | None,
    on_damage: DamageHandler | None,
    tally: _Tally,
    kept: KeptPass | None,
) -> Iterator[tuple[str, RecordBatch]]:
    """Yields the records of all ranges a block at a time, each with its file."""
    source = source_of(prepared.files.spec)
    readers = (
        source.read(
            prepared.files[part.file_index],
            part,
            on_damage=on_damage,
            first_place=first_place if number == 0 else None,
            cuts=prepared.plan.cuts_within(part.file_index),
            kept=kept,
        )
        for number, part in enumerate(ranges)
    )
    for reader in _opened_ahead(readers):
        check = SpanCheck(source, reader.path, on_damage)
        for batch in reader.batches():
            check.follow(batch)
            yield reader.path, batch
        check.finish(reader.span)
        tally.spans.append(reader.span)


def _opened_ahead(readers: Iterable[RangeReader]) -> Iterator[RangeReader]:
    """Yields readers; those after them fetch already, where the storage is remote.

    Memory: at most 8 MiB for what is fetched ahead.
    """
    ready: deque[RangeReader] = deque()
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


def _write(
    writer: ShardWriter,
    batches: Iterator[tuple[str, RecordBatch]],
    prepared: PreparedJob,
    tally: _Tally,
    progress: Progress | None,
) -> None:
    spec = prepared.job.map
    function = None if spec is None else load_function(spec)
    for path, batch in batches:
        tally.count(batch)
        if function is None:
            writer.write(batch.records, batch.crc32cs)
        else:
            place_text = source_of(prepared.files.spec).place_text
            places = (f"{path}, {place_text(place)}" for place in batch.places)
            _write_mapped(writer, function, places, batch, tally)
        if progress is not None:
            progress(tally.read.records, tally.read.raw_bytes)


def _write_mapped(
    writer: ShardWriter,
    function: RecordFunction,
    places: Iterable[str],
    batch: RecordBatch,
    tally: _Tally,
) -> None:
    for place, record in zip(places, batch.records, strict=True):
        results = call(function, record, source=place)
        if results:
            tally.added_records += len(results) - 1
            tally.changed_records += record not in results
        else:
            tally.dropped_records += 1
        writer.write(results, [google_crc32c.value(result) for result in results])
