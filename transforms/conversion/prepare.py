"""Preparing a conversion: list the inputs, plan the shards, look at what is there."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import posixpath
from collections.abc import Callable, Iterable
from typing import Literal

from gristmill.dataset.errors import (
    InputError,
    InvalidDatasetError,
    JobChangedError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_versioned_manifest
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.checking.metadata import check_split
from gristmill.transforms.conversion.convert_shard import finished_shard
from gristmill.transforms.conversion.output_split import (
    known_shards,
    remove_split,
    shard_prefix,
)
from gristmill.transforms.conversion.owners import check_inputs_stay, check_removal
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
    ShardNames,
)
from gristmill.transforms.jobs.map_function import code_digest, load_function
from gristmill.transforms.planning.shard_plan import (
    STRIDE_RECORDS,
    FileCount,
    SourceRange,
    plan_by_bytes,
    plan_by_records,
)
from gristmill.transforms.sources.input_files import InputFiles, find_inputs
from gristmill.transforms.sources.quarantine import PassOver
from gristmill.transforms.sources.tfrecord_range import RangeReader

CountFiles = Callable[[ConversionJob, InputFiles], Iterable[FileCount]]
Overwrite = bool | Literal["changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """A prepared job, and whether it has been done already.

    Attributes:
        prepared: The job.
        committed: The dataset, if it holds the finished split; nothing is to do then.
    """

    prepared: PreparedJob
    committed: Manifest | None


def list_inputs(job: ConversionJob) -> InputFiles:
    """Lists the inputs of a job, the first step of all.

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
    # The shards set damaged regions aside: here they only count.
    damage = PassOver(max_regions=job.max_corrupt)
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


def count_files_here(job: ConversionJob, files: InputFiles) -> list[FileCount]:
    """Counts the records of all files, one after the other."""
    return [count_file(job, files, file) for file in range(len(files))]


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


def prepare(
    job: ConversionJob,
    *,
    overwrite: bool = False,
    count_files: CountFiles = count_files_here,
) -> Preparation:
    """Lists, plans, and takes possession of the output.

    Args:
        job: The job.
        overwrite: Whether to throw away what the split's output holds.
        count_files: Counts records, for a plan by records.

    Raises:
        InputError: Inputs or options cannot be used.
        JobChangedError: The output belongs to another job.
    """
    files = list_inputs(job)
    counts = count_files(job, files) if needs_count(job) else ()
    return take_output(plan_job(job, files, counts), overwrite=overwrite)


def take_output(prepared: PreparedJob, *, overwrite: Overwrite = False) -> Preparation:
    """Compares a prepared job with what its output holds, and describes it there.

    Args:
        prepared: The job.
        overwrite: Whether to throw away what the split's output holds; `changed` to do
            so only if another job of the same names wrote it, all of it.

    Raises:
        InputError: The output holds files of somebody else, or the job's own inputs.
        JobChangedError: The output belongs to another job.
    """
    job = prepared.job
    if overwrite == "changed":
        try:
            return take_output(prepared)
        except JobChangedError:
            old = PreparedJob.load(job.output, job.name, job.split)
            if old is None or not _same_kind(old.job.names, job.names):
                raise
            _check_no_strangers(prepared, old=old)
            return take_output(prepared, overwrite=True)
    manifest, version = _read_manifest(prepared, overwrite=overwrite)
    shards = set(map(prepared.shard_path, range(prepared.plan.shards)))
    if overwrite:
        shards |= known_shards(job.output, job.name, job.split, manifest)
    check_inputs_stay(prepared, shards)
    if overwrite:
        check_removal(job.output, job.name, job.split, manifest=manifest, shards=shards)
        manifest = remove_split(
            job.output,
            job.name,
            job.split,
            manifest=manifest,
            version=version,
            shards=shards,
        )
    found, seen = PreparedJob.look(job.output, job.name, job.split, own=prepared)
    committed = None if manifest is None else manifest.splits.get(job.split)
    if found is not None:
        prepared.check_same(found)
    if committed is not None:
        # The description may have outlived what was committed: it says nothing of that.
        if committed.source.get("job") != prepared.fingerprint:
            raise JobChangedError(
                "the output holds this split already, from another source",
                where=f"{job.output}, split {job.split}",
                cure="choose another --split or output, or replace it with --overwrite",
            )
        if not check_split(job.output, committed):
            return Preparation(prepared=prepared, committed=manifest)
        # What is missing by now is made again, and committed again.
    elif found is None:
        _check_no_strangers(prepared)
    prepared.store(replaces=seen)
    return Preparation(prepared=prepared, committed=None)


def _read_manifest(
    prepared: PreparedJob, *, overwrite: bool
) -> tuple[Manifest | None, str]:
    job = prepared.job
    try:
        manifest, version = read_versioned_manifest(job.output)
    except InvalidDatasetError:
        if not overwrite:
            raise
        return None, version_of(layout.join(job.output, layout.DATASET_JSON))
    if manifest is not None and manifest.name != job.name:
        raise InputError(
            "the output holds a dataset of another name",
            where=job.output,
            expected=manifest.name,
            got=job.name,
            cure=f"use --name {manifest.name} to add or replace a split, or choose "
            "another output",
        )
    return manifest, version


def _same_kind(old: ShardNames, new: ShardNames) -> bool:
    return (old.kind, old.prefix) == (new.kind, new.prefix)


def _check_no_strangers(
    prepared: PreparedJob, *, old: PreparedJob | None = None
) -> None:
    """Refuses to write among shards that no job of ours is known to have written.

    Args:
        prepared: The job.
        old: One whose shards are to go, as far as it wrote what has their names.
    """
    job = prepared.job
    ours = {prepared.shard_path(shard) for shard in range(prepared.plan.shards)}
    written: set[str] = set()
    if old is not None:
        shards = range(old.plan.shards)
        ours.update(map(old.shard_path, shards))
        # Waiting, not computing, as in `find_inputs`.
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            reports = pool.map(functools.partial(finished_shard, old), shards)
            written = {report.path for report in reports if report is not None}
    # Readers find shards by a pattern: others of the split would be mixed with ours.
    prefix = shard_prefix(job.name, job.split)
    for info in storage_for(job.output).list(job.output):
        name = posixpath.basename(info.path)
        if name not in written and (name in ours or name.startswith(prefix)):
            raise InputError(
                "a file with the name of a shard is there already",
                where=info.path,
                got="no conversion that is known to have written it",
                cure="choose another output, or replace it with --overwrite",
            )
