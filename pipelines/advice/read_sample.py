"""The sample of a job's records."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptRecordError,
    FalseStartError,
)
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.advice.sample_places import (
    InputPart,
    offset_of,
    plan_of_parts,
    sample_parts,
)
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.quarantine import DamageHandler
from gristmill.transforms.sources.record_source import certain_place, source_of

_PARTS = 48
_PART_BYTES = 192 << 10
# For formats whose records have no places: a few rows, and opening a file, matter less
# in larger parts.
_TABLE_PART_BYTES = 512 << 10
_MOST_RAW_BYTES = 16 << 20
_SECONDS = 2.0
# A few parts are always read, unless that takes much longer.
_LEAST_PARTS = 8
_MOST_SECONDS = 4.0
_REMOTE_AT_ONCE = 16
# Distance from the start of a file up to which searches are verified.
_FOLLOWED_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledPart:
    """The records of a part of the inputs.

    Attributes:
        part: The part.
        stored_bytes: Bytes of these records in the inputs.
        read_records: Number of records read.
        records: Records to write.
    """

    part: InputPart
    stored_bytes: int
    read_records: int
    records: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample of the inputs of one job.

    Attributes:
        input_bytes: Size of all inputs, as stored.
        parts: Parts read.
        whole: Whether that is all there is.
        heads: Whether some parts are heads of compressed files.
        damaged: The fault at the first damaged place, or "".
    """

    input_bytes: int
    parts: tuple[SampledPart, ...]
    whole: bool
    heads: bool
    damaged: str = ""


class _FirstDamage(DamageHandler):
    """Counts damaged regions, and keeps the first error."""

    error: CorruptInputError | None = None

    def begin(self, error: CorruptRecordError, path: str, **region: object) -> None:
        """See `DamageHandler`."""
        super().begin(error, path)
        self.error = self.error or error


def read_sample(
    job: ConversionJob,
    files: InputFiles,
    *,
    share: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
) -> Sample:
    """Reads a sample of the records of a job, and calls its function on them.

    The same inputs give the same parts. Reading ends after some seconds or mebibytes.

    Args:
        job: The job.
        files: Its input files.
        share: This job's share of a sample of several jobs.
        clock: Tells the time, in seconds.

    Raises:
        CorruptInputError: No part could be read.
        UserFunctionError: The function failed.
        StorageError: Reading failed.
    """
    sized = FORMATS[files.spec.format].sized
    splittable = files.splittable
    parts = sample_parts(
        files.sizes,
        splittable,
        parts=max(2, round(_PARTS * share)),
        part_bytes=_PART_BYTES if sized else _TABLE_PART_BYTES,
        offset=offset_of(files.digest),
    )
    plan, shards = plan_of_parts(parts, files.sizes, splittable)
    remote = any(storage_for(path).remote for path in files.paths[:1])
    at_once = _REMOTE_AT_ONCE if remote else 1
    wanted = list(zip(parts, map(plan.ranges, shards), strict=True))
    found: list[SampledPart] = []
    damage = _FirstDamage()
    failed: CorruptInputError | None = None
    begun, raw_bytes = clock(), 0

    def read(one: tuple[InputPart, Sequence[SourceRange]]) -> SampledPart | Exception:
        part, ranges = one
        begin, place = ranges[0].begin_bytes, None
        while True:
            try:
                return _read_part(job, files, part, ranges, damage, place)
            except FalseStartError as e:
                # A frame inside a record, or damage: a conversion finds out.
                if place is not None or begin > _FOLLOWED_BYTES:
                    return e
                file = files[ranges[0].file_index]
                place = certain_place(file, begin, on_damage=damage)
            except CorruptInputError as e:
                return e

    for first in range(0, len(wanted), at_once):
        seconds = clock() - begun
        enough = seconds > _SECONDS * share or raw_bytes > _MOST_RAW_BYTES * share
        least = 1 if seconds > _MOST_SECONDS * share else _LEAST_PARTS * share
        if enough and len(found) >= least:
            break
        some = wanted[first : first + at_once]
        for outcome in map_all(read, some, at_once=at_once):
            if isinstance(outcome, CorruptInputError):
                failed = failed or outcome
            elif isinstance(outcome, SampledPart):
                found.append(outcome)
                raw_bytes += sum(map(len, outcome.records))
    if failed is not None and not any(part.read_records for part in found):
        raise failed
    error = damage.error
    covered = sum(part.part.end - part.part.begin for part in found)
    return Sample(
        input_bytes=int(files.sizes.sum()),
        parts=tuple(found),
        whole=covered >= int(files.sizes.sum()),
        heads=not splittable.all(),
        damaged="" if error is None else str(error).partition("\n")[0],
    )


def _read_part(
    job: ConversionJob,
    files: InputFiles,
    part: InputPart,
    ranges: Sequence[SourceRange],
    damage: DamageHandler,
    first_place: int | None,
) -> SampledPart:
    source = source_of(files.spec)
    function = None if job.map is None else load_function(job.map)
    sized, plain = FORMATS[files.spec.format].sized, files.splittable
    records: list[bytes] = []
    stored = read = 0
    for one in ranges:
        file = files[one.file_index]
        place = first_place if one is ranges[0] else None
        reader = source.read(file, one, on_damage=damage, first_place=place)
        for batch in reader.batches():
            read += len(batch.records)
            if function is None:
                records += batch.records
                continue
            for place, record in zip(batch.places, batch.records, strict=True):
                where = f"{file.path}, {source.place_text(place)}"
                records += call(function, record, source=where)
        span = reader.span
        if sized and plain[one.file_index]:
            if span.start_bytes is not None and span.stop_bytes is not None:
                stored += span.stop_bytes - span.start_bytes
        else:
            end = file.size_bytes if one.end_bytes < 0 else one.end_bytes
            stored += end - one.begin_bytes
    return SampledPart(
        part=part,
        stored_bytes=stored,
        read_records=read,
        records=tuple(records),
    )
