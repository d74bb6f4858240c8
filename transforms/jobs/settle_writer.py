"""The conversion that was begun in an output: it goes on with the same writer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob


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
