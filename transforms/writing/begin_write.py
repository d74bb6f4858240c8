"""Beginning a write: its shards are planned, and its output is taken."""

from __future__ import annotations

import dataclasses
import logging

from gristmill.dataset.arrayrecord.chunk_encoder import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.commit.claim import Claim, again_if_changed
from gristmill.dataset.commit.garbage import delete_leftovers
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.write_marker import BegunWrite, option_differences
from gristmill.transforms.jobs.empty_claim import unfinished_shards
from gristmill.transforms.jobs.prepared_job import PreparedJob, described_shards
from gristmill.transforms.planning.write_plan import (
    PlannedWrite,
    WriteJob,
    WritePlan,
)

_log = logging.getLogger(__name__)


def begin_write(
    job: WriteJob, counts: bytes, *, groups: int, overwrite: bool = False
) -> WritePlan:
    """Plans the shards, and takes possession of the output.

    It may be repeated while the shards of this very plan are written, or after they
    were committed: then it changes nothing.

    Args:
        job: The job.
        counts: The records of the groups, as `WritePlan.of` takes them.
        groups: Number of groups.
        overwrite: Whether to replace what the output holds of the split.

    Raises:
        InputError: The output holds files of another writer.
        JobChangedError: The output holds the split with other records or options.
    """
    plan = again_if_changed(
        lambda: _begin(job, counts, groups=groups, overwrite=overwrite)
    )
    write = plan.write
    if not write.committed:
        check_versions(write.job.writer, where=job.output)
        _log.info(
            "%s: split %s: %d records become %d shards, write %s",
            *(job.output, job.split, write.total.records, write.shards),
            write.fingerprint,
        )
    return plan


def _begin(job: WriteJob, counts: bytes, *, groups: int, overwrite: bool) -> WritePlan:
    claim = Claim.next(job.output, job.name, job.split, overwrite=overwrite)
    begun, version = BegunWrite.load(job.output, job.name, claim.key)
    source = {} if claim.there is None else claim.there.source
    known = begun.options if begun is not None else source.get("options", {})
    fingerprint = begun.fingerprint if begun is not None else source.get("write")
    own = dataclasses.replace(job, writer=with_versions(job.writer))
    plan = WritePlan.of(own, counts, groups=groups)
    if not overwrite and fingerprint not in (None, plan.write.fingerprint):
        # What was begun, or is done, is the same with the writer that it has.
        job = dataclasses.replace(job, writer=settled(job.writer, known.get("writer")))
        same = WritePlan.of(job, counts, groups=groups)
        plan = same if same.write.fingerprint == fingerprint else plan
    write = _take(plan.write, claim, begun, version, overwrite=overwrite)
    return dataclasses.replace(plan, write=write)


def _take(
    write: PlannedWrite,
    claim: Claim,
    begun: BegunWrite | None,
    version: str,
    *,
    overwrite: bool,
) -> PlannedWrite:
    """Takes possession of the output, and returns the edition to write."""
    job, there = write.job, claim.there
    # Files that were lost since are written again with `overwrite`.
    if there and write.marker.made(there) and not check_split(job.output, there):
        write = dataclasses.replace(write, edition=there.numbers[0], committed=True)
        delete_leftovers(job.output, job.name, {job.split, write.key})
        return write
    write = dataclasses.replace(write, edition=claim.edition)
    marker = write.marker
    own = begun is not None and begun.fingerprint == write.fingerprint
    shards = set() if own else described_shards(job.output, job.name, claim.key)
    if overwrite and not own:
        claim.check_replaceable(shards=shards)
    elif not own:
        _check_free(write, claim, begun=bool(version))
    claim.check_space(
        write.total.raw_bytes,
        job.options(),
        alike=("writer",),
        input_before=lambda split: split.raw_bytes,
    )
    claim.take(
        lambda: marker.store(options=job.options(), replaces=version),
        described={marker.file: version},
        own=own,
        keep=write.has_shard,
        shards=shards,
    )
    return write


def _check_free(write: PlannedWrite, claim: Claim, *, begun: bool) -> None:
    """Checks that nothing of the split is in the output that another one has finished.

    Args:
        write: The write.
        claim: Its output.
        begun: Whether another write has begun there: this one takes its place.
    """
    job, there = write.job, claim.there
    cure = "choose another split or output, or replace it with overwrite=True"
    if there is not None:
        options, old = job.options(), there.options
        # A conversion has options of its own.
        before = {name: old.get(name, value) for name, value in options.items()}
        changed = option_differences(before, options)
        if there.records_digest != write.total.hex:
            changed.append(
                f"there were {there.records:,} records, digest {there.records_digest}; "
                f"there are {write.total.records:,}, digest {write.total.hex}"
            )
        raise JobChangedError(
            "the output holds this split already, from another source",
            where=claim.where,
            got="; ".join(changed) or None,
            cure=cure,
        )
    where = job.output, job.name, claim.key
    described, seen = PreparedJob.load_versioned(*where)
    shards: set[str] | None = set()
    if seen.job:
        shards = unfinished_shards(*where, manifest=claim.manifest, described=described)
    if shards is None:
        raise JobChangedError(
            "the output belongs to an unfinished conversion",
            where=claim.where,
            cure=f"finish it first, or {cure}",
        )
    claim.check_no_parts(cure=cure)
    if not begun:
        claim.check_no_strangers(written=shards)
