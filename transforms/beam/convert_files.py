"""`ConvertFiles`: the conversion as one Beam transform, without a shuffle of data.

One element is one shard, a few hundred bytes that say which, or all shards that are
made in one pass over a compressed file. The graph is one linear chain of small
elements, since that is what every runner executes:

    list inputs -> look into files -> plan -> convert shards -> commit

Files are looked into some at a time: a listing gives no more than their names and
sizes.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import apache_beam as beam

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.job_metrics import count, report_sink, report_sources
from gristmill.transforms.beam.parallel_deletions import DeleteReplaced
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    set_types,
)
from gristmill.transforms.beam.run_job import gather, measured
from gristmill.transforms.conversion.begin_job import log_plan, plan_job
from gristmill.transforms.conversion.commit_shards import (
    CommitOptions,
    ConversionResult,
    MakeShards,
)
from gristmill.transforms.conversion.job_inputs import (
    check_job,
    input_notes,
    known_looks,
    list_inputs,
    match_job,
)
from gristmill.transforms.conversion.shard_output import TRIED_FILES, try_function
from gristmill.transforms.conversion.shard_tasks import (
    ShardResult,
    ShardTask,
    Stride,
    plan_notes,
    shard_strides,
    shard_tasks,
    stride_tasks,
)
from gristmill.transforms.conversion.take_output import Overwrite, take_output
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
    check_jobs,
)
from gristmill.transforms.sources.find_inputs import (
    PART_FILES,
    LookedPart,
    LookTask,
    look_at_part,
    look_tasks,
    looked_files,
)
from gristmill.transforms.sources.input_files import InputFiles

_log = logging.getLogger(__name__)


def list_files(
    job: ConversionJob, overwrite: Overwrite
) -> Iterator[LookTask | LookedPart]:
    """Yields the files of a job in parts: to look into, or what is known of them."""
    check_job(job)
    files = match_job(job) or []  # None of a dataset, which says what its shards are.
    _log.info("%s: split %s: %d files matched", job.output, job.split, len(files))
    known = known_looks(job, files) if files and overwrite is not True else None
    for task in look_tasks(job.split, files):
        if known is None:
            yield task
        else:
            begin = task.number * PART_FILES
            yield LookedPart.of(task, known[begin : begin + len(task.files)])


def look_at(task: LookTask | LookedPart) -> LookedPart:
    """Returns a part, with its files looked into unless they are known."""
    return task if isinstance(task, LookedPart) else look_at_part(task)


def _list_inputs(job: ConversionJob, looked: Gathered) -> InputFiles:
    found = looked_files(looked, job.split)
    files = list_inputs(job, looked=found if found[0] else None)
    try_function(job, files.first(TRIED_FILES))
    for note in input_notes(job, files):
        _log.warning("%s: %s", job.output, note)
    return files


def plan_shards(
    found: Gathered,
    jobs: tuple[ConversionJob, ...],
    overwrite: Overwrite,
) -> Iterator[ShardResult | ShardTask]:
    """Plans all jobs, once all is known of their inputs."""
    for job in sorted(jobs, key=lambda job: job.split):
        files = _list_inputs(job, found)
        prepared = plan_job(job, files, overwrite=overwrite)
        taken = take_output(prepared, overwrite=overwrite)
        for note in plan_notes(prepared) if taken.committed is None else ():
            _log.warning("%s: %s", job.output, note)
        log_plan(taken)
        if taken.committed is None:
            count({"planned-shards": prepared.plan.shards})
        for task in shard_tasks(taken.prepared):
            if taken.committed is not None:
                yield ShardResult(task, None)
                break
            yield task


def _stride_tasks(stride: Stride) -> Iterator[ShardTask]:
    first, passes = stride
    if passes.start == 0:  # One stride of each job counts for all of them.
        count({"planned-shards": first.prepared.plan.shards})
    yield from stride_tasks(stride)


def _commit(results: Gathered, job: MakeShards) -> ConversionResult:
    done = job.commit(results)
    for one in job.jobs:
        report_sources(one.inputs)
    report_sink(job.jobs[0].output)
    return done


def _output_of(_: ConversionResult, output: str) -> str:
    return output


@dataclasses.dataclass(kw_only=True)
class ConvertFiles(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[ConversionResult]]
):
    """Converts input files of any format into splits of one committed dataset.

    Applied to a pipeline; gives a PCollection of one `ConversionResult`. Files can be
    of any format that `gristmill convert` reads, not TFRecord alone: the `records` of a
    `ConversionJob` say which, and what a record is.

    Guarantees: bounded; a shard is made at least once and its bytes depend on the job
    alone, so retries and duplicates do no harm; records keep the order of the sorted
    inputs; the dataset appears only if every input byte is accounted for. As many
    shards are made at once as the runner has threads, of a compressed file one. Memory
    per shard in flight: one block of input and output, and some 30 bytes a record of
    the shard; from and to a bucket also up to 24 MiB of input fetched ahead, and 16 MiB
    of an upload. Disk: the shard.

    Attributes:
        jobs: One for each split, with the same output and name.
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any: the output
            gets its metadata as well.
        overwrite: Whether to replace what the output holds of these splits; `changed`
            to do so only if earlier jobs with the same kind of names wrote all of it.
        keep_replaced: Whether what is replaced is kept, to go back to.
        prepared: Jobs that are prepared already, so that shards are made in parallel
            also by runners that do not redistribute (Dask). Their output must have
            been taken with `take_output`.
        progress_dir: A directory for progress files, where workers run on this machine.
    """

    jobs: tuple[ConversionJob, ...]
    features: Mapping[str, Any] | None = None
    tfds_directory: StrPath | None = None
    overwrite: Overwrite = False
    keep_replaced: bool = False
    prepared: tuple[PreparedJob, ...] = ()
    progress_dir: str | None = None

    def __post_init__(self) -> None:
        super().__init__()
        set_types(self, gives=ConversionResult)
        check_known(self)
        check_jobs(self.jobs)

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        first = self.jobs[0]
        shown: dict[str, Any] = {}
        for job in self.jobs:
            plan = "=".join(map(str, filter(None, (job.plan.kind, job.plan.value))))
            shown |= {f"input_{job.split}": job.inputs, f"plan_{job.split}": plan}
        return displayed(
            **shown,
            output=first.output,
            name=first.name,
            writer=first.writer.described,
            map=first.map,
            overwrite=str(self.overwrite),
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[ConversionResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "ConvertFiles")
        tfds = self.tfds_directory
        tfds = None if tfds is None else path_text(tfds, "TFDS directory")
        options = CommitOptions(
            features=self.features,
            tfds_directory=tfds,
            keep_replaced=self.keep_replaced,
            delete=not self.overwrite,
        )
        job = MakeShards(
            jobs=self.jobs, options=options, progress_dir=self.progress_dir
        )
        done: beam.PCollection[ConversionResult] = (
            self._tasks(begin)
            | "ConvertShards" >> beam.FlatMap(measured, job.step)
            | "GatherResults" >> gather()
            | "Commit" >> beam.Map(_commit, job)
        )
        if self.overwrite:
            output = self.jobs[0].output
            _ = done | "Committed" >> beam.Map(_output_of, output) | DeleteReplaced()
        return done

    def _tasks(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Any]:
        tasks: beam.PCollection[Any]
        if self.prepared:
            strides = itertools.chain.from_iterable(map(shard_strides, self.prepared))
            tasks = (
                begin
                | "Strides" >> beam.Create(list(strides), reshuffle=True)
                | "Tasks" >> beam.FlatMap(_stride_tasks)
            )
            return tasks
        tasks = (
            begin
            | "Jobs" >> beam.Create(self.jobs)
            | "ListInputs" >> beam.FlatMap(list_files, self.overwrite)
            | "SpreadFiles" >> beam.Reshuffle()
            | "LookIntoFiles" >> beam.Map(look_at)
            | "GatherFiles" >> gather()
            | "PlanShards" >> beam.FlatMap(plan_shards, self.jobs, self.overwrite)
            | "SpreadShards" >> beam.Reshuffle()
        )
        return tasks
