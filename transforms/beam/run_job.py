"""A job as one linear chain of small elements: begin, spread, step, gather, commit.

Every runner can execute such a chain. It adds up the counts of successful attempts;
Dataflow shows the sums on the page of the job, exports them to Cloud Monitoring, and
shows the lineage in Dataplex. A pattern is reported as the directory in which it begins
to match, so that the report does not grow with the number of files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import apache_beam as beam
from apache_beam.metrics.metric import Lineage

from gristmill.dataset.base.columns import Gatherable, Gathered
from gristmill.dataset.storage.paths import has_magic
from gristmill.transforms.beam.pipeline_input import (
    FieldsShown,
    check_begin,
    check_known,
    printable,
    set_types,
)
from gristmill.transforms.beam.same_code import sent
from gristmill.transforms.jobs.job import Job, Step, results_of

if TYPE_CHECKING:
    from apache_beam.metrics.metricbase import Counter


NAMESPACE = "gristmill"

COUNTERS = {
    "planned-shards": "Shards to make, index or verify, known when the plan is made: "
    "in the end as many as `made-shards` and `resumed-shards`, or `verified-shards`",
    "made-shards": "Shards that were made or indexed",
    "resumed-shards": "Shards that were there already: an earlier run had made them, "
    "or an attempt that the runner repeated. No other counter has them",
    "records": "Records in the shards that were made",
    "raw-bytes": "Bytes of these records",
    "skipped-regions": "Damaged regions that were left out",
    "dropped-records": "Records that a function dropped",
    "added-records": "Records that a function returned beyond one for each",
    "changed-records": "Records that a function changed",
    "documents": "Documents that were packed",
    "tokens": "Tokens that were packed",
    "padding-tokens": "Places of packed rows that hold padding",
    "truncated-documents": "Documents whose end was left out",
    "truncated-tokens": "Tokens that were left out",
    "verified-shards": "Shards that were verified",
    "verified-records": "Records that were compared",
    "findings": "Faults that a verification found",
    "records-read": "Records that a transform for reading returned",
    "raw-bytes-read": "Bytes of these records",
}
DISTRIBUTIONS = {
    "shard-milliseconds": "Time to make, index or verify a shard",
    "shard-bytes": "Size of such a shard, as it is stored",
}


def counter(name: str) -> Counter:
    """Returns a counter of `COUNTERS`, for code that runs on a worker."""
    from apache_beam.metrics import Metrics

    if name not in COUNTERS:
        raise KeyError(name)
    return Metrics.counter(NAMESPACE, name)


def count(values: Mapping[str, int], *, seconds: float = 0.0) -> None:
    """Adds to counters and distributions, by name.

    Args:
        values: The numbers to add.
        seconds: The time for the shard whose size is among them.
    """
    from apache_beam.metrics import Metrics

    for name, value in values.items():
        if name in COUNTERS:
            counter(name).inc(value)
        else:
            Metrics.distribution(NAMESPACE, name).update(value)
            time = Metrics.distribution(NAMESPACE, "shard-milliseconds")
            time.update(round(seconds * 1000))


def report_sources(paths: Iterable[str]) -> None:
    """Reports paths or patterns that are read; call it on a worker."""
    for path in paths:
        _report(Lineage.sources(), path)


def report_sink(path: str) -> None:
    """Reports a dataset that is written; call it on a worker."""
    _report(Lineage.sinks(), path)


def _report(lineage: Lineage, path: str) -> None:
    path = printable(_without_magic(path)).rstrip("/") or "/"
    if path.startswith("gs://"):
        bucket, _, name = path.removeprefix("gs://").partition("/")
        names = (bucket, name) if name else (bucket,)
        lineage.add("gcs", *names, last_segment_sep="/" if name else None)
    else:
        path = os.path.abspath(path)
        lineage.add("filesystem", "localhost", path, last_segment_sep="/")


def _without_magic(path: str) -> str:
    """Returns the directory in which a pattern begins to match, or the path itself.

    >>> _without_magic("gs://b/raw/*/part-*"), _without_magic("a"), _without_magic("*")
    ('gs://b/raw', 'a', '.')
    """
    parts = path.split("/")
    for number, part in enumerate(parts):
        if has_magic(part):
            return "/".join(parts[:number]) or ("/" if path.startswith("/") else ".")
    return path


R = TypeVar("R")


class RunJob(beam.PTransform[beam.pvalue.PBegin, beam.PCollection[R]]):
    """Runs a job. Apply it to a pipeline; it returns the result of the commit.

    Args:
        job: The job.
    """

    def __init__(self, job: Job[R]):
        super().__init__()
        self._job = job

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[R]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, type(self).__name__)
        committed: beam.PCollection[R] = (
            begin | "Job" >> beam.Create([self._job]) | "Run" >> RunSteps(self._job)
        )
        return committed


class RunSteps(beam.PTransform[beam.PCollection[Any], beam.PCollection[R]]):
    """Runs a PCollection of jobs of one kind, and commits their results together.

    Args:
        job: Any of them, for its step and commit.
    """

    def __init__(self, job: Job[R]):
        super().__init__()
        self._job = job

    def expand(self, jobs: beam.PCollection[Any]) -> beam.PCollection[R]:
        """Builds the chain."""
        committed: beam.PCollection[R] = (
            jobs
            | "Begin" >> beam.FlatMap(sent(begun_tasks))
            | "Spread" >> beam.Reshuffle()
            | "Step" >> beam.FlatMap(measured, self._job.step)
            | "Gather" >> gather()
            | "Commit" >> beam.Map(self._job.commit)
        )
        return committed


class JobTransform(FieldsShown, RunJob[R]):
    """A job whose options are a dataclass's fields; `_gives` is its result's type."""

    _gives: ClassVar[Any]

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: They cannot be used.
        """
        super().__init__(self._make_job())
        check_known(self)
        set_types(self, gives=self._gives)

    def _make_job(self) -> Job[R]:
        raise NotImplementedError


def begun_tasks(job: Job[Any]) -> Iterator[Any]:
    """Begins a job, and yields its known results and its tasks."""
    begun = job.begin()
    report_sources(begun.sources)
    if begun.sink is not None:
        report_sink(begun.sink)
    planned = begun.parts if begun.planned is None else begun.planned
    if planned:
        count({"planned-shards": planned})
    yield from begun.known
    yield from begun.tasks


def measured(task: Any, step: Step[Any]) -> Iterator[Gatherable]:
    """Yields a task's results and counts metrics; known results pass through."""
    if isinstance(task, Gatherable):
        yield task
        return
    begun = time.monotonic()
    for result in results_of(step, task):
        count(result.done.counts, seconds=time.monotonic() - begun)
        yield result
        begun = time.monotonic()


class _GatherFn(beam.CombineFn):
    """Gathers the results of all shards as the columns of one element."""

    def create_accumulator(self) -> Gathered:
        return Gathered()

    def add_input(self, gathered: Gathered, element: Gatherable) -> Gathered:
        element.gather(gathered)
        return gathered

    def merge_accumulators(self, parts: Iterable[Gathered]) -> Gathered:
        whole = Gathered()
        for part in parts:
            whole.extend(part)
        return whole

    def extract_output(self, gathered: Gathered) -> Gathered:
        return gathered


def gather() -> Any:
    """Returns the step that gathers all elements in one collection."""
    # The default for an empty collection would be a side input that holds everything.
    gathering = _GatherFn()  # type: ignore[no-untyped-call]
    return beam.CombineGlobally(gathering).without_defaults()
