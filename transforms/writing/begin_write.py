"""Beginning a write: its shards are planned, and its output is taken."""

from __future__ import annotations

import dataclasses
import json

from gristmill.dataset.arrayrecord.writing.versions import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.commit.leftovers import delete_leftovers
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_no_strangers,
    check_removal,
)
from gristmill.dataset.commit.split_check import check_split
from gristmill.dataset.commit.split_files import (
    committed_shards,
    is_readable,
    list_shards,
    remove_split,
)
from gristmill.dataset.commit.write_marker import option_differences
from gristmill.dataset.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import (
    read_manifest,
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import Content
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.empty_claim import delete_shards, unfinished_shards
from gristmill.transforms.jobs.prepared_job import PreparedJob, described_shards
from gristmill.transforms.jobs.settle_writer import Begun
from gristmill.transforms.planning.write_plan import (
    PlannedWrite,
    WriteJob,
    WritePlan,
)


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
    finish_exchange(job.output, or_give_up=overwrite)
    begun = None if overwrite else _begun_write(job)
    own = dataclasses.replace(job, writer=with_versions(job.writer))
    plan = WritePlan.of(own, counts, groups=groups)
    if begun is not None and begun.fingerprint != plan.write.fingerprint:
        writer = settled(job.writer, begun.writer)
        job = dataclasses.replace(job, writer=writer)
        same = WritePlan.of(job, counts, groups=groups)
        plan = same if same.write.fingerprint == begun.fingerprint else plan
    write = _take(plan.write, overwrite=overwrite)
    if not write.committed:
        check_versions(plan.write.job.writer, where=job.output)
    return dataclasses.replace(plan, write=write)


def _begun_write(job: WriteJob) -> Begun | None:
    """Returns the write that was begun or committed there, if any."""
    where = layout.join(job.output, layout.write_path(job.name, job.split))
    if (marker := storage_for(job.output).load(where)) is not None:
        try:
            fields = json.loads(marker.data)
            return Begun(fields["options"]["writer"], fields["fingerprint"])
        except (KeyError, TypeError, ValueError):
            return None  # What cannot be read is of another write.
    manifest = read_manifest(job.output)
    split = manifest.splits.get(job.split) if manifest is not None else None
    if split is None or "write" not in split.source:
        return None
    return Begun(split.source.get("options", {}).get("writer"), split.source["write"])


def _take(write: PlannedWrite, *, overwrite: bool) -> PlannedWrite:
    """Takes possession of the output, and returns where to write."""
    job = write.job
    read = read_replaced_manifest if overwrite else read_versioned_manifest
    manifest, version = read(job.output)
    marker = write.marker
    seen = marker.load()
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
    split = manifest.splits.get(job.split) if manifest is not None else None
    # Files that were lost since are written again with `overwrite`.
    if split and marker.made(split) and not check_split(job.output, split):
        delete_leftovers(job.output, job.name, [job.split])
        return dataclasses.replace(write, committed=True)
    if overwrite:
        if not marker.is_own(seen):
            where = job.output, job.name, job.split
            shards = described_shards(*where)
            shards |= committed_shards(job.output, manifest, job.split)
            check_removal(*where, manifest=manifest, shards=shards)
            if is_readable(*where, manifest=manifest, shards=shards):
                return _begin_aside(write, replaced=split)
            remove_split(*where, manifest=manifest, version=version, shards=shards)
            seen = None
    else:
        _check_free(write, manifest, seen)
    return _begin(write, seen)


def _begin(write: PlannedWrite, seen: Content | None) -> PlannedWrite:
    """Stores the marker, and deletes what an earlier attempt left."""
    job = write.job
    version = seen.version if seen else ""
    write.marker.store(options=job.options(), replaces=version)
    # Readers find shards by a pattern: what an earlier attempt left must not be there.
    stale = list_shards(job.output, job.name, job.split, keep=write.has_shard)
    storage_for(job.output).delete_all(stale)
    return write


def _begin_aside(write: PlannedWrite, *, replaced: Split | None) -> PlannedWrite:
    """Lets the shards be written beside the split that they replace."""
    write.aside.check_space(_expected_bytes(write, replaced))
    write.aside.take()
    own = write.put_aside()
    return _begin(own, own.marker.load())


def _check_free(
    write: PlannedWrite, manifest: Manifest | None, marker: Content | None
) -> None:
    job = write.job
    split = None if manifest is None else manifest.splits.get(job.split)
    cure = "choose another split or output, or replace it with overwrite=True"
    if split is not None:
        options, old = job.options(), split.source.get("options", {})
        # A conversion has options of its own.
        before = {name: old.get(name, value) for name, value in options.items()}
        changed = option_differences(before, options)
        if split.records_digest != write.total.hex:
            changed.append(
                f"there were {split.records:,} records, digest {split.records_digest}; "
                f"there are {write.total.records:,}, digest {write.total.hex}"
            )
        raise JobChangedError(
            "the output holds this split already, from another source",
            where=f"{job.output}, split {job.split}",
            got="; ".join(changed) or None,
            cure=cure,
        )
    where = job.output, job.name, job.split
    described, seen = PreparedJob.load_versioned(*where)
    if seen.job:
        unfinished = unfinished_shards(*where, manifest=manifest, described=described)
        if unfinished is None:
            raise JobChangedError(
                "the output belongs to an unfinished conversion",
                where=f"{job.output}, split {job.split}",
                cure=f"finish it first, or {cure}",
            )
        # Its workers, where some still run, ask for the description.
        storage = storage_for(job.output)
        job_path, inputs = layout.split_paths(job.name, job.split)[:2]
        storage.delete(layout.join(job.output, job_path), version=seen.job)
        if seen.inputs:
            storage.delete(layout.join(job.output, inputs), version=seen.inputs)
        delete_shards(job.output, unfinished)
    if marker is None:
        check_no_strangers(*where)


def _expected_bytes(write: PlannedWrite, replaced: Split | None) -> int | None:
    """Returns the size that the shards should have, known from a split like it."""
    if replaced is None or not replaced.raw_bytes:
        return None
    options = replaced.source.get("options")
    writer = write.job.options()["writer"]
    if not isinstance(options, dict) or options.get("writer") != writer:
        return None
    return int(write.total.raw_bytes * replaced.file_bytes / replaced.raw_bytes)
