"""Looks of an earlier run into the inputs of a job, where they are the same.

A generation of an object never changes: a rerun need not look into it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.formats.file_formats import FileFormat
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.jobs.settle_writer import current_job
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_formats import Look


def known_looks(job: ConversionJob, files: Sequence[FileInfo]) -> list[Look] | None:
    """Returns the looks at first bytes of files, if an earlier run recorded them.

    Args:
        job: The job, which may have been begun.
        files: What its inputs match now.

    Returns:
        What was seen of each; None if any of them is another one, or may be.
    """
    if not all(storage_for(info.path).remote for info in files[:1]):
        return None
    try:
        begun = PreparedJob.load(job.output, job.name, current_job(job).split)
    except (InvalidDatasetError, StorageError):
        return None  # Whoever takes the output says what is wrong.
    if begun is None or not _as_asked(begun.job, job):
        return None
    before = begun.files
    if (
        len(before) != len(files)
        or not np.array_equal(before.sizes, [info.size_bytes for info in files])
        or list(before.versions) != [info.version for info in files]
        or list(before.paths) != [info.path for info in files]
    ):
        return None
    # All were of this format, or of no known one, which counts as the same.
    name = FORMATS[before.spec.format].found_as
    looks = [
        Look(
            kind,
            FileFormat(name if kind == "none" else f"{kind}-compressed {name}", ""),
        )
        for kind in COMPRESSIONS
    ]
    return [looks[kind] for kind in before.compressions.tolist()]


def _as_asked(before: ConversionJob, job: ConversionJob) -> bool:
    """Returns whether a job takes the same files for inputs as before."""
    asked = (before.records.input_format, before.on_corrupt)
    return asked == (job.records.input_format, job.on_corrupt)
