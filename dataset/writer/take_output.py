"""Beginning to write a split: its output is taken, or earlier work continues."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.arrayrecord.chunk_encoder import check_versions, settled
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.commit.claim import Claim, again_if_changed
from gristmill.dataset.commit.commit import check_files
from gristmill.dataset.commit.garbage import tidy_split
from gristmill.dataset.commit.write_marker import BegunWrite, option_differences
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.parts import part_count
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.dataset.writer.parts_job import PartsJob


def take_output(
    job: PartsJob, *, resume: bool, overwrite: bool
) -> tuple[PartsJob, Split | None]:
    """Takes possession of the edition that a job is to make.

    Writers of all parts call it, at the same time or one after the other: what they
    have made there stays.

    Args:
        job: The job.
        resume: Whether to continue with what the same job has begun, or committed.
        overwrite: Whether to replace what the output holds of the split.

    Returns:
        The job with its writer and edition, and the split, if it has committed that.

    Raises:
        InputError: The output holds files of unknown origin, or a dataset of another
            name.
        JobChangedError: It holds the split already, or an unfinished job with other
            options.
        DataLossError: The split was committed by this job, and has lost files.
    """
    # The writer of another part may have begun: from then on it is the same job.
    return again_if_changed(lambda: _take(job, resume=resume, overwrite=overwrite))


def _take(
    job: PartsJob, *, resume: bool, overwrite: bool
) -> tuple[PartsJob, Split | None]:
    claim = Claim.next(job.output, job.name, job.split, overwrite=overwrite)
    there = claim.there
    begun, version = BegunWrite.load(job.output, job.name, claim.key)
    made = {} if there is None else there.options
    known = made if begun is None else begun.options
    if overwrite and not resume:
        known = {}
    writer = settled(job.writer, known.get("writer"))
    job = dataclasses.replace(job, edition=claim.edition, writer=writer)
    done = resume and not overwrite and job.marker.made(there)
    if claim.manifest is not None and there is not None and done:
        check_files(job.output, {job.split: there})
        tidy_split(job.output, claim.manifest, job.split)
        return job, there.parts[0]  # Later editions are of others.
    check_versions(job.writer, where=job.where)
    if overwrite:
        claim.check_replaceable()
    else:
        check_free(job, claim, begun)
    if begun is not None and begun.fingerprint == job.fingerprint:
        if not (resume or claim.version) and job.parts == 1:
            claim.leave_finished()
        return dataclasses.replace(job, taken=version), None
    if begun is not None and begun.parts:
        _check_replaceable(job, claim, begun, resume=resume, overwrite=overwrite)
    marker = job.marker
    claim.take(
        lambda: marker.store(options=job.options(), replaces=version),
        described={marker.file: version},
    )
    taken = version_of(layout.join(job.output, marker.file))
    return dataclasses.replace(job, taken=taken), None


def check_free(job: PartsJob, claim: Claim, begun: BegunWrite | None) -> None:
    """Checks that the output holds nothing of the split but parts of it.

    Args:
        job: The job.
        claim: Its output.
        begun: What has begun the edition.

    Raises:
        JobChangedError: It holds the split, or an unfinished conversion of it.
        InputError: It holds files that could be its shards.
    """
    split = claim.there
    cure = "choose another split or output, or replace it with overwrite=True"
    if split is not None:
        own, origin = job.marker.made(split), "from another source"
        if part_count(split) is not None:
            changed = option_differences(split.source["options"], job.source["options"])
            origin = f"of a Writer: {'; '.join(changed) or 'with the same options'}"
        raise JobChangedError(
            "the output holds this split already",
            where=job.where,
            got=f"{split.records:,} records, {origin}",
            cure=cure + (", or keep it with resume=True" if own else ""),
        )
    described, marker = storage_for(job.output).stat_all(
        [
            layout.join(job.output, path(job.name, claim.key))
            for path in (layout.job_path, layout.write_path)
        ]
    )
    if described or (begun is not None and not begun.parts):
        raise JobChangedError(
            "the output belongs to an unfinished conversion",
            where=job.where,
            cure=f"finish it first, or {cure}",
        )
    if not marker:
        claim.check_no_strangers()


def _check_replaceable(
    job: PartsJob, claim: Claim, begun: BegunWrite, *, resume: bool, overwrite: bool
) -> None:
    """Checks that another job may be deleted that has not committed its parts."""
    differences = option_differences(dict(begun.options), job.options())
    if resume:
        raise JobChangedError(
            "unfinished parts were written with other options",
            where=job.where,
            got="; ".join(differences),
            cure="give the same options to continue, or resume=False to begin again",
        )
    old = PartsJob.described(claim, begun)
    if not overwrite and (finished := old.finished_parts()):
        raise JobChangedError(
            f"{len(finished):,} of {old.parts:,} parts with other options are finished "
            "and not committed",
            where=job.where,
            got="; ".join(differences),
            cure="commit them, or replace them with overwrite=True",
        )
