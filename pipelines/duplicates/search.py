"""The search for duplicates that a user asks for: inputs, and a dataset's column."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import has_file
from gristmill.pipelines.columns.attached import Attached
from gristmill.pipelines.duplicates.duplicate_column import attach_duplicates
from gristmill.pipelines.duplicates.find import find_duplicates, find_on_beam
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.transforms.duplicates.commit_certificate import (
    DuplicatesResult,
    plan_search,
)
from gristmill.transforms.jobs.duplicate_comparison import Comparison


def search(
    options: ConvertOptions,
    by: str,
    *,
    overwrite: bool = False,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> tuple[DuplicatesResult, Attached | None]:
    """Finds duplicates, and attaches them to a dataset that is the input.

    Args:
        options: The inputs, and the certificate as output.
        by: What is compared, as `Comparison.parse` takes it.
        overwrite: Whether a column of the dataset is replaced.
        workers: As in `find_duplicates`.
        beam_options: As in `find_on_beam`; None to run without Beam.
        show_progress: As in `find_duplicates`.

    Raises:
        InputError: Inputs or options cannot be used.
    """
    compared, certificate = Comparison.parse(by), options.output
    jobs = conversion_of(options).jobs
    if len(jobs) > 1:
        raise InputError(
            "the input has several splits",
            where=some_of(options.input),
            expected="one of " + some_of([job.split for job in jobs], 20),
            cure="choose one with --split",
        )
    (job,), work_dir = jobs, f"{certificate}.parts"
    if beam_options is not None:
        found = find_on_beam(
            *(job, compared, certificate), work_dir=work_dir, beam_options=beam_options
        )
    else:
        found = find_duplicates(
            *(plan_search(job, compared), compared, certificate),
            work_dir=work_dir,
            workers=workers,
            show_progress=show_progress,
        )
    directory = job.inputs[0]
    if len(job.inputs) > 1 or not has_file(directory, layout.DATASET_JSON):
        return found, None
    attached = attach_duplicates(
        directory,
        certificate,
        split=job.split,
        overwrite=overwrite,
        workers=workers,
    )
    return found, attached
