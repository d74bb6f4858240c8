"""The conversion of a sample: parts of the inputs become shards, which are measured.

The code is that of `gristmill convert`, in worker processes as there: cores that share
caches and memory are slower together. Parts are spread evenly over all stored bytes; of
a compressed file, which can only be read from its start, a part is its first bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import tempfile
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunks import BLOCK_BYTES
from gristmill.dataset.metadata import layout
from gristmill.pipelines.local.pool import map_unordered
from gristmill.transforms.conversion.begin import plan_job
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions, ShardPlan
from gristmill.transforms.sources.input_files import InputFiles

_PARTS = 24
_LEAST_PARTS = 8
_MOST_PROCESSES = 8
_MOST_REGIONS = 1 << 20
_GOLDEN = (5**0.5 - 1) / 2
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


class Sample(NamedTuple):
    """What parts of some inputs became, and of all of them by the ratio of bytes.

    Attributes:
        stored_bytes: Size of the parts in the inputs.
        records: Number of records that were written.
        raw_bytes: Their lengths, added.
        file_bytes: Size of their chunks and indexes.
        cpu_seconds: CPU time of the conversion.
        damaged_regions: Damaged regions that were passed over.
    """

    stored_bytes: float = 0
    records: float = 0
    raw_bytes: float = 0
    file_bytes: float = 0
    cpu_seconds: float = 0
    damaged_regions: float = 0

    def plus(self, other: Sample) -> Sample:
        """Returns the sum of two."""
        return Sample(*(a + b for a, b in zip(self, other, strict=True)))

    def of_all(self, input_bytes: int) -> Sample:
        """Returns the estimate for all inputs."""
        times = input_bytes / max(1, self.stored_bytes)
        return Sample(*(times * amount for amount in self))


def sampled_parts(
    sizes: npt.NDArray[np.int64],
    splittable: npt.NDArray[np.bool_],
    *,
    parts: int,
    part_bytes: int,
) -> tuple[ShardPlan, list[int]]:
    """Returns a plan that cuts parts out, and the shards that they are.

    Args:
        sizes: int64 [files], bytes as stored.
        splittable: bool [files], whether reading can begin in the middle.
        parts: How many parts. What is not larger than all of them is taken as a whole.
        part_bytes: Size of a part.
    """
    edges = np.concatenate(([0], np.cumsum(sizes)))
    total = int(edges[-1])
    if total <= parts * part_bytes:
        places = np.concatenate((np.arange(0, total, part_bytes), edges[:-1]))
    else:
        places = (np.arange(parts) * total) // parts
    places = places[places < total]
    files = np.searchsorted(edges, places, side="right") - 1
    begins, first = np.unique(
        np.where(splittable[files], places, edges[files]), return_index=True
    )
    closed = np.append(edges[:-1][~splittable], total)
    ends = np.minimum.reduce(
        [
            begins + part_bytes,
            np.append(begins[1:], total),
            closed[np.searchsorted(closed[:-1], begins, side="right")],
            np.where(splittable[files[first]], total, edges[1:][files[first]]),
        ]
    )
    cuts = np.unique(np.concatenate((begins, ends, [0, total])))
    # An early stop leaves parts from everywhere.
    order = np.argsort(np.arange(len(begins)) * _GOLDEN % 1, kind="stable")
    plan = ShardPlan(sizes=sizes, splittable=splittable, cut_bytes=cuts)
    return plan, np.searchsorted(cuts, begins)[order].tolist()


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
    plan, shards = sampled_parts(
        files.sizes,
        files.splittable,
        parts=max(2, round(_PARTS * share)),
        part_bytes=size.part_bytes,
    )
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
        seconds += [size.seconds] * len(shards)
        begun = time.monotonic()
        tasks = [
            (shard, begun + share * most)
            for shard, most in zip(shards, seconds, strict=False)
        ]
        processes = min(workers, _MOST_PROCESSES, len(shards))
        measure = functools.partial(_converted, prepared)
        return functools.reduce(
            Sample.plus, map_unordered(measure, tasks, workers=processes), Sample()
        )


def _converted(prepared: PreparedJob, task: tuple[int, float]) -> Sample:
    """Converts a part to a shard; nothing after its deadline."""
    shard, deadline = task
    if time.monotonic() > deadline:
        return Sample()
    begun = time.process_time()
    report = convert_shard(prepared, shard)
    seconds = time.process_time() - begun
    if seconds < _WARM_SECONDS and os.getpid() not in _warm:
        _warm.add(os.getpid())  # It imported modules, too: once more.
        begun = time.process_time()
        report = convert_shard(prepared, shard)
        seconds = time.process_time() - begun
    index = layout.join(prepared.job.output, layout.index_path(report.path))
    cuts = prepared.plan.cut_bytes
    return Sample(
        stored_bytes=int(cuts[shard + 1] - cuts[shard]),
        records=report.written.records,
        raw_bytes=report.written.raw_bytes,
        file_bytes=max(0.0, report.file_bytes - SHARD_BYTES) + os.path.getsize(index),
        cpu_seconds=seconds,
        damaged_regions=report.skipped_regions,
    )
