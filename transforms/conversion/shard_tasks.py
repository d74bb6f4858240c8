"""The shards of a job as tasks: small elements for a pipeline or a process pool."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple

from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.transforms.conversion.convert_shard import convert_shard
from gristmill.transforms.conversion.progress_file import ProgressFile
from gristmill.transforms.jobs.prepared_job import PreparedJob, load_prepared

_CPU_LOCK = threading.Lock()


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


def shard_tasks(prepared: PreparedJob) -> Iterator[ShardTask]:
    """Yields a task for each shard of a job."""
    job = prepared.job
    for shard in range(prepared.plan.shards):
        yield ShardTask(job.output, job.name, job.split, prepared.fingerprint, shard)


class ShardStride(NamedTuple):
    """Every `step`-th shard of a job, from `first` on."""

    first: ShardTask
    shards: int
    step: int

    def tasks(self) -> Iterator[ShardTask]:
        """Yields a task for each of these shards."""
        for shard in range(self.first.shard, self.shards, self.step):
            yield self.first._replace(shard=shard)


def shard_strides(
    prepared: PreparedJob, *, max_strides: int = 4096
) -> Iterator[ShardStride]:
    """Yields the shards of a job as few elements, for graphs that hold them all.

    Args:
        prepared: The job.
        max_strides: Most elements to yield.
    """
    shards = prepared.plan.shards
    step = min(shards, max_strides)
    for task in itertools.islice(shard_tasks(prepared), step):
        yield ShardStride(task, shards, step)


def make_shard(
    task: ShardTask, *, progress_dir: str | None = None, one_at_a_time: bool = False
) -> ShardResult:
    """Makes a shard unless an earlier run has.

    Args:
        task: Which shard.
        progress_dir: A directory of this machine for progress files, or None.
        one_at_a_time: Whether only one thread of this process converts at a time.
            The others wait for storage: one shard is published while the next one is
            converted.
    """
    prepared = task.prepared
    place = ShardPlace.at(task.output, prepared.shard_path(task.shard))
    report = place.report()
    if report is not None and report.job != prepared.fingerprint:
        # There was no such file when this job took the output.
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
            cpu_lock=_CPU_LOCK if one_at_a_time else None,
        )
    return ShardResult(task, report)
