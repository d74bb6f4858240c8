"""Planning a conversion: its input files, and which part of them makes which shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.map_function import code_digest, load_function
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.planning.shard_plan import (
    STRIDE_RECORDS,
    FileCount,
    SourceRange,
    plan_by_bytes,
    plan_by_records,
)
from gristmill.transforms.sources.damage import SkipDamage
from gristmill.transforms.sources.input_files import InputFiles, find_inputs
from gristmill.transforms.sources.tfrecord_range import RangeReader


def list_inputs(job: ConversionJob) -> InputFiles:
    """Lists the input files of a job.

    Raises:
        InputError: They cannot be used, or the job's function cannot.
    """
    if job.map is not None:
        load_function(job.map)
    accepted = job.allow_empty_files or job.on_corrupt == "quarantine"
    return find_inputs(job.inputs, allow_empty_files=accepted)


def count_file(job: ConversionJob, files: InputFiles, file: int) -> FileCount:
    """Reads a whole input file to count its good records.

    Args:
        job: The job, which says whether damage is accepted.
        files: All input files.
        file: Number of the file.

    Raises:
        CorruptInputError: The file is damaged and the job does not accept that.
    """
    plain = files.compression(file) == "none"
    size = int(files.sizes[file])
    whole = SourceRange(
        file_index=file, begin_bytes=0, end_bytes=size if plain else -1, exact=True
    )
    # Damaged regions are set aside with the shards: here they are only counted.
    damage = SkipDamage(max_regions=job.max_corrupt)
    reader = RangeReader(
        files.paths[file],
        whole,
        compression=files.compression(file),
        size_bytes=size,
        version=files.versions[file],
        on_damage=damage if job.on_corrupt == "quarantine" else None,
    )
    offsets: list[int] = []
    records = 0
    for batch in reader.batches():
        if plain or not records:
            begins = batch.offsets[-records % STRIDE_RECORDS :: STRIDE_RECORDS]
            offsets += begins if plain else begins[:1]
        records += len(batch.records)
    return FileCount(records=records, offsets=tuple(offsets))


def plan_job(
    job: ConversionJob, files: InputFiles, counts: Iterable[FileCount] = ()
) -> PreparedJob:
    """Plans the shards of a job.

    Args:
        job: The job.
        files: Its input files.
        counts: Of each file, for a plan by records.
    """
    if job.plan.kind == "records_per_shard":
        plan = plan_by_records(
            job.plan.value or 1, files.sizes, files.splittable, list(counts)
        )
    else:
        plan = plan_by_bytes(job.plan, files.sizes, files.splittable)
    if job.map is not None:
        job = dataclasses.replace(job, map_code_digest=code_digest(job.map))
    prepared = PreparedJob(job=job, files=files, plan=plan)
    prepared.check_shard_names()
    return prepared


def needs_count(job: ConversionJob) -> bool:
    """Tells whether the plan of a job needs a pass over its records first."""
    return job.plan.kind == "records_per_shard"
