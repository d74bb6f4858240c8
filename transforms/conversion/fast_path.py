"""Whether shards are tokenised by the fast path: no more, once it was found to differ.

A file beside the shards tells the other workers, wherever they run. One that does not
know yet still compares a sample, so nothing is written that was seen to differ.
"""

from __future__ import annotations

from gristmill.dataset.base.errors import FastTokenizerDiffersError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.prepared_job import PreparedJob


def may_be_fast(prepared: PreparedJob) -> bool:
    """Tells whether a job asks for the fast path, and no worker found a difference."""
    pack = prepared.job.pack
    if pack is None or not pack.fast:
        return False
    path = _note_path(prepared)
    return storage_for(path).stat(path) is None


def note_difference(prepared: PreparedJob, found: FastTokenizerDiffersError) -> None:
    """Tells all workers of a job that the fast path differs."""
    path = _note_path(prepared)
    # Several may find out at once: any of their notes serves.
    storage_for(path).write(path, f"{found}\n".encode())


def _note_path(prepared: PreparedJob) -> str:
    """Returns where the note is: among the files that go when the job is committed."""
    job = prepared.job
    split, _ = layout.parse_edition_key(job.split)
    path = layout.result_path(job.name, split, prepared.fingerprint)
    return layout.join(job.output, path)
