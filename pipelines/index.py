"""Indexing of ArrayRecord files: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext

from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.local.progress import shown
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.indexing.index_job import IndexJob


def index(
    options: IndexOptions,
    *,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> tuple[Manifest, str]:
    """Makes existing ArrayRecord files a dataset, in place.

    Args:
        options: Which files, and how they are named.
        workers: Number of processes on this machine; by default its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error; not with Beam.

    Returns:
        The dataset, and its directory.
    """
    job = IndexJob(**dataclasses.asdict(options))
    with shown("preparing") if show_progress else nullcontext():
        begun = job.begin()
    first = next(iter(begun.tasks))
    if beam_options is None:
        made = run_job(job, begun, workers=workers, show_progress=show_progress)
        return made, first.dataset
    from gristmill.pipelines.beam.run_pipeline import result_path_of, run_pipeline
    from gristmill.transforms.beam.run_job import RunJob

    path = result_path_of(first.dataset, first.name, first.split, job)
    return run_pipeline(RunJob(job), beam_options, result_path=path), first.dataset
