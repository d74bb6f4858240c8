"""`ConvertTFRecords`: the conversion as one Beam transform, without a shuffle of data.

One element is one shard, a few hundred bytes that say which, or all shards that are
made in one pass over a compressed file. The graph is one linear chain of small
elements, since that is what every runner executes:

    plan -> convert shards -> commit
    list inputs -> count parts -> plan -> convert shards -> commit

The second is for plans by records. Parts of large files are counted like shards.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import apache_beam as beam

from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.conversion.begin_job import (
    Overwrite,
    plan_job,
    take_output,
)
from gristmill.transforms.conversion.commit_shards import (
    ConversionResult,
    commit_shards,
)
from gristmill.transforms.conversion.count_records import (
    count_part,
    count_tasks,
    needs_count,
    total_counts,
)
from gristmill.transforms.conversion.counted_parts import (
    CountedPart,
    CountTask,
    GatheredCounts,
)
from gristmill.transforms.conversion.job_inputs import list_inputs, split_note
from gristmill.transforms.conversion.plan_notes import plan_notes
from gristmill.transforms.conversion.shard_tasks import (
    GatheredResults,
    ShardResult,
    ShardTask,
    make_shards,
    shard_strides,
    shard_tasks,
    stride_tasks,
)
from gristmill.transforms.conversion.try_function import TRIED_FILES, try_function
from gristmill.transforms.conversion.writer_silence import silence_notes
from gristmill.transforms.graph.applied import check_begin, check_known, set_types
from gristmill.transforms.graph.display import displayed
from gristmill.transforms.graph.lineage import report_sink, report_sources
from gristmill.transforms.jobs.conversion_job import ConversionJob, check_jobs
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.input_files import InputFiles

_log = logging.getLogger(__name__)


_PACKED_COUNTERS = (
    *("documents", "tokens", "padding_tokens", "cut_documents"),
    *("truncated_documents", "truncated_tokens", "reference_shards"),
)


def _list_inputs(job: ConversionJob) -> InputFiles:
    files = list_inputs(job)
    try_function(job, files.first(TRIED_FILES))
    joined = split_note(job, files)
    notes = [joined] if joined else []
    for note in (*notes, *files.notes(), *silence_notes(job.writer, files)):
        _log.warning("%s: %s", job.output, note)
    return files


def _list_parts(job: ConversionJob) -> Iterator[CountTask]:
    if needs_count(job):
        yield from count_tasks(job, _list_inputs(job))


def _count(task: CountTask, jobs: Mapping[str, ConversionJob]) -> CountedPart:
    return count_part(jobs[task.split], task)


def _plan(
    counted: GatheredCounts, jobs: tuple[ConversionJob, ...], overwrite: Overwrite
) -> Iterator[ShardResult | ShardTask]:
    """Plans all jobs, once all counts are there."""
    exchanged = finish_exchange(jobs[0].output, or_give_up=bool(overwrite))
    for job in sorted(jobs, key=lambda job: job.split):
        counts = None
        if (parts := counted.splits.get(job.split)) is not None:
            files, counts = total_counts(job, parts)
        else:
            files = _list_inputs(job)
        prepared = plan_job(job, files, counts, overwrite=overwrite)
        taken = take_output(prepared, overwrite=overwrite, exchanged=exchanged)
        for note in plan_notes(prepared) if taken.committed is None else ():
            _log.warning("%s: %s", job.output, note)
        for task in shard_tasks(taken.prepared):
            if taken.committed is not None:
                yield ShardResult(task, None)
                break
            yield task


def _make_shards(
    task: ShardTask | ShardResult, progress_dir: str | None
) -> Iterator[ShardResult]:
    """Makes the shards of a task, and counts what went through."""
    if isinstance(task, ShardResult):
        yield task
        return
    for result in make_shards(task, progress_dir=progress_dir):
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
            if (packed := report.packed) is not None:
                for name in _PACKED_COUNTERS:
                    value = getattr(packed, name)
                    counter = name.replace("_", "-")
                    beam.metrics.Metrics.counter("gristmill", counter).inc(value)
        yield result


class _GatherFn(beam.CombineFn):
    """Gathers elements as columns: those of a million shards become one element.

    Args:
        kind: `GatheredResults` or `GatheredCounts`.
    """

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind

    def create_accumulator(self) -> Any:
        return self._kind()

    def add_input(self, gathered: Any, element: Any) -> Any:
        gathered.add(element)
        return gathered

    def merge_accumulators(self, parts: Iterable[Any]) -> Any:
        whole = self._kind()
        for part in parts:
            whole.extend(part)
        return whole

    def extract_output(self, gathered: Any) -> Any:
        return gathered


def _gather(kind: type[Any]) -> Any:
    # The default, for no element at all, would be a side input that holds everything.
    return beam.CombineGlobally(_GatherFn(kind)).without_defaults()


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
        check_known(self)
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
            writer=first.writer.described,
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
            | "ConvertShards" >> beam.FlatMap(_make_shards, self.progress_dir)
            | "GatherResults" >> _gather(GatheredResults)
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
        elif any(map(needs_count, self.jobs)):
            by_split = {job.split: job for job in self.jobs}
            tasks = (
                begin
                | "Jobs" >> beam.Create(self.jobs)
                | "ListInputs" >> beam.FlatMap(_list_parts)
                | "SpreadParts" >> beam.Reshuffle()
                | "CountRecords" >> beam.Map(_count, by_split)
                | "GatherCounts" >> _gather(GatheredCounts)
                | "PlanShards" >> beam.FlatMap(_plan, self.jobs, self.overwrite)
                | "SpreadShards" >> beam.Reshuffle()
            )
        else:
            tasks = (
                begin
                | "Begin" >> beam.Create([GatheredCounts()])
                | "PlanShards" >> beam.FlatMap(_plan, self.jobs, self.overwrite)
                | "SpreadShards" >> beam.Reshuffle()
            )
        return tasks
