"""Counting the records of all inputs, in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from gristmill.dataset.base.errors import DataLossError, FalseStartError
from gristmill.transforms.conversion.counted_parts import (
    DOUBTED,
    NO_RECORD,
    CountedPart,
    CountedParts,
    CountTask,
    PartCollector,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.plan_by_records import RecordCounts
from gristmill.transforms.planning.shard_plan import Int64, SourceRange
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.quarantine import DamageHandler
from gristmill.transforms.sources.record_source import certain_place, source_of

_LEAST_STRIDE_RECORDS = 1024
_STRIDES_A_SHARD = 8


def stride_for(records_per_shard: int) -> int:
    """Returns the numbers of records between the offsets that a plan needs.

    A shard that begins in between has that many records, at most, passed over: an
    eighth of a shard, or a number that takes no time. Offsets take eight bytes each: at
    most 64 bytes a shard.
    """
    return max(_LEAST_STRIDE_RECORDS, records_per_shard // _STRIDES_A_SHARD)


PART_BYTES = 256 << 20
# Up to here a worker that doubts what it found goes through the file from its start.
_NEAR_BYTES = 1 << 30


def parts_of_files(files: InputFiles, *, part_bytes: int = PART_BYTES) -> Int64:
    """Returns into how many parts each file is cut to be counted: int64 [files]."""
    parts = np.maximum(1, -(-files.sizes // part_bytes))
    in_parts = files.splittable & FORMATS[files.spec.format].in_parts
    return np.where(in_parts, parts, 1)


def count_tasks(
    job: ConversionJob, files: InputFiles, *, part_bytes: int = PART_BYTES
) -> Iterator[CountTask]:
    """Yields a task for each part of each file, in order."""
    number = 0
    for file, parts in enumerate(parts_of_files(files, part_bytes=part_bytes).tolist()):
        whole = files[file]
        end = whole.size_bytes if whole.compression == "none" else -1
        for part in range(parts):
            last = part == parts - 1
            yield CountTask(
                job.split,
                number,
                *whole,
                begin_bytes=part * part_bytes,
                end_bytes=end if last else (part + 1) * part_bytes,
            )
            number += 1


def count_part(
    job: ConversionJob, task: CountTask, *, near_bytes: int = _NEAR_BYTES
) -> CountedPart:
    """Counts the good records of one part of a file.

    Args:
        job: The job.
        task: The part.
        near_bytes: How far from the start of a file it goes there, if what is found at
            the start of the part may be no frame.

    Raises:
        CorruptInputError: It is damaged and the job does not accept that.
    """
    try:
        return _count(job, task)
    except FalseStartError:
        # A frame inside a record, or real damage.
        if task.begin_bytes > near_bytes:
            return _counted(task, DOUBTED, 0)
        damage = DamageHandler() if job.on_corrupt == "quarantine" else None
        first = certain_place(task.file, task.begin_bytes, on_damage=damage)
        return _count(job, task, first_place=first)


def _count(
    job: ConversionJob, task: CountTask, *, first_place: int | None = None
) -> CountedPart:
    source = SourceRange(
        file_index=0,
        begin_bytes=task.begin_bytes,
        end_bytes=task.end_bytes,
        exact=task.begin_bytes == 0,
    )
    # Damaged regions are set aside with the shards: here they are only counted.
    damage = DamageHandler(max_regions=job.max_corrupt)
    count = source_of(task.spec).count(
        task.file,
        source,
        stride_records=stride_for(job.plan.value or 1),
        on_damage=damage if job.on_corrupt == "quarantine" else None,
        first_place=first_place,
    )
    if count.start is None:
        return _counted(task, NO_RECORD, 0)
    return _counted(task, count.start, *count[1:])


def _counted(
    task: CountTask,
    start: int,
    stop: int,
    records: int = 0,
    offsets: Iterable[int] = (),
) -> CountedPart:
    file = None if task.begin_bytes else tuple(task.file)
    return CountedPart(
        task.split, task.number, file, start, stop, records, tuple(offsets)
    )


def count_files(job: ConversionJob, files: InputFiles) -> RecordCounts:
    """Counts the records of all files in this process, one part after the other.

    Raises:
        CorruptInputError: A file is damaged and the job does not accept that.
    """
    collected = PartCollector()
    for task in count_tasks(job, files):
        collected.add(count_part(job, task))
    return total_counts(job, collected)[1]


def total_counts(
    job: ConversionJob, collected: PartCollector, *, part_bytes: int = PART_BYTES
) -> tuple[InputFiles, RecordCounts]:
    """Returns all files, and the counts of all parts, which meet.

    A part that was entered at a frame within a record is counted again, from where the
    part before it ends: that is certain, by induction from the beginning of the file.

    Args:
        job: The job.
        collected: The counts of all parts.
        part_bytes: As in `count_tasks`.

    Raises:
        CorruptInputError: A part is damaged and the job does not accept that.
        DataLossError: A part was not counted.
    """
    found = collected.parts()
    parts = parts_of_files(found.files, part_bytes=part_bytes)
    numbers = found.columns["number"]
    if len(numbers) != parts.sum() or (numbers != np.arange(len(numbers))).any():
        raise DataLossError(
            "not all parts of the inputs were counted",
            where=f"{job.output}, split {job.split}",
            expected=f"{parts.sum():,} parts of {len(parts):,} files",
            got=f"{len(numbers):,} parts",
            cure="run the same command again; if it repeats, please report it",
        )
    again = _count_again(job, found, parts, part_bytes)
    if again:
        for part in again:
            collected.add(part)
        found = collected.parts()
    return found.files, RecordCounts(
        files=np.repeat(np.arange(len(parts)), parts),
        records=found.columns["records"],
        offsets=found.offsets,
        offset_ends=found.offset_ends,
        stride_records=stride_for(job.plan.value or 1),
    )


def _count_again(
    job: ConversionJob, found: CountedParts, parts: Int64, part_bytes: int
) -> list[CountedPart]:
    """Counts the parts again that do not begin where the part before them ends."""
    starts, stops = found.columns["start_bytes"], found.columns["stop_bytes"]
    first_parts = np.cumsum(parts) - parts
    fits = np.append([-1], stops[:-1]) == starts
    fits[first_parts] = True
    doubtful = np.searchsorted(first_parts, np.flatnonzero(~fits), "right") - 1
    again = []
    for file in np.unique(doubtful).tolist():
        first, whole = int(first_parts[file]), found.files[file]
        reached = int(stops[first])
        for number in range(first + 1, first + int(parts[file])):
            start, stop = int(starts[number]), int(stops[number])
            begin = (number - first) * part_bytes
            end = min(begin + part_bytes, whole.size_bytes)
            if start == reached:
                reached = stop
            elif not (start == NO_RECORD and reached >= end):
                task = CountTask(job.split, number, *whole, begin, end)
                made = _count(job, task, first_place=reached)
                again.append(made)
                reached = max(reached, made.stop_bytes)
    return again
