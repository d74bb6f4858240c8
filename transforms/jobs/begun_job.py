"""The conversion that was begun in an output, and its looks into the inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.formats.file_formats import FileFormat
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_formats import Look


class Begun(NamedTuple):
    """What is known of a job that was begun.

    Attributes:
        writer: Options of its writer, as plain values.
        fingerprint: What tells it from all others.
        date: The date that its template was told, "" for none.
    """

    writer: Any
    fingerprint: Any
    date: str = ""


def current_job(job: ConversionJob) -> ConversionJob:
    """Returns a job as that of the edition with which its split begins by now."""
    manifest = None
    with contextlib.suppress(InvalidDatasetError):  # Whoever takes the output tells.
        manifest = read_manifest(job.output)
    split = None if manifest is None else manifest.splits.get(job.split)
    if split is None:
        return job
    key = layout.edition_key(job.split, split.numbers[0])
    return dataclasses.replace(job, split=key)


def begun_job(job: ConversionJob) -> Begun | None:
    """Returns the conversion that is described beside an output, if any."""
    job = current_job(job)
    path = layout.join(job.output, layout.job_path(job.name, job.split))
    found = storage_for(job.output).load(path)
    if found is None:
        return None
    # What is wrong with it is told where it is read as a whole.
    with contextlib.suppress(KeyError, TypeError, ValueError):
        document = json.loads(found.data)
        chat = (document["job"].get("pack") or {}).get("chat") or {}
        date = (chat.get("found") or {}).get("date") or ""
        return Begun(document["job"]["writer"], document["fingerprint"], date)
    return None


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
