"""Taking an output: what it holds is checked, then the job is described there."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Literal

from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_inputs_stay,
    check_no_strangers,
    check_removal,
)
from gristmill.dataset.commit.split_check import check_split
from gristmill.dataset.commit.split_files import committed_shards, remove_split
from gristmill.dataset.errors import InvalidDatasetError, JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_versioned_manifest
from gristmill.dataset.storage.lookup import version_of
from gristmill.transforms.conversion.convert_shard import finished_shard
from gristmill.transforms.conversion.plan_job import (
    count_file,
    list_inputs,
    needs_count,
    plan_job,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, ShardNames
from gristmill.transforms.jobs.prepared_job import PreparedJob, described_shards
from gristmill.transforms.planning.shard_plan import FileCount
from gristmill.transforms.sources.input_files import InputFiles

CountFiles = Callable[[ConversionJob, InputFiles], Iterable[FileCount]]
Overwrite = bool | Literal["changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenOutput:
    """A job that owns its output, and whether it has been done already.

    Attributes:
        prepared: The job.
        committed: The dataset, if it holds the finished split; nothing is to do then.
    """

    prepared: PreparedJob
    committed: Manifest | None


def count_files_here(job: ConversionJob, files: InputFiles) -> list[FileCount]:
    """Counts the records of all files, one after the other."""
    return [count_file(job, files, file) for file in range(len(files))]


def begin_job(
    job: ConversionJob,
    *,
    overwrite: bool = False,
    count_files: CountFiles = count_files_here,
) -> TakenOutput:
    """Lists the inputs of a job, plans its shards, and takes possession of its output.

    Args:
        job: The job.
        overwrite: Whether to replace the split's existing files.
        count_files: Counts records, for a plan by records.

    Raises:
        InputError: Inputs or options cannot be used.
        JobChangedError: The output belongs to another job.
    """
    files = list_inputs(job)
    counts = count_files(job, files) if needs_count(job) else ()
    return take_output(plan_job(job, files, counts), overwrite=overwrite)


def take_output(prepared: PreparedJob, *, overwrite: Overwrite = False) -> TakenOutput:
    """Compares a prepared job with what its output holds, and describes it there.

    Args:
        prepared: The job.
        overwrite: Whether to replace the split's existing files; `changed` to do so
            only if an earlier job with the same kind of names wrote all of them.

    Raises:
        InputError: The output holds files of unknown origin, or the job's own inputs.
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
        shards |= described_shards(job.output, job.name, job.split)
        shards |= committed_shards(job.output, manifest, job.split)
    check_inputs_stay(
        job.output, job.name, job.split, inputs=prepared.files.paths, shards=shards
    )
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
    found, seen = PreparedJob.load_versioned(
        job.output, job.name, job.split, own=prepared
    )
    committed = None if manifest is None else manifest.splits.get(job.split)
    if found is not None:
        prepared.check_same(found)
    if committed is not None:
        # The description can be of another job than the committed split.
        if committed.source.get("job") != prepared.fingerprint:
            raise JobChangedError(
                "the output holds this split already, from another source",
                where=f"{job.output}, split {job.split}",
                cure="choose another --split or output, or replace it with --overwrite",
            )
        if not check_split(job.output, committed):
            return TakenOutput(prepared=prepared, committed=manifest)
        # What is missing by now is made again, and committed again.
    elif found is None:
        _check_no_strangers(prepared)
    prepared.store(replaces=seen)
    return TakenOutput(prepared=prepared, committed=None)


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
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
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
    shards = {prepared.shard_path(shard) for shard in range(prepared.plan.shards)}
    written: set[str] = set()
    if old is not None:
        numbers = range(old.plan.shards)
        shards.update(map(old.shard_path, numbers))
        # Waiting, not computing, as in `find_inputs`.
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            reports = pool.map(functools.partial(finished_shard, old), numbers)
            written = {report.path for report in reports if report is not None}
    check_no_strangers(job.output, job.name, job.split, shards=shards, written=written)
