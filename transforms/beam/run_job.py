"""A job as one linear chain of small elements: begin, spread, step, gather, commit.

Every runner can execute such a chain.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import apache_beam as beam

from gristmill.dataset.base.columns import Gatherable, Gathered
from gristmill.transforms.beam.job_metrics import count, report_sink, report_sources
from gristmill.transforms.beam.pipeline_input import (
    FieldsShown,
    check_begin,
    check_known,
    set_types,
)
from gristmill.transforms.beam.same_code import sent
from gristmill.transforms.jobs.job import Job, Step, results_of

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
