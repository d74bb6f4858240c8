"""The conversion as plain functions: a task for each shard, results, one commit.

Beam and the pool of local processes both run these.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from gristmill.dataset.commit.commit import ExtraFiles, check_files, commit_dataset
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.errors import DataLossError, InputError, JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.manifest import Manifest, Split, read_table
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.convert_shard import (
    ProgressFile,
    convert_shard,
)
from gristmill.transforms.conversion.finish_split import finish_split
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
    check_current,
    load_prepared,
)
from gristmill.transforms.tfds.directory import TfdsDirectory, read_tfds_directory
from gristmill.transforms.tfds.metadata import check_records_read, tfds_metadata

_TURN = threading.Lock()


class ShardTask(NamedTuple):
    """One shard to make, by reference to the job described beside its output."""

    output: str
    name: str
    split: str
    fingerprint: str
    shard: int

    @property
    def prepared(self) -> PreparedJob:
        """The job."""
        return load_prepared(self.output, self.name, self.split, self.fingerprint)


class ShardResult(NamedTuple):
    """A finished shard; `report` is None for a split that was committed already."""

    task: ShardTask
    report: ShardReport | None


def waits_for_storage(job: ConversionJob) -> bool:
    """Tells whether inputs or output of a job are where answers take a while."""
    return any(storage_for(path).remote for path in (*job.inputs, job.output))


def shard_tasks(prepared: PreparedJob) -> Iterator[ShardTask]:
    """Yields a task for each shard of a job."""
    job = prepared.job
    for shard in range(prepared.plan.shards):
        yield ShardTask(job.output, job.name, job.split, prepared.fingerprint, shard)


class GatheredSplit(NamedTuple):
    """The finished shards of one split, and any of their tasks."""

    task: ShardTask
    reports: ReportCollector


class GatheredResults:
    """The results of any number of shards of one conversion. Adds up in any order.

    Attributes:
        splits: What was made of each split.
        committed_before: Splits for which there was nothing to do.
    """

    def __init__(self) -> None:
        self.splits: dict[str, GatheredSplit] = {}
        self.committed_before: set[str] = set()

    def add(self, result: ShardResult) -> None:
        """Takes the result of a shard."""
        task, report = result
        if report is None:
            self.committed_before.add(task.split)
        else:
            self._of(task).add(report)

    def extend(self, other: GatheredResults) -> None:
        """Takes all that others have gathered."""
        self.committed_before |= other.committed_before
        for task, reports in other.splits.values():
            self._of(task).extend(reports)

    @classmethod
    def of(cls, results: Iterable[ShardResult]) -> Self:
        """Gathers results."""
        gathered = cls()
        for result in results:
            gathered.add(result)
        return gathered

    def _of(self, task: ShardTask) -> ReportCollector:
        if task.split not in self.splits:
            collector = ReportCollector(task.fingerprint)
            self.splits[task.split] = GatheredSplit(task, collector)
        return self.splits[task.split].reports


class ConversionResult(NamedTuple):
    """What a conversion did.

    Attributes:
        manifest: The committed dataset.
        repaired_shards: Shards made again because their range began elsewhere.
        committed_before: Splits for which there was nothing to do.
    """

    manifest: Manifest
    repaired_shards: int
    committed_before: tuple[str, ...]


def make_shard(
    task: ShardTask, *, progress_dir: str | None = None, in_turn: bool = False
) -> ShardResult:
    """Makes a shard unless an earlier run has.

    Args:
        task: Which shard.
        progress_dir: A directory of this machine for progress files, or None.
        in_turn: Whether threads of this process convert one at a time, while others
            wait for storage: a shard is published while the next one is converted.
    """
    prepared = task.prepared
    place = ShardPlace.look(task.output, prepared.shard_path(task.shard))
    report = place.report()
    if report is not None and report.job != prepared.fingerprint:
        # Nothing was there when the output was taken.
        raise JobChangedError(
            "another job has written a file of the same name meanwhile",
            where=layout.join(task.output, place.path),
            expected=f"no file, or that of job {prepared.fingerprint}",
            got=f"that of job {report.job}",
            cure="choose another output for one of them, or run one after the other",
        )
    if report is None:
        progress = None
        if progress_dir is not None:
            progress = ProgressFile(f"{progress_dir}/{task.split}.{task.shard}")
        report = convert_shard(
            prepared,
            task.shard,
            place=place,
            progress=progress,
            turn=_TURN if in_turn else None,
        )
    return ShardResult(task, report)


def commit_shards(
    jobs: Iterable[ConversionJob],
    results: GatheredResults | Iterable[ShardResult],
    *,
    features: Mapping[str, Any] | None = None,
    prepared: Mapping[str, PreparedJob] | None = None,
    tfds_directory: str | None = None,
) -> ConversionResult:
    """Commits the dataset from the results of all shards of all jobs.

    Args:
        jobs: The jobs, all of one dataset.
        results: A result for every shard; None as report where a split was there.
        features: The schema, where known.
        prepared: Jobs that were prepared in this process, by split.
        tfds_directory: Where the jobs come from, if from there: its metadata is
            compared with what was read, and written for the output.

    Raises:
        DataLossError: Shards are missing or do not hold what was read, or a split that
            was there is gone.
    """
    jobs = list(jobs)
    if not isinstance(results, GatheredResults):
        results = GatheredResults.of(results)
    before = tuple(job.split for job in jobs if job.split in results.committed_before)
    splits, owners, repaired = {}, [], 0
    for job in jobs:
        if job.split in before:
            continue
        found = results.splits.get(job.split)
        if found is None:
            raise DataLossError(
                "no shard of a split was made",
                where=f"{job.output}, split {job.split}",
                cure="run the same command again: finished shards are kept",
            )
        own = (prepared or {}).get(job.split) or found.task.prepared
        splits[job.split], again = finish_split(own, found.reports)
        owners.append(own)
        repaired += again
    output, name = jobs[0].output, jobs[0].name
    extra_files = None
    if tfds_directory is not None:
        source = read_tfds_directory(tfds_directory)
        features = source.features if features is None else features
        extra_files = _tfds_files(source, output, splits)

    def check() -> None:
        # Hours may have passed since the first split was finished.
        for own in owners:
            check_current(own)
        check_files(output, splits)

    manifest = commit_dataset(
        output,
        name,
        splits,
        keeps=before,
        features=features,
        extra_files=extra_files,
        check=check,
    )
    return ConversionResult(manifest, repaired, before)


def _tfds_files(
    source: TfdsDirectory, output: str, splits: Mapping[str, Split]
) -> ExtraFiles:
    """Checks new splits against TFDS metadata, of which it makes the output's."""
    for name, split in splits.items():
        table = read_table(output, split)
        check_records_read(source.splits[name], table, where=source.path)

    def make(manifest: Manifest) -> list[bytes]:
        tables = {
            name: read_table(output, split)
            for name, split in manifest.splits.items()
            if name in source.splits
        }
        return list(tfds_metadata(source, name=manifest.name, tables=tables).values())

    return ExtraFiles((*source.files, TFDS_INFO_JSON), make)


def check_jobs(jobs: tuple[ConversionJob, ...]) -> None:
    """Checks that jobs make splits of one dataset.

    Raises:
        InputError: They do not.
    """
    if not jobs:
        raise InputError("no conversion given", cure="give one job for each split")
    if len({(job.output, job.name) for job in jobs}) != 1:
        raise InputError(
            "jobs of one conversion must share output and name",
            cure="give all jobs the same ones, or convert one dataset after the other",
        )
    if len({job.split for job in jobs}) != len(jobs):
        raise InputError(
            "two jobs write the same split", cure="give each job a split of its own"
        )
