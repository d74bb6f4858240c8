"""Verification of a dataset: on this machine, or on a Beam runner."""

from __future__ import annotations

import posixpath
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext

from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.local.progress import shown
from gristmill.pipelines.text.verification import Verification
from gristmill.transforms.checking.verification import VerifyJob, VerifyResult


def verify(
    dataset: str,
    *,
    quick: bool = False,
    report: str | None = None,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> Verification:
    """Verifies a committed dataset.

    Args:
        dataset: Its directory.
        quick: Whether to leave out the contents of shards and indexes.
        report: The file that the result will be written to: its directory is one that
            this machine and the workers of a Beam runner can both access.
        workers: Number of processes on this machine; by default its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error; not with Beam.

    Raises:
        NotADatasetError: The dataset is not committed.
        InvalidDatasetError: Its metadata cannot be read.
    """
    started = time.monotonic()
    dataset = path_text(dataset, "dataset")
    if report is not None:
        report = path_text(report, "report")
    if beam_options is not None:
        found = _verify_on_beam(dataset, quick, report, beam_options)
    else:
        found = _verify_here(dataset, quick, workers, show_progress)
    seconds = time.monotonic() - started
    return Verification(quick=quick, seconds=seconds, **found._asdict())


def _verify_here(
    dataset: str, quick: bool, workers: int | None, show_progress: bool
) -> VerifyResult:
    job = VerifyJob(dataset, quick)
    with shown("preparing") if show_progress else nullcontext():
        begun = job.begin()
    return run_job(job, begun, workers=workers, show_progress=show_progress)


def _verify_on_beam(
    dataset: str, quick: bool, report: str | None, beam_options: Sequence[str]
) -> VerifyResult:
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        PipelineOptions,
    )

    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.run_job import RunJob

    # Not in the dataset: the account may have read access only.
    cloud = PipelineOptions(list(beam_options)).view_as(GoogleCloudOptions)
    shared_dir = cloud.temp_location or (report and posixpath.dirname(report))
    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        return run_pipeline(
            RunJob(VerifyJob(dataset, quick)),
            beam_options,
            result_path=f"{shared_dir or directory}/.result-{uuid.uuid4().hex}",
        )
