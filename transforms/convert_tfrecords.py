"""`ConvertTFRecords`: the conversion as one Beam transform, without a shuffle of data.

One element is one shard, a few hundred bytes that say which. The graph is one linear
chain of small elements, since that is what every runner executes:

    jobs -> list inputs -> count (if wanted) -> plan -> convert shards -> commit
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.transforms.combiners import ToListCombineFn

from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.conversion.begin_job import (
    Overwrite,
    count_file,
    needs_count,
    plan_job,
    take_output,
)
from gristmill.transforms.conversion.commit_shards import (
    ConversionResult,
    commit_shards,
)
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.conversion.shard_tasks import (
    GatheredResults,
    ShardResult,
    ShardTask,
    make_shard,
    shard_strides,
    shard_tasks,
    stride_tasks,
)
from gristmill.transforms.conversion.try_function import TRIED_FILES, try_function
from gristmill.transforms.graph.applied import check_begin, set_types
from gristmill.transforms.graph.display import displayed
from gristmill.transforms.graph.lineage import report_sink, report_sources
from gristmill.transforms.jobs.conversion_job import ConversionJob, check_jobs
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.planning.shard_plan import FileCount
from gristmill.transforms.sources.input_files import InputFile, InputFiles

_log = logging.getLogger(__name__)


class _Inputs(NamedTuple):
    """All input files of a job, or one of them to count."""

    job: ConversionJob
    files: InputFiles | InputFile
    number: int = -1


_Counted = tuple[_Inputs, FileCount | None]


def _list_inputs(job: ConversionJob) -> Iterator[_Inputs]:
    files = list_inputs(job)
    try_function(job, files.first(TRIED_FILES))
    for note in files.notes():
        _log.warning("%s: %s", job.output, note)
    yield _Inputs(job, files)
    if needs_count(job):
        for number in range(len(files)):
            yield _Inputs(job, files[number], number)


def _count(inputs: _Inputs) -> _Counted:
    if isinstance(inputs.files, InputFiles):
        return inputs, None
    return inputs, count_file(inputs.job, inputs.files)


def _plan(
    counted: list[_Counted], overwrite: Overwrite
) -> Iterator[ShardResult | ShardTask]:
    """Plans all jobs, once all counts are there."""
    outputs = {job.output for (job, _, _), _ in counted}
    exchanged = [
        split
        for output in outputs
        for split in finish_exchange(output, or_give_up=bool(overwrite))
    ]
    for (job, files, _), _ in sorted(counted, key=lambda one: one[0].job.split):
        if not isinstance(files, InputFiles):
            continue
        counts = {
            other.number: count
            for other, count in counted
            if count is not None and other.job.split == job.split
        }
        prepared = plan_job(job, files, [counts[number] for number in sorted(counts)])
        taken = take_output(prepared, overwrite=overwrite, exchanged=exchanged)
        for task in shard_tasks(taken.prepared):
            if taken.committed is not None:
                yield ShardResult(task, None)
                break
            yield task


def _make_shard(task: ShardTask | ShardResult, progress_dir: str | None) -> ShardResult:
    """Makes a shard, and counts what went through."""
    if isinstance(task, ShardResult):
        return task
    result = make_shard(task, progress_dir=progress_dir)
    if (report := result.report) is not None:
        for name, value in (
            ("shards", 1),
            ("records", report.written.records),
            ("raw-bytes", report.written.raw_bytes),
            ("quarantined-regions", report.quarantined_regions),
            ("dropped-records", report.dropped_records),
            ("added-records", report.added_records),
            ("changed-records", report.changed_records),
        ):
            beam.metrics.Metrics.counter("gristmill", name).inc(value)
    return result


class _GatherFn(beam.CombineFn):
    """Gathers results as columns: those of a million shards go to one commit."""

    def create_accumulator(self) -> GatheredResults:
        return GatheredResults()

    def add_input(
        self, gathered: GatheredResults, result: ShardResult
    ) -> GatheredResults:
        gathered.add(result)
        return gathered

    def merge_accumulators(self, parts: Iterable[GatheredResults]) -> GatheredResults:
        whole = GatheredResults()
        for part in parts:
            whole.extend(part)
        return whole

    def extract_output(self, gathered: GatheredResults) -> GatheredResults:
        return gathered


def _commit(
    results: GatheredResults, jobs: tuple[ConversionJob, ...], **options: Any
) -> ConversionResult:
    done = commit_shards(jobs, results, **options)
    for job in jobs:
        report_sources(job.inputs)
    report_sink(jobs[0].output)
    return done


@dataclasses.dataclass(kw_only=True)
class ConvertTFRecords(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[ConversionResult]]
):
    """Converts TFRecord files into splits of one committed dataset.

    Applied to a pipeline; gives a PCollection of one `ConversionResult`.

    Guarantees: bounded; a shard is made at least once and its bytes depend on the job
    alone, so retries and duplicates do no harm; records keep the order of the sorted
    inputs; the dataset appears only if every input byte is accounted for. As many
    shards are made at once as the runner has threads. Memory per shard in flight: one
    block of input and output, and some 30 bytes a record of the shard; from and to a
    bucket also up to 24 MiB of input fetched ahead, and 16 MiB of an upload. Disk:
    the shard.

    Attributes:
        jobs: One for each split, with the same output and name.
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any: the output
            gets its metadata as well.
        overwrite: Whether to replace what the output holds of these splits; `changed`
            to do so only if earlier jobs with the same kind of names wrote all of it.
        prepared: Jobs that are prepared already, so that shards are made in parallel
            also by runners that do not redistribute (Dask). Their output must have
            been taken with `take_output`.
        progress_dir: A directory for progress files, where workers run on this machine.
    """

    jobs: tuple[ConversionJob, ...]
    features: Mapping[str, Any] | None = None
    tfds_directory: StrPath | None = None
    overwrite: Overwrite = False
    prepared: tuple[PreparedJob, ...] = ()
    progress_dir: str | None = None

    def __post_init__(self) -> None:
        super().__init__()
        set_types(self, gives=ConversionResult)
        check_jobs(self.jobs)

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        first = self.jobs[0]
        shown: dict[str, Any] = {}
        for job in self.jobs:
            plan = "=".join(map(str, filter(None, (job.plan.kind, job.plan.value))))
            shown |= {f"input_{job.split}": job.inputs, f"plan_{job.split}": plan}
        return displayed(
            **shown,
            output=first.output,
            name=first.name,
            writer=first.writer.official,
            map=first.map,
            overwrite=str(self.overwrite),
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[ConversionResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "ConvertTFRecords")
        jobs, features, tfds = self.jobs, self.features, self.tfds_directory
        tfds = None if tfds is None else path_text(tfds, "TFDS directory")
        done: beam.PCollection[ConversionResult] = (
            self._tasks(begin)
            | "ConvertShards" >> beam.Map(_make_shard, self.progress_dir)
            | "GatherResults" >> beam.CombineGlobally(_GatherFn()).without_defaults()  # type: ignore[no-untyped-call]
            | "Commit"
            >> beam.Map(_commit, jobs, features=features, tfds_directory=tfds)
        )
        return done

    def _tasks(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Any]:
        tasks: beam.PCollection[Any]
        if self.prepared:
            strides = itertools.chain.from_iterable(map(shard_strides, self.prepared))
            tasks = (
                begin
                | "Strides" >> beam.Create(list(strides), reshuffle=True)
                | "Tasks" >> beam.FlatMap(stride_tasks)
            )
        else:
            tasks = (
                begin
                | "Jobs" >> beam.Create(self.jobs)
                | "ListInputs" >> beam.FlatMap(_list_inputs)
                | "SpreadCounts" >> beam.Reshuffle()
                | "CountRecords" >> beam.Map(_count)
                | "GatherCounts"
                >> beam.CombineGlobally(ToListCombineFn()).without_defaults()
                | "PlanShards" >> beam.FlatMap(_plan, self.overwrite)
                | "SpreadShards" >> beam.Reshuffle()
            )
        return tasks
