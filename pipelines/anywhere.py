"""Runs of a job: on processes of this machine, or on a Beam runner."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

from gristmill.dataset.metadata import layout
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.local.progress import shown
from gristmill.transforms.jobs.job import Begun, Job

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
