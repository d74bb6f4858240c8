"""The plan of a conversion, from the measured conversion of a sample.

The code is that of `gristmill convert`, with as many worker processes, since cores that
share caches and memory slow each other down. Parts are spread evenly over all stored
bytes; a part of a compressed file, which can only be read from its start, is its first
bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.chunks import BLOCK_BYTES
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.pipelines.local.pool import default_workers, map_unordered
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions, command_of
from gristmill.pipelines.text.printer import plural
from gristmill.transforms.conversion.begin import list_inputs, plan_job
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import (
    DEFAULT_SHARD_BYTES,
    PlanOptions,
    ShardPlan,
    plan_by_bytes,
)
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles

_PARTS = 24
_MOST_PARTS = 4_000_000
_MOST_PROCESSES = 8
_MOST_REGIONS = 1 << 20
# Bytes of a shard besides its chunks: half of the last block on average, and one for
# the place of the footer.
SHARD_BYTES = 1.5 * BLOCK_BYTES
_WARM_SECONDS = 1.0
_warm: set[int] = set()  # Processes that have converted a part.


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleSize:
    """The amount of inputs to convert.

    Attributes:
        part_bytes: Size of a part.
        seconds: The time after which no further part begins.
    """

    part_bytes: int = 2 << 20
    seconds: float = 6.0


class Sample(NamedTuple):
    """Measurements of converted parts, or an estimate for all inputs.

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
        parts: Number of parts; smaller inputs are taken as a whole.
        part_bytes: Approximate size of a part.
    """
    total = int(sizes.sum())
    size = PlanOptions(value=max(part_bytes, total // _MOST_PARTS))
    every = plan_by_bytes(size, sizes, splittable)
    begins, edges = every.pass_begins, every.cut_bytes
    if len(begins) > parts:
        begins = begins[np.arange(parts) * len(begins) // parts]
    # An early stop leaves parts from everywhere.
    begins = np.random.default_rng(0).permutation(begins)
    cuts = np.unique(np.concatenate(([0, total], edges[begins], edges[begins + 1])))
    plan = ShardPlan(sizes=sizes, splittable=splittable, cut_bytes=cuts)
    return plan, np.searchsorted(cuts, edges[begins]).tolist()


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
        files: Its input files, which determine the parts.
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
        # The first one in any case.
        until = time.monotonic() + share * size.seconds
        tasks = [
            (shard, until if number else math.inf)
            for number, shard in enumerate(shards)
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


# Every host opens an index for each shard.
_MOST_SHARDS = 16_384
_SHARDS_PER_WORKER = 2
_LEAST_SHARD_BYTES = 16 << 20
# A codec that saves less than this of the plain size costs more than it gives.
_LEAST_SAVED = 0.03
_START_SECONDS = 1.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The result and the duration of a conversion, and its command.

    Attributes:
        files: Number of input files.
        input_bytes: Their size, as stored.
        format: Their format.
        splits: The splits that are made.
        sampled_bytes: Size of the sample that was converted.
        records: Number of records to write.
        raw_bytes: Their lengths, added.
        file_bytes: Size of shards and indexes.
        shards: Number of shards.
        workers: Processes of the conversion on this machine.
        seconds: Duration on this machine, if storage keeps up.
        notes: Notes about the numbers.
        command: The command, to copy.
    """

    files: int
    input_bytes: int
    format: str
    splits: tuple[str, ...]
    sampled_bytes: int
    records: int
    raw_bytes: int
    file_bytes: int
    shards: int
    workers: int
    seconds: float
    notes: tuple[str, ...]
    command: str


def make_plan(
    options: ConvertOptions,
    *,
    workers: int | None = None,
    sample_size: SampleSize | None = None,
) -> Plan:
    """Plans a conversion.

    Args:
        options: The conversion; the plan chooses its shards, and whether to compress.
        workers: Processes of the conversion on this machine; None for all cores.
        sample_size: The amount to convert; None for the default.

    Raises:
        InputError: The inputs cannot be used, or have no records.
        GristmillError: Reading or converting a part of them failed.
    """
    given, workers = workers, workers or default_workers()
    jobs = conversion_of(options).jobs
    inputs = [list_inputs(job) for job in jobs]
    total = sum(int(files.sizes.sum()) for files in inputs)
    found, sampled = Sample(), Sample()
    for job, files in zip(jobs, inputs, strict=True):
        own = int(files.sizes.sum())
        sample = convert_sample(
            job,
            files,
            share=own / max(1, total),
            size=sample_size or SampleSize(),
            workers=workers,
        )
        sampled, found = sampled.plus(sample), found.plus(sample.of_all(own))
    if not found.records:
        raise InputError(
            "the sample of the inputs holds no records",
            where=" ".join(options.input),
            expected="at least one record",
            cure="see whether the inputs have records, and what --map drops",
        )
    notes = []
    if sampled.stored_bytes < total:
        notes.append("the numbers are estimates: a part of the input was converted")
        if not all(files.splittable.all() for files in inputs):
            notes[0] += ", of files that are read from their start the first bytes"
    if regions := int(sampled.damaged_regions):
        notes.append(
            f"{plural(regions, 'damaged region')}: the conversion stops there, unless "
            "--on-corrupt skip is given"
        )
    if found.file_bytes > (1 - _LEAST_SAVED) * found.raw_bytes:
        notes.append("compression saves little: the records are compressed already")
        options = dataclasses.replace(options, compression="uncompressed")
    options = dataclasses.replace(options, **_choose_shards(jobs, inputs, workers))
    plans = [
        _planned(files, job.plan)
        for files, job in zip(inputs, conversion_of(options).jobs, strict=True)
    ]
    shards = sum(plan.shards for plan in plans)
    workers = min(workers, sum(len(plan.pass_begins) for plan in plans))
    return Plan(
        files=sum(map(len, inputs)),
        input_bytes=total,
        format=FORMATS[inputs[0].spec.format].found_as,
        splits=tuple(job.split for job in jobs),
        sampled_bytes=int(sampled.stored_bytes),
        records=round(found.records),
        raw_bytes=round(found.raw_bytes),
        file_bytes=round(found.file_bytes + shards * SHARD_BYTES),
        shards=shards,
        workers=workers,
        seconds=_START_SECONDS + found.cpu_seconds / workers,
        notes=tuple(notes),
        command=command_of(options, workers=given),
    )


def _planned(files: InputFiles, plan: PlanOptions) -> ShardPlan:
    return plan_by_bytes(plan, files.sizes, files.splittable)


def _shards_of(inputs: Sequence[InputFiles], shard_bytes: int) -> int:
    options = PlanOptions(kind="shard_bytes", value=shard_bytes)
    return sum(_planned(files, options).shards for files in inputs)


def _choose_shards(
    jobs: Sequence[ConversionJob], inputs: Sequence[InputFiles], workers: int
) -> dict[str, Any]:
    """Returns an option for the number of shards, or none to keep the default.

    An option holds for each split, and a compressed file is read by one worker.
    """
    total = sum(int(files.sizes.sum()) for files in inputs)
    size, usual = DEFAULT_SHARD_BYTES, _shards_of(inputs, DEFAULT_SHARD_BYTES)
    while _shards_of(inputs, size) > _MOST_SHARDS and size < 1 << 40:
        size *= 2
    if size != DEFAULT_SHARD_BYTES:
        return {"shard_size": f"{size >> 20}MiB"}
    enough = min(_SHARDS_PER_WORKER * workers, total // _LEAST_SHARD_BYTES)
    one_cut = len(jobs) == 1 and bool(inputs[0].splittable.all())
    return {"num_shards": enough} if one_cut and usual < enough else {}
