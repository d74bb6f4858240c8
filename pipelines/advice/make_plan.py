"""The plan of a conversion: what it will make, in which time, and its command."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.advice.convert_sample import (
    SHARD_BYTES,
    Sample,
    SampleSize,
    convert_sample,
)
from gristmill.pipelines.local.pool import default_workers
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions, command_of
from gristmill.pipelines.text.formatting import plural
from gristmill.transforms.conversion.begin import list_inputs
from gristmill.transforms.planning.shard_plan import (
    DEFAULT_SHARD_BYTES,
    PlanOptions,
    ShardPlan,
    plan_by_bytes,
)
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles

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
        options: The conversion. Its shards, and whether they are compressed, are chosen
            here.
        workers: Processes of the conversion on this machine; None for all cores.
        sample_size: How much is converted; None for the usual.

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
    options = dataclasses.replace(
        options,
        **choose_shards(
            total,
            workers=workers,
            one_cut=len(jobs) == 1 and bool(inputs[0].splittable.all()),
            shards_of=functools.partial(_shards_of, inputs),
        ),
    )
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


def choose_shards(
    input_bytes: int,
    *,
    workers: int,
    one_cut: bool,
    shards_of: Callable[[int], int],
) -> dict[str, Any]:
    """Chooses how many shards to make: an option of a conversion, or none.

    Args:
        input_bytes: Size of the input as stored.
        workers: Processes that convert.
        one_cut: Whether there is one split, and its files can be cut anywhere. An
            option holds for each split, and a compressed file is read by one worker.
        shards_of: Returns the number of shards for a number of input bytes each.
    """
    usual = shards_of(DEFAULT_SHARD_BYTES)
    if usual > _MOST_SHARDS:
        size = DEFAULT_SHARD_BYTES
        while shards_of(size) > _MOST_SHARDS and size < 1 << 40:
            size *= 2
        return {"shard_size": f"{size >> 20}MiB"}
    enough = min(_SHARDS_PER_WORKER * workers, input_bytes // _LEAST_SHARD_BYTES)
    return {"num_shards": enough} if one_cut and usual < enough else {}
