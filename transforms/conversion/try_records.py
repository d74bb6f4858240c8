"""The first records of a job, for an example of what does not fit."""

from __future__ import annotations

import itertools

from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.sources.first_records import first_records

_LOOKED_AT = 10_000


def example_of(prepared: PreparedJob, name: str) -> str:
    """Returns where a misfit is seen first: a file, a place and why.

    Args:
        prepared: The job, whose shards were made.
        name: The name of the misfit.
    """
    job, files = prepared.job, prepared.files
    if job.pack is None:
        raise ValueError("a job that packs nothing")
    reader = reader_of(job.pack, files.spec)
    function = None if job.map is None else load_function(job.map)
    for one in itertools.islice(first_records(files), _LOOKED_AT):
        place = f"{one.path}, {one.place_text}"
        records = [one.record]
        if function is not None:
            records = [*call(function, one.record, source=place)]
        reader.read(records, lambda _, place=place: place)  # type: ignore[misc]
        if name in reader.examples:
            return reader.examples[name]
    return f"{job.output}, after the first {_LOOKED_AT:,} records"
