"""Beginning a conversion: its inputs are listed, and its shards are planned."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from gristmill.dataset.arrayrecord.chunk_encoder import with_versions
from gristmill.transforms.chat.template_file import with_template
from gristmill.transforms.conversion.job_inputs import (
    CompareShards,
    begun_date,
    check_shards_apart,
    list_inputs,
)
from gristmill.transforms.conversion.shard_output import TRIED_FILES, try_function
from gristmill.transforms.conversion.take_output import (
    Overwrite,
    TakenOutput,
    take_output,
)
from gristmill.transforms.functions.user_functions import code_digest
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import ShardPlan, plan_by_bytes
from gristmill.transforms.sources.find_inputs import LookAt
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import look_at
from gristmill.transforms.sources.shards.source_split import with_sources
from gristmill.transforms.tokens.tokenizers import find_tokenizer

_log = logging.getLogger(__name__)

_MOST_NOTES = 10

TryMap = Callable[[ConversionJob, Sequence[InputFile]], None]


def plan_job(
    job: ConversionJob, files: InputFiles, *, overwrite: Overwrite = False
) -> PreparedJob:
    """Plans the shards of a job.

    Args:
        job: The job.
        files: Its input files.
        overwrite: Whether it starts over, whatever was begun before.
    """
    plan = plan_shards(job, files)
    if job.map is not None:
        job = dataclasses.replace(job, map_code_digest=code_digest(job.map))
    if job.pack is not None:
        pack = dataclasses.replace(job.pack, found=find_tokenizer(job.pack))
        if pack.chat is not None:
            date = "" if overwrite is True else begun_date(job)
            pack = with_template(pack, date=date)
        job = dataclasses.replace(job, pack=pack)
    job = dataclasses.replace(job, writer=with_versions(job.writer))
    prepared = PreparedJob(job=job, files=with_sources(files), plan=plan)
    prepared.check_shard_names()
    check_shards_apart(prepared)
    return prepared


def plan_shards(job: ConversionJob, files: InputFiles) -> ShardPlan:
    """Returns the cuts between the shards of a job; arguments are as for `plan_job`."""
    plan = plan_by_bytes(job.plan, files.sizes, files.splittable)
    if files.spec.format == "parquet":
        plan = _with_shared_groups(job, files, plan)
    return plan


def _with_shared_groups(
    job: ConversionJob, files: InputFiles, plan: ShardPlan
) -> ShardPlan:
    from gristmill.transforms.sources.parquet.shared_groups import shared_groups

    joined, notes = shared_groups(files, plan)
    for note in notes[:_MOST_NOTES]:
        _log.warning("%s: %s", job.output, note)
    return dataclasses.replace(plan, joined=joined) if joined.any() else plan


def begin_job(
    job: ConversionJob,
    *,
    overwrite: bool = False,
    look: LookAt = look_at,
    compare_shards: CompareShards | None = None,
    try_map: TryMap = try_function,
) -> TakenOutput:
    """Lists the inputs of a job, plans its shards, and takes possession of its output.

    Args:
        job: The job.
        overwrite: Whether to replace the split's existing files.
        look: Looks into the input files, by default in this process.
        compare_shards: As in `take_output`.
        try_map: Tries the job's function and tokenizer, by default in this process.

    Raises:
        InputError: Inputs or options cannot be used.
        UserFunctionError: The job's function fails at the first records.
        JobChangedError: The output belongs to another job.
    """
    files = list_inputs(job, look=look, anew=overwrite)
    if job.map is not None or job.pack is not None:
        try_map(job, files.first(TRIED_FILES))
    return take_output(
        plan_job(job, files, overwrite=overwrite),
        overwrite=overwrite,
        compare_shards=compare_shards,
    )


def log_plan(taken: TakenOutput) -> None:
    """Logs how many shards a job makes, or that it has been done already."""
    prepared = taken.prepared
    where = prepared.job.output, prepared.job.split
    if taken.committed is not None:
        _log.info("%s: split %s is committed already; nothing to do", *where)
        return
    _log.info(
        "%s: split %s: %d files become %d shards, job %s",
        *(*where, len(prepared.files), prepared.plan.shards, prepared.fingerprint),
    )
