"""Verification of a dataset: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
import logging
import posixpath
import tempfile
import time
import uuid
from collections.abc import Sequence

from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.local.pool import Done, run_tasks
from gristmill.pipelines.local.progress import preparing_shown
from gristmill.pipelines.text.verification import Verification
from gristmill.transforms.checking.metadata import plan_verify
from gristmill.transforms.checking.result import GatheredChecks
from gristmill.transforms.checking.shard import ShardCheck, verify_shard

_log = logging.getLogger(__name__)


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
    return dataclasses.replace(found, seconds=time.monotonic() - started)


def _verify_here(
    dataset: str, quick: bool, workers: int | None, show_progress: bool
) -> Verification:
    with preparing_shown(show=show_progress):
        plan = plan_verify(dataset, shards_too=quick)
    tasks = plan.tasks
    gathered = GatheredChecks(plan, quick=quick)
    if not quick:
        checks = run_tasks(
            verify_shard,
            tasks,
            label="verifying",
            noun="shards",
            stored_bytes=tasks.file_bytes,
            remote=storage_for(dataset).remote,
            workers=workers,
            show_progress=show_progress,
            done=_done,
        )
        for check in checks:
            gathered.add(check)
            _log.info("%s: %d records compared", check.path, check.records)
    return Verification(quick=quick, **gathered.result(dataset)._asdict())


def _done(check: ShardCheck) -> Done:
    return Done(check.file_bytes, check.records, check.raw_bytes)


def _verify_on_beam(
    dataset: str, quick: bool, report: str | None, beam_options: Sequence[str]
) -> Verification:
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        PipelineOptions,
    )

    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.verify_dataset import VerifyDataset

    # Not in the dataset: the account may have read access only.
    cloud = PipelineOptions(list(beam_options)).view_as(GoogleCloudOptions)
    shared_dir = cloud.temp_location or (report and posixpath.dirname(report))
    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        found = run_pipeline(
            VerifyDataset(dataset, quick=quick),
            beam_options,
            result_path=f"{shared_dir or directory}/.result-{uuid.uuid4().hex}",
        )
    return Verification(quick=quick, **found._asdict())
