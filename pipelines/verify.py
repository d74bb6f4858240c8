"""Verification of a dataset: on this machine, or on a Beam runner."""

from __future__ import annotations

import posixpath
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Any

from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.anywhere import JobRun
from gristmill.pipelines.text.verification import Verification
from gristmill.transforms.checking.verification import VerifyJob


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
    return Verification(quick=quick, seconds=seconds, **found._asdict())


def _temp_location(beam_options: Sequence[str]) -> str | None:
    from apache_beam.options.pipeline_options import (
        GoogleCloudOptions,
        PipelineOptions,
    )

    cloud: Any = PipelineOptions(list(beam_options)).view_as(GoogleCloudOptions)
    found: str | None = cloud.temp_location
    return found
