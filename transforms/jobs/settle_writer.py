"""Which writer a job gets: its own choice, or that of the job that it goes on with.

A job that was begun is finished as it was begun: with the writer that wrote its first
shards, which is the official one if an older release began it. Another job takes
nothing of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.arrayrecord.writing.versions import with_versions
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


def settled(wanted: WriterOptions, begun: Mapping[str, Any]) -> WriterOptions:
    """Returns the options of a begun job if they are as wanted, or else those wanted.

    It does not matter whether the versions are those of this machine: a finished job
    needs none, and for another it is checked before anything is written.

    Args:
        wanted: With or without a choice of the writer.
        begun: The options of the begun job as plain values.
    """
    with contextlib.suppress(TypeError, ValueError):
        options = described_writer(begun)
        writer, versions = wanted.writer or options.writer, options.versions
        if dataclasses.replace(wanted, writer=writer, versions=versions) == options:
            return options
    return with_versions(wanted)


def described_writer(fields: Mapping[str, Any]) -> WriterOptions:
    """Returns options from plain values, those of older releases included."""
    return WriterOptions(**{"writer": "official"} | dict(fields))
