"""Whether shards are tokenised by the fast path: no more, once it was found to differ.

A file in the job's temporary directory tells the other workers. One that does not know
yet still compares a sample, so nothing is written that was seen to differ.
"""

from __future__ import annotations

from gristmill.dataset.errors import FastTokenizerDiffersError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.jobs.prepared_job import PreparedJob


def may_be_fast(prepared: PreparedJob) -> bool:
    """Tells whether a job asks for the fast path, and no worker found a difference."""
    pack = prepared.job.pack
    return pack is not None and pack.fast and not version_of(_place(prepared))


def note_difference(prepared: PreparedJob, found: FastTokenizerDiffersError) -> None:
    """Tells all workers of a job that the fast path differs."""
    place = _place(prepared)
    storage = storage_for(place)
    storage.write(place, f"{found}\n".encode(), replaces=version_of(place))


def _place(prepared: PreparedJob) -> str:
    job = prepared.job
    directory = layout.temporary_dir(job.output, job.name, job.split)
    return layout.join(directory, f"fast-differs-{prepared.fingerprint}")
