"""The conversion of a sample: parts of the inputs become shards, which are measured.

The code is that of `gristmill convert`, in worker processes as there: cores that share
caches and memory are slower together.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import tempfile
import time
from typing import NamedTuple

from gristmill.dataset.arrayrecord.simple_chunks import BLOCK_BYTES
from gristmill.dataset.metadata import layout
from gristmill.pipelines.advice.estimate import Estimate, total_of
from gristmill.pipelines.advice.sample_places import (
    InputPart,
    offset_of,
    plan_of_parts,
    sample_parts,
)
from gristmill.pipelines.local.pool import map_unordered
from gristmill.transforms.conversion.begin import plan_job
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles

_PARTS = 24
_LEAST_PARTS = 8
_MOST_PROCESSES = 8
_MOST_REGIONS = 1 << 20
# Of a shard besides its chunks: half of a last block on average, and one for the place
# of the footer.
SHARD_BYTES = 1.5 * BLOCK_BYTES
_WARM_SECONDS = 1.0
_warm: set[int] = set()  # Processes that have converted a part.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSize:
    """How much of the inputs is converted.

    Attributes:
        part_bytes: Size of a part.
        seconds: After these, no other part begins.
        most_seconds: The same while there are few parts.
    """

    part_bytes: int = 2 << 20
    seconds: float = 4.0
    most_seconds: float = 20.0


class SampledPart(NamedTuple):
    """A part of the inputs that was converted to a shard.

    Attributes:
        part: The part.
        stored_bytes: Bytes of its records in the inputs.
        records: Number of records that were written.
        raw_bytes: Their lengths, added.
        file_bytes: Size of their chunks and index.
        cpu_seconds: CPU time of its conversion.
        damaged_regions: Damaged regions that were passed over.
    """

    part: InputPart
    stored_bytes: int
    records: int
    raw_bytes: int
    file_bytes: float
    cpu_seconds: float
    damaged_regions: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """A sample of the inputs of one job.

    Attributes:
        input_bytes: Size of all inputs, as stored.
        parts: Parts that were converted.
        heads: Whether some parts are heads of compressed files.
    """

    input_bytes: int
    parts: tuple[SampledPart, ...]
    heads: bool

    @property
    def sampled_bytes(self) -> int:
        """Size of the parts, as stored."""
        return sum(one.part.end - one.part.begin for one in self.parts)

    def total(self, name: str) -> Estimate:
        """Returns an amount of all inputs, of a field of `SampledPart`."""
        spans = [max(1, one.part.end - one.part.begin) for one in self.parts]
        return total_of(
            [getattr(one, name) for one in self.parts],
            [one.stored_bytes for one in self.parts],
            [
                one.part.weight / span
                for one, span in zip(self.parts, spans, strict=True)
            ],
            input_bytes=self.input_bytes,
            read_share=self.sampled_bytes / max(1, self.input_bytes),
        )


def convert_sample(
    job: ConversionJob,
    files: InputFiles,
    *,
    share: float = 1.0,
    size: SampleSize,
    workers: int,
) -> Sample:
    """Converts parts of the inputs of a job, for some seconds at most.

    Args:
        job: The job.
        files: Its input files. The same ones give the same parts.
        share: This job's share of a sample of several jobs.
        size: The size of that sample.
        workers: Number of processes of the conversion.

    Raises:
        GristmillError: The conversion of a part failed.
        WorkerDiedError: A process ended before it was done.
    """
    parts = sample_parts(
        files.sizes,
        files.splittable,
        parts=max(2, round(_PARTS * share)),
        part_bytes=size.part_bytes,
        offset=offset_of(files.digest),
    )
    plan, shards = plan_of_parts(parts, files.sizes, files.splittable)
    with tempfile.TemporaryDirectory(prefix="gristmill-plan-") as output:
        job = dataclasses.replace(
            job,
            output=output,
            plan=PlanOptions(),
            # Damage should not prevent a measurement.
            on_corrupt="skip",
            max_corrupt=_MOST_REGIONS,
        )
        prepared = dataclasses.replace(plan_job(job, files), plan=plan)
        prepared.store()
        # The first one in any case, a few unless that takes much longer.
        seconds = [math.inf, *[size.most_seconds] * (_LEAST_PARTS - 1)]
        seconds += [size.seconds] * len(parts)
        begun = time.monotonic()
        tasks = [
            (part, shard, begun + share * most)
            for part, shard, most in zip(parts, shards, seconds, strict=False)
        ]
        processes = min(workers, _MOST_PROCESSES, len(parts))
        measure = functools.partial(_converted, prepared)
        found = list(map_unordered(measure, tasks, workers=processes))
    return Sample(
        input_bytes=int(files.sizes.sum()),
        parts=tuple(one for one in found if one is not None),
        heads=not files.splittable.all(),
    )


def _converted(
    prepared: PreparedJob, task: tuple[InputPart, int, float]
) -> SampledPart | None:
    """Converts a part to a shard; None after its deadline."""
    part, shard, deadline = task
    if time.monotonic() > deadline:
        return None
    begun = time.process_time()
    report = convert_shard(prepared, shard)
    seconds = time.process_time() - begun
    if seconds < _WARM_SECONDS and os.getpid() not in _warm:
        _warm.add(os.getpid())  # It imported modules, too: once more.
        begun = time.process_time()
        report = convert_shard(prepared, shard)
        seconds = time.process_time() - begun
    output, files = prepared.job.output, prepared.files
    sized = FORMATS[files.spec.format].sized
    stored = 0
    for span in report.spans:
        if sized and files.splittable[span.file_index]:
            if span.start_bytes is not None and span.stop_bytes is not None:
                stored += span.stop_bytes - span.start_bytes
        else:
            stored = part.end - part.begin
    index = layout.join(output, layout.index_path(report.path))
    return SampledPart(
        part=part,
        stored_bytes=stored,
        records=report.written.records,
        raw_bytes=report.written.raw_bytes,
        file_bytes=max(0.0, report.file_bytes - SHARD_BYTES) + os.path.getsize(index),
        cpu_seconds=seconds,
        damaged_regions=report.skipped_regions,
    )
