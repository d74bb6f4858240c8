"""Which writer a job gets: its own choice, or that of the job that it goes on with."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.arrayrecord.writing.file_writer import with_versions
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob


def settle_writer(job: ConversionJob) -> ConversionJob:
    """Returns a job whose writer and its versions are settled.

    A job that was begun is finished as it was begun: with the writer that wrote its
    first shards, which is the official one if an older release began it. A job that is
    not the one that was begun differs in more than that, and is refused elsewhere.
    """
    path = layout.join(job.output, layout.job_path(job.name, job.split))
    found, begun = storage_for(job.output).load(path), None
    if found is not None:
        # What is wrong with it is told where it is read as a whole.
        with contextlib.suppress(KeyError, TypeError, ValueError):
            begun = json.loads(found.data)["job"]["writer"]
    return dataclasses.replace(job, writer=settled(job.writer, begun))


def settled(wanted: WriterOptions, begun: Mapping[str, Any] | None) -> WriterOptions:
    """Returns the options of a begun job if they are as wanted, or else those wanted.

    It does not matter whether the versions are those of this machine: a finished job
    needs none, and for another it is checked before anything is written.

    Args:
        wanted: With or without a choice of the writer.
        begun: The options of the begun job as plain values, None if there is none.
    """
    if begun is not None:
        with contextlib.suppress(TypeError, ValueError):
            options = described_writer(begun)
            writer, versions = wanted.writer or options.writer, options.versions
            if dataclasses.replace(wanted, writer=writer, versions=versions) == options:
                return options
    return with_versions(wanted)


def described_writer(fields: Mapping[str, Any]) -> WriterOptions:
    """Returns options from plain values, those of older releases included."""
    return WriterOptions(**{"writer": "official"} | dict(fields))
