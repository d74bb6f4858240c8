"""Beginning a conversion that replaces a split, beside what it replaces."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.commit.aside import Aside
from gristmill.dataset.errors import InvalidDatasetError, JobChangedError
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.conversion.same_inputs import (
    CompareShards,
    check_same_inputs,
)
from gristmill.transforms.jobs.prepared_job import DescriptionVersions, PreparedJob

_FRAME_BYTES = 16  # Of a TFRecord, besides the record.
_OPTIONS = ("writer", "map", "map_code_digest")  # They decide the size.


def take_aside(
    prepared: PreparedJob,
    *,
    replaced: Split | None,
    compare_shards: CompareShards | None = None,
) -> PreparedJob:
    """Takes the directory where the new files of a split are made.

    A job that an earlier run has begun there is continued.

    Args:
        prepared: The job.
        replaced: The split that it replaces, None if it is not known.
        compare_shards: Compares finished shards with inputs that may have changed; see
            `check_same_inputs`.

    Returns:
        The same job, with that directory as its output.

    Raises:
        StorageError: There is plainly not enough space.
        StorageChangedError: Another job has begun there at this moment.
    """
    job = prepared.job
    aside = _aside(prepared, job.output)
    aside.check_space(expected_bytes(prepared, replaced))
    aside.take()
    own = dataclasses.replace(prepared, job=dataclasses.replace(job, output=aside.path))
    try:
        found, seen = PreparedJob.load_versioned(
            aside.path, job.name, job.split, own=own
        )
        if found is not None and found.fingerprint == own.fingerprint:
            check_same_inputs(own, found, compare_shards=compare_shards)
    except (InvalidDatasetError, JobChangedError):
        # It is to be replaced anyway.
        aside.clear()
        seen = DescriptionVersions("", "")
    own.store(replaces=seen)
    return own


def check_owner(prepared: PreparedJob, dataset: str) -> None:
    """Checks that a job still has the directory that it took in a dataset.

    Raises:
        JobChangedError: Another job has taken it.
    """
    _aside(prepared, dataset).check()


def _aside(prepared: PreparedJob, dataset: str) -> Aside:
    job = prepared.job
    return Aside(
        dataset=dataset,
        name=job.name,
        split=job.split,
        fingerprint=prepared.fingerprint,
    )


def expected_bytes(prepared: PreparedJob, replaced: Split | None) -> int | None:
    """Returns the least size that the shards of a job should have, None if unknown.

    It is known from a split that was converted in the same way. Compressed inputs hold
    more than their size.
    """
    if replaced is None:
        return None
    source, options = replaced.source, prepared.job.options()
    try:
        alike = all(source["options"][name] == options[name] for name in _OPTIONS)
        input_bytes = source["raw_bytes"] + _FRAME_BYTES * source["records"]
        ratio = replaced.file_bytes / input_bytes
    except (KeyError, TypeError, ZeroDivisionError):
        return None  # It was not converted, or is empty.
    return int(ratio * int(prepared.files.sizes.sum())) if alike else None
