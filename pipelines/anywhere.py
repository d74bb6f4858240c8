"""Runs of jobs, indexing and verification: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
import hashlib
import posixpath
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.local.progress import shown
from gristmill.transforms.jobs.job import Begun, Job

if TYPE_CHECKING:
    from gristmill.dataset.metadata.manifest import Manifest
    from gristmill.pipelines.options.job_options import IndexOptions
    from gristmill.pipelines.text.verification import Verification

R = TypeVar("R")


class JobRun(NamedTuple):
    """The place where a job runs: this machine, or a Beam runner.

    Attributes:
        workers: Number of processes on this machine; None for its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error.
    """

    workers: int | None = None
    beam_options: Sequence[str] | None = None
    show_progress: bool = False

    def begin(self, job: Job[Any]) -> Begun[Any]:
        """Begins a job, and shows progress on standard error."""
        with shown("preparing") if self.show_progress else nullcontext():
            return job.begin()

    def finish(self, job: Job[R], begun: Begun[Any] | None, result_path: str) -> R:
        """Runs a job, and returns the result of its commit.

        Args:
            job: The job, which a runner begins itself.
            begun: The tasks, if the job has begun here.
            result_path: The file through which workers of a runner return the result.
        """
        if self.beam_options is None:
            return run_job(
                job,
                begun or self.begin(job),
                workers=self.workers,
                show_progress=self.show_progress,
            )
        from gristmill.pipelines.beam.run_pipeline import run_pipeline
        from gristmill.transforms.beam.run_job import RunJob

        return run_pipeline(RunJob(job), self.beam_options, result_path=result_path)


def result_path_of(dataset: str, name: str, split: str, command: object) -> str:
    """Returns the file of a dataset through which workers return a command's result.

    Args:
        dataset: The dataset's directory.
        name: Its name.
        split: The first split that the command is about.
        command: A value whose `repr` identifies the command.
    """
    key = hashlib.sha256(repr(command).encode()).hexdigest()[:16]
    return layout.join(dataset, layout.result_path(name, split, key))


def index(options: IndexOptions, **how: Any) -> tuple[Manifest, str]:
    """Makes existing ArrayRecord files a dataset, in place.

    Args:
        options: The files, and the names of dataset and split.
        **how: The fields of `JobRun`.

    Returns:
        The dataset, and its directory.
    """
    from gristmill.transforms.indexing.index_job import IndexJob

    job, run = IndexJob(**dataclasses.asdict(options)), JobRun(**how)
    begun = run.begin(job)
    first = next(iter(begun.tasks))
    path = result_path_of(first.dataset, first.name, first.split, job)
    return run.finish(job, begun, path), first.dataset


def verify(
    dataset: str, *, quick: bool = False, report: str | None = None, **how: Any
) -> Verification:
    """Verifies a committed dataset.

    Args:
        dataset: Its directory.
        quick: Whether to skip the contents of shards and indexes.
        report: The file for the result, in a directory that this machine and the
            workers of a Beam runner can both access.
        **how: The fields of `JobRun`.

    Raises:
        NotADatasetError: The dataset is not committed.
        InvalidDatasetError: Its metadata cannot be read.
    """
    from gristmill.pipelines.text.verification import Verification
    from gristmill.transforms.checking.verification import VerifyJob

    started, run = time.monotonic(), JobRun(**how)
    dataset = path_text(dataset, "dataset")
    directory = tempfile.gettempdir()
    if report is not None:
        directory = posixpath.dirname(path_text(report, "report")) or directory
    if run.beam_options is not None:
        directory = _temp_location(run.beam_options) or directory
    # Not in the dataset: the account may have read access only.
    path = f"{directory}/.result-{uuid.uuid4().hex}"
    found = run.finish(VerifyJob(dataset, quick), None, path)
    seconds = time.monotonic() - started
    return Verification(quick=quick, seconds=seconds, **vars(found))


def _temp_location(beam_options: Sequence[str]) -> str | None:
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        PipelineOptions,
    )

    cloud: Any = PipelineOptions(list(beam_options)).view_as(GoogleCloudOptions)
    found: str | None = cloud.temp_location
    return found
