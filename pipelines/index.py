"""Indexing of ArrayRecord files: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
from typing import Any

from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.anywhere import JobRun, result_path_of
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.indexing.index_job import IndexJob


def index(options: IndexOptions, **how: Any) -> tuple[Manifest, str]:
    """Makes existing ArrayRecord files a dataset, in place.

    Args:
        options: The files, and the names of dataset and split.
        **how: The fields of `JobRun`.

    Returns:
        The dataset, and its directory.
    """
    job, run = IndexJob(**dataclasses.asdict(options)), JobRun(**how)
    begun = run.begin(job)
    first = next(iter(begun.tasks))
    path = result_path_of(first.dataset, first.name, first.split, job)
    return run.finish(job, begun, path), first.dataset
