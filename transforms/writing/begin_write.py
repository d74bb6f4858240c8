"""Beginning a write: its shards are planned, and it gets its write id."""

from __future__ import annotations

import dataclasses
import logging

from gristmill.dataset.arrayrecord.chunk_encoder import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.option_differences import option_differences
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_removal,
    committed_shards,
)
from gristmill.dataset.commit.write import Write, next_write
from gristmill.dataset.metadata.manifest import (
    Manifest,
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.planning.write_plan import (
    PlannedWrite,
    WriteJob,
    WritePlan,
)

_log = logging.getLogger(__name__)


def begin_write(
    job: WriteJob, counts: bytes, *, groups: int, overwrite: bool = False
) -> WritePlan:
    """Plans the shards, and describes the write beside its output.

    It may be repeated while the shards of this very plan are written, or after they
    were committed: then it changes nothing.

    Args:
        job: The job.
        counts: The records of the groups, as `WritePlan.of` takes them.
        groups: Number of groups.
        overwrite: Whether to replace what the output holds of the split.

    Raises:
        InputError: The output holds files of unknown origin with the names of shards.
        JobChangedError: The output holds the split with other records or options.
    """
    read = read_replaced_manifest if overwrite else read_versioned_manifest
    manifest, version = read(job.output)
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
    there = None if manifest is None else manifest.splits.get(job.split)
    if there is not None:
        writer = settled(job.writer, there.source.get("options", {}).get("writer"))
        made = WritePlan.of(
            dataclasses.replace(job, writer=writer), counts, groups=groups
        )
        # Files that were lost since are written again with `overwrite`.
        if _made(made.write, there) and not check_split(job.output, there):
            return dataclasses.replace(made, write=_committed(made.write, there))
    job = dataclasses.replace(job, writer=with_versions(job.writer))
    check_versions(job.writer, where=job.output)
    plan = WritePlan.of(job, counts, groups=groups)
    if there is not None and not overwrite:
        raise _not_own(plan.write, there)
    if there is not None and manifest is not None:
        shards = committed_shards(job.output, manifest, job.split)
        where = job.output, job.name, job.split
        check_removal(*where, manifest=manifest, shards=shards)
    damaged = manifest is None and bool(version)
    write = _described(plan.write, manifest, damaged=damaged, replaces=overwrite)
    _log.info(
        "%s: split %s: %d records become %d shards, write %s",
        *(job.output, job.split, write.total.records, write.shards),
        write.fingerprint,
    )
    return dataclasses.replace(plan, write=write)


def _made(write: PlannedWrite, there: Split) -> bool:
    """Returns whether a split is what a write makes."""
    content = there.source.get("content")
    return len(there.parts) == 1 and content == write.content


def _committed(write: PlannedWrite, there: Split) -> PlannedWrite:
    found = Write(
        output=write.job.output,
        name=write.job.name,
        split=write.job.split,
        id=there.source["job"],
        mark=there.write,
        base=there.edition,
    )
    return write.of_write(found, committed=True)


def _described(
    write: PlannedWrite, manifest: Manifest | None, *, damaged: bool, replaces: bool
) -> PlannedWrite:
    job = write.job
    plain = dataclasses.replace(write, plain=True)
    found = next_write(
        *(job.output, job.name, job.split, write.content),
        manifest=manifest,
        damaged=damaged,
        replaces=replaces,
        shards={plain.shard_path(shard) for shard in range(write.shards)},
    )
    fields = {"name": job.name, "split": job.split, "shards": write.shards}
    return write.of_write(found.describe({"write": fields, "options": job.options()}))


def _not_own(write: PlannedWrite, there: Split) -> JobChangedError:
    """Returns the error for a split that another write has made."""
    job = write.job
    options, old = job.options(), there.source.get("options", {})
    # A conversion has options of its own.
    before = {name: old.get(name, value) for name, value in options.items()}
    changed = option_differences(before, options)
    if there.records_digest != write.total.hex:
        changed.append(
            f"there were {there.records:,} records, digest {there.records_digest}; "
            f"there are {write.total.records:,}, digest {write.total.hex}"
        )
    return JobChangedError(
        "the output holds this split already, from another source",
        where=f"{job.output}, split {job.split}",
        got="; ".join(changed) or None,
        cure="choose another split or output, or replace it with overwrite=True",
    )
