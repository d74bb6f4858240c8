"""Which conversion was begun in an output: it goes on with the same writer."""

from __future__ import annotations

import contextlib
import json
from typing import Any, NamedTuple

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob


class Begun(NamedTuple):
    """What is known of a job that was begun.

    Attributes:
        writer: Options of its writer, as plain values.
        fingerprint: What tells it from all others.
    """

    writer: Any
    fingerprint: Any


def begun_job(job: ConversionJob) -> Begun | None:
    """Returns the conversion that is described beside an output, if any."""
    path = layout.join(job.output, layout.job_path(job.name, job.split))
    found = storage_for(job.output).load(path)
    if found is None:
        return None
    # What is wrong with it is told where it is read as a whole.
    with contextlib.suppress(KeyError, TypeError, ValueError):
        document = json.loads(found.data)
        return Begun(document["job"]["writer"], document["fingerprint"])
    return None
