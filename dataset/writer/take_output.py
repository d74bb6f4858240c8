"""Beginning to write a split: its output is taken, or what was begun there goes on."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from gristmill.dataset.arrayrecord.writing.versions import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.commit.aside import Aside
from gristmill.dataset.commit.commit import check_files
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.commit.leftovers import delete_leftovers
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_removal,
)
from gristmill.dataset.commit.split_files import committed_shards
from gristmill.dataset.commit.write_marker import option_differences
from gristmill.dataset.errors import JobChangedError, StorageChangedError
from gristmill.dataset.metadata.read_manifest import (
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.writer.found_output import Begun, begun_job, check_free
from gristmill.dataset.writer.parts_job import PartsJob

_TRIES = 5


class TakenOutput(NamedTuple):
    """A job that owns its output.

    Attributes:
        job: The job; its writer is settled.
        committed: The split, if this very job has committed it already.
    """

    job: PartsJob
    committed: Split | None = None


def take_output(job: PartsJob, *, resume: bool, overwrite: bool) -> TakenOutput:
    """Takes possession of the directory that a split is made in.

    Writers of all parts call it, at the same time or one after the other: what they
    have made there stays.

    Args:
        job: The job.
        resume: Whether to go on with what the same job has begun, or committed.
        overwrite: Whether to replace what the output holds of the split.

    Raises:
        InputError: The output holds files of unknown origin, or a dataset of another
            name.
        JobChangedError: It holds the split already, or an unfinished job with other
            options.
        DataLossError: The split was committed by this job, and has lost files.
    """
    for left in reversed(range(_TRIES)):
        try:
            return _take(job, resume=resume, overwrite=overwrite)
        except StorageChangedError:
            # The writer of another part has just begun: from now on it is the same job.
            if not left:
                raise
    raise AssertionError


def _take(job: PartsJob, *, resume: bool, overwrite: bool) -> TakenOutput:
    where = job.output, job.name, job.split
    finish_exchange(job.output, or_give_up=overwrite)
    read = read_replaced_manifest if overwrite else read_versioned_manifest
    manifest, _ = read(job.output)
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
    split = None if manifest is None else manifest.splits.get(job.split)
    begun = begun_job(*where)
    found = split.source.get("options") if begun is None and split else None
    anew = overwrite and not resume
    job = _settled(job, None if anew else begun.options if begun else found)
    if split is not None and resume and not overwrite and job.marker.made(split):
        check_files(job.output, {job.split: split})
        delete_leftovers(job.output, job.name, [job.split])
        return TakenOutput(job, split.parts[0])  # Later editions are of others.
    check_versions(job.writer, where=job.where)
    if overwrite:
        shards = committed_shards(job.output, manifest, job.split)
        check_removal(*where, manifest=manifest, shards=shards)
    else:
        check_free(job, manifest)
    if begun is not None and begun.fingerprint != job.fingerprint:
        _check_replaceable(job, begun, resume=resume, overwrite=overwrite)
    Aside(**job.owner).take()
    marker = job.marker
    seen = marker.load()
    if not marker.is_own(seen):
        version = "" if seen is None else seen.version
        marker.store(options=job.options(), replaces=version)
    return TakenOutput(job)


def _settled(job: PartsJob, begun: Any) -> PartsJob:
    """Returns a job with the writer of the one that was begun, if that is as wanted."""
    writer = begun.get("writer") if isinstance(begun, dict) else None
    wanted = job.writer
    own = settled(wanted, writer) if writer else with_versions(wanted)
    return dataclasses.replace(job, writer=own)


def _check_replaceable(
    job: PartsJob, begun: Begun, *, resume: bool, overwrite: bool
) -> None:
    """Checks that another job may be deleted that has not committed its parts."""
    differences = option_differences(dict(begun.options), job.options())
    if resume:
        raise JobChangedError(
            "unfinished parts were written with other options",
            where=job.where,
            got="; ".join(differences),
            cure="give the same options to go on, or resume=False to begin again",
        )
    old = PartsJob.described(job.output, begun.options, where=begun.where)
    if not overwrite and (finished := old.finished_parts()):
        raise JobChangedError(
            f"{len(finished):,} of {old.parts:,} parts with other options are finished "
            "and not committed",
            where=job.where,
            got="; ".join(differences),
            cure="commit them, or replace them with overwrite=True",
        )
