"""The shards of a job as tasks: small elements for a pipeline or a process pool.

A task is one shard, or all that are made in one pass over a file.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.convert_shard import convert_shard
from gristmill.transforms.conversion.shard_output import Progress
from gristmill.transforms.jobs.conversion_job import PreparedJob, load_prepared
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES
from gristmill.transforms.sources.source import KeptPass

_CPU_LOCK = threading.Lock()
# Counters, and fields of reports of shards.
_CHANGES = (
    *("skipped-regions", "dropped-records", "added-records", "changed-records"),
)
_PACKED = (
    *("documents", "tokens", "padding-tokens", "cut-documents"),
    *("truncated-documents", "truncated-tokens"),
)


class ShardTask(NamedTuple):
    """A shard to make, and those of the same pass that follow it.

    It refers to the job that is described beside its output. It is `fresh` if there was
    no file of a shard when the job took the output, and `base` is the newest
    edition of the split then.
    """

    output: str
    name: str
    split: str
    fingerprint: str
    shard: int
    fresh: bool = False
    base: int = 0

    @property
    def prepared(self) -> PreparedJob:
        """The job."""
        found = load_prepared(self.output, self.name, self.split, self.fingerprint)
        return dataclasses.replace(found, base=self.base)


class ShardResult(NamedTuple):
    """A finished shard.

    Attributes:
        task: Which shard.
        report: What was counted; None for a split that was committed already.
        resumed: Whether it was there already.
    """

    task: ShardTask
    report: ShardReport | None
    resumed: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Adds the report, or notes that the split was committed already."""
        split, fingerprint = self.task.split, self.task.fingerprint
        if self.report is None:
            gathered.notes["committed"][split] = True
            return
        gathered.notes["task"][split] = self.task
        empty = functools.partial(ReportCollector, fingerprint)
        gathered.add_row(split, self.report, empty)

    @property
    def done(self) -> Done:
        """What was done."""
        report = self.report
        if report is None:
            return Done(self.task.output, "committed before", 0, 0, 0)
        counts = report.counts(resumed=self.resumed)
        if not self.resumed:
            counts |= {n: getattr(report, n.replace("-", "_")) for n in _CHANGES}
            if report.packed is not None:
                packed = dataclasses.asdict(report.packed)
                counts |= {n: packed[n.replace("-", "_")] for n in _PACKED}
        written = report.written
        said = "there already" if self.resumed else "written"
        return Done(
            report.path,
            f"{written.records} records {said}",
            *(report.file_bytes, written.records, written.raw_bytes),
            counts,
        )


def shard_tasks(prepared: PreparedJob) -> Iterator[ShardTask]:
    """Yields a task for each pass of a job: those that make most shards first."""
    begins, shards = prepared.plan.pass_begins, prepared.plan.shards
    if len(begins) < shards:
        begins = begins[np.argsort(-np.diff(begins, append=shards), kind="stable")]
    for shard in begins:
        yield task_of(prepared, int(shard))


def task_of(prepared: PreparedJob, shard: int) -> ShardTask:
    """Returns the task of a shard, by its number."""
    job = prepared.job
    return ShardTask(
        *(job.output, job.name, job.split, prepared.fingerprint, shard),
        prepared.fresh,
        prepared.base,
    )


Stride = tuple[ShardTask, range]  # A task, and the passes that it stands for.


def shard_strides(
    prepared: PreparedJob, *, max_strides: int = 4096
) -> Iterator[Stride]:
    """Yields the tasks of a job as few elements, for graphs that hold them all.

    Args:
        prepared: The job.
        max_strides: Maximum elements to yield.
    """
    begins = prepared.plan.pass_begins
    step = min(len(begins), max_strides)
    for first, shard in enumerate(begins[:step].tolist()):
        yield task_of(prepared, shard), range(first, len(begins), step)


def stride_tasks(stride: Stride) -> Iterator[ShardTask]:
    """Yields a task for each of the passes."""
    first, passes = stride
    begins = first.prepared.plan.pass_begins
    for number in passes:
        yield first._replace(shard=int(begins[number]))


def make_shards(
    task: ShardTask, *, progress_dir: str | None = None, one_at_a_time: bool = False
) -> Iterator[ShardResult]:
    """Makes the shards of a task, those that an earlier run has not made.

    A file is read once, from its start to the last shard that is missing.

    Args:
        task: The first shard.
        progress_dir: As for `make_shard`.
        one_at_a_time: As for `make_shard`.
    """
    prepared = task.prepared  # Asks the storage: once a pass.
    with closing(KeptPass()) as kept:
        for shard in prepared.plan.pass_of(task.shard):
            one = task._replace(shard=shard)
            yield make_shard(
                one,
                prepared=prepared,
                kept=kept,
                progress_dir=progress_dir,
                one_at_a_time=one_at_a_time,
            )


def make_shard(
    task: ShardTask,
    *,
    prepared: PreparedJob | None = None,
    kept: KeptPass | None = None,
    progress_dir: str | None = None,
    one_at_a_time: bool = False,
) -> ShardResult:
    """Makes one shard unless an earlier run has.

    Args:
        task: Which shard.
        prepared: Its job, where it was loaded.
        kept: As in `convert_shard`.
        progress_dir: A directory of this machine for progress files, or None.
        one_at_a_time: Whether only one thread of this process converts at a time.
            The others wait for storage: one shard is published while the next one is
            converted.
    """
    prepared = task.prepared if prepared is None else prepared
    place = prepared.shard_place(task.shard, fresh=task.fresh)
    report = place.report()
    if report is not None and report.job != prepared.fingerprint:
        # There was no such file when this job took the output.
        raise JobChangedError(
            "another job has written a file of the same name meanwhile",
            where=layout.join(prepared.job.output, place.path),
            expected=f"no file, or that of job {prepared.fingerprint}",
            got=f"that of job {report.job}",
            cure="choose another output for one of them, or run one after the other",
        )
    resumed = report is not None
    if report is None:
        progress = None
        if progress_dir is not None:
            progress = _progress_file(f"{progress_dir}/{task.split}.{task.shard}")
        report = convert_shard(
            prepared,
            task.shard,
            place=place,
            kept=kept,
            progress=progress,
            cpu_lock=_CPU_LOCK if one_at_a_time else None,
        )
    return ShardResult(task, report, resumed)


def _progress_file(path: str) -> Progress:
    """Returns a callback that keeps the progress in a file, for other processes."""
    next_seconds = 0.0

    def write(records: int, raw_bytes: int, tokens: int) -> None:
        nonlocal next_seconds
        now = time.monotonic()
        if now >= next_seconds:
            next_seconds = now + 0.5
            temporary = f"{path}.{os.getpid()}"
            with open(temporary, "w") as file:
                file.write(f"{records} {raw_bytes} {tokens}")
            os.replace(temporary, path)

    return write


_MANY_SHARDS = 4


def plan_notes(prepared: PreparedJob) -> list[str]:
    """Returns notes on files that are more than one worker's small share.

    Args:
        prepared: A job that is planned.
    """
    if prepared.plan.splittable.all():
        return []
    if prepared.job.plan.kind == "match_shards":
        return _whole_files(prepared)
    return _long_passes(prepared)


def _whole_files(prepared: PreparedJob) -> list[str]:
    sizes = np.where(prepared.plan.splittable, 0, prepared.plan.sizes)
    large = int((sizes > DEFAULT_SHARD_BYTES).sum())
    if not large:
        return []
    longest = int(sizes.argmax())
    return [
        f"{_files(large)} larger than {DEFAULT_SHARD_BYTES >> 20} MiB. The largest, "
        f"{prepared.files.paths[longest]} ({int(sizes[longest]):,} bytes), becomes one "
        "shard, since each file does: one worker makes it, and its disk must hold "
        "what it holds. A plan by size would cut it"
    ]


def _long_passes(prepared: PreparedJob) -> list[str]:
    plan = prepared.plan
    counts = np.diff(plan.pass_begins, append=plan.shards)
    many = int((counts >= _MANY_SHARDS).sum())
    if not many:
        return []
    longest = int(counts.argmax())
    file = plan.ranges(int(plan.pass_begins[longest]))[0].file_index
    return [
        f"{_files(many)} cut into {_MANY_SHARDS} shards or more. One worker makes "
        f"all shards of such a file, one after the other: "
        f"{int(counts[longest]):,} of {plan.shards:,} from the longest, "
        f"{prepared.files.paths[file]} ({int(plan.sizes[file]):,} bytes)"
    ]


def _files(count: int) -> str:
    if count == 1:
        return "1 file that is read from its start is"
    return f"{count:,} files that are read from their start are"


class PlannedShards:
    """The shards that jobs make, and which of them are finished: they have indexes.

    Attributes:
        input_bytes: Bytes of input of each shard, by its key, SPLIT.NUMBER.
    """

    def __init__(self, jobs: Sequence[PreparedJob]):
        self.input_bytes: dict[str, int] = {}
        self._keys: dict[str, str] = {}
        # Several where splits are to replace others: each is made in its own directory.
        self._outputs = sorted({job.job.output for job in jobs})
        for job in jobs:
            for shard, size in enumerate(np.diff(job.plan.cut_bytes).tolist()):
                key = f"{job.job.split}.{shard}"
                index = layout.index_path(job.shard_path(shard))
                self._keys[index.rpartition("/")[2]] = key
                self.input_bytes[key] = size

    def finished(self, listed: Set[str] | None = None) -> set[str]:
        """Returns the keys of the finished shards.

        Args:
            listed: Names of the files in the directories of indexes, where they are
                known; else these are listed.
        """
        if listed is None:
            listed = set().union(*map(listed_indexes, self._outputs))
        return {self._keys[name] for name in listed & self._keys.keys()}


def listed_indexes(dataset: str) -> set[str]:
    """Returns the names of the files in the directory of indexes."""
    found = storage_for(dataset).list(layout.join(dataset, layout.INDEX_DIR))
    return {info.path.rpartition("/")[2] for info in found}
