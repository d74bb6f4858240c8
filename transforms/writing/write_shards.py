"""Writing groups of records as shards, and committing them: plain functions.

Everything that is written depends on the records and options alone. So an attempt that
is repeated, or runs twice at once, writes the same bytes under the same names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_no_strangers,
    check_removal,
)
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.commit.split_check import check_split
from gristmill.dataset.commit.split_files import (
    committed_shards,
    list_shards,
    remove_split,
)
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import (
    DataLossError,
    JobChangedError,
    StorageChangedError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    Split,
    open_manifest,
    read_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import Content
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.jobs.conversion_job import described_shards
from gristmill.transforms.planning.write_plan import WriteJob, WritePlan
from gristmill.transforms.writing.record_spool import RecordSpool

Record = bytes | tuple[bytes, bytes]


class WriteResult(NamedTuple):
    """What a write left.

    Attributes:
        output: The dataset's directory.
        split: The split.
        shards: Number of its shards.
        records: Number of its records.
        raw_bytes: Their size.
        file_bytes: Size of the shards.
        committed_before: Whether the same was there already.
    """

    output: str
    split: str
    shards: int
    records: int
    raw_bytes: int
    file_bytes: int
    committed_before: bool


def _marker_path(job: WriteJob) -> str:
    """Returns where an unfinished write says that the shards are its own."""
    return layout.join(job.output, layout.write_path(job.name, job.split))


def plan_write(
    job: WriteJob,
    digests: Iterable[tuple[int, RecordsDigest]],
    *,
    groups: int,
    overwrite: bool = False,
) -> WritePlan:
    """Plans the shards, and takes possession of the output.

    Does no harm when repeated, also while the shards of this very plan are written, or
    after they were committed.

    Args:
        job: The job.
        digests: Group and digest of its records, in any order; a group can be there in
            parts, or not at all.
        groups: Number of groups.
        overwrite: Whether to throw away what the output holds of the split.

    Raises:
        InputError: The output holds files of somebody else.
        JobChangedError: The output holds the split with other records or options.
    """
    by_group = [RecordsDigest()] * groups
    for group, digest in digests:
        by_group[group] += digest
    plan = WritePlan(job=job, digests=tuple(by_group))
    manifest, version = read_versioned_manifest(job.output)
    seen = storage_for(job.output).load(_marker_path(job))
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
    split = manifest.splits.get(job.split) if manifest is not None else None
    if (
        split is not None
        and split.source.get("write") == plan.fingerprint
        # Files that were lost since are written again with `overwrite`.
        and not check_split(job.output, split)
    ):
        return dataclasses.replace(plan, committed=True)
    if overwrite:
        if not _is_ours(plan, seen):
            place = job.output, job.name, job.split
            shards = described_shards(*place)
            shards |= committed_shards(job.output, manifest, job.split)
            check_removal(*place, manifest=manifest, shards=shards)
            remove_split(*place, manifest=manifest, version=version, shards=shards)
            seen = None
    else:
        _check_free(plan, split, seen)
    marker = {"fingerprint": plan.fingerprint, "options": job.options()}
    storage_for(job.output).write(
        _marker_path(job),
        json.dumps(marker, indent=2).encode() + b"\n",
        replaces=seen.version if seen else "",
    )
    # Readers find shards by a pattern: what an earlier attempt left must not be there.
    keep = [plan.shard_path(shard) for shard in range(plan.shards)]
    stale = list_shards(job.output, job.name, job.split, keep=keep)
    storage_for(job.output).delete_all(stale)
    return plan


def _is_ours(plan: WritePlan, found: Content | None) -> bool:
    """Tells whether an unfinished write of this very plan is in place."""
    if found is None:
        return False
    try:
        marker: dict[str, Any] = json.loads(found.data)
    except ValueError:
        return False
    return marker.get("fingerprint") == plan.fingerprint


def _check_current(plan: WritePlan) -> str:
    """Checks that the output still belongs to a plan.

    Returns:
        The version of the marker that says so, "" where the plan is committed.

    Raises:
        JobChangedError: Another write has taken it over.
    """
    job = plan.job
    marker = storage_for(job.output).load(_marker_path(job))
    if marker is not None and _is_ours(plan, marker):
        return marker.version
    manifest = read_manifest(job.output)
    split = manifest.splits.get(job.split) if manifest is not None else None
    # A repeated attempt comes late, which does no harm.
    if split is None or split.source.get("write") != plan.fingerprint:
        raise JobChangedError(
            "another write has taken over the output",
            where=f"{job.output}, split {job.split}",
            expected=f"write {plan.fingerprint}",
            cure="run one write at a time into one output",
        )
    return ""


def _check_free(plan: WritePlan, split: Split | None, marker: Content | None) -> None:
    job = plan.job
    cure = "choose another split or output, or replace it with overwrite=True"
    if split is not None:
        source = split.source.get("options", {})
        changed = [
            f"{name} was {source.get(name)!r}, is {value!r}"
            for name, value in job.options().items()
            if name in source and source[name] != value
        ]
        if split.records_digest != plan.total.hex:
            changed.append(
                f"there were {split.records:,} records, digest {split.records_digest}; "
                f"there are {plan.total.records:,}, digest {plan.total.hex}"
            )
        raise JobChangedError(
            "the output holds this split already, from another source",
            where=f"{job.output}, split {job.split}",
            got="; ".join(changed) or None,
            cure=cure,
        )
    storage = storage_for(job.output)
    converting = layout.join(job.output, layout.job_path(job.name, job.split))
    if storage.stat(converting) is not None:
        raise JobChangedError(
            "the output belongs to an unfinished conversion",
            where=f"{job.output}, split {job.split}",
            cure=f"finish it first, or {cure}",
        )
    if marker is None:
        check_no_strangers(job.output, job.name, job.split)


def write_group(
    plan: WritePlan, group: int, records: Iterable[Record]
) -> Iterator[ShardReport]:
    """Writes all shards of a group, unless they are there already.

    Memory: some 130 bytes a record of the group (180 and the key with keys), and a few
    megabytes. Disk: the group's records, and one shard.

    Args:
        plan: The plan.
        group: Number of the group.
        records: Its records in any order; with keys, (encoded key, record) each. They
            are looked at once.

    Yields:
        What was counted, one shard after the other.

    Raises:
        DataLossError: The records are not those that were counted for the plan.
        JobChangedError: Another write has taken over the output.
        StorageError: Reading or writing failed.
    """
    job = plan.job
    if plan.committed:
        return
    shards = plan.shards_of(group)
    places = [ShardPlace.look(job.output, plan.shard_path(shard)) for shard in shards]
    there = [place.finished(plan.fingerprint) for place in places]
    finished = [report for report in there if report is not None]
    if len(finished) == len(shards):
        yield from finished
        return
    storage = storage_for(job.output)
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    with storage.temporary(temporary) as path, RecordSpool(path) as spool:
        for record in records:
            if isinstance(record, bytes):
                spool.add(record)
            else:
                spool.add(record[1], record[0])
        if spool.digest != plan.digests[group]:
            raise DataLossError(
                "records of a group are not those that were counted before",
                where=f"{job.output}, split {job.split}, group {group}",
                expected=_facts(plan.digests[group]),
                got=_facts(spool.digest),
                cure="make sure that the steps before give the same records when they "
                "are repeated, or put a beam.Reshuffle() before the write",
            )
        order = spool.order()
        cuts = spool.cuts(order, len(shards))
        for part, (shard, place) in enumerate(zip(shards, places, strict=True)):
            rows = order[slice(*cuts[part : part + 2])]
            yield _write_shard(plan, shard, place, spool, rows)


def _facts(digest: RecordsDigest) -> str:
    return f"{digest.records:,} records, {digest.raw_bytes:,} bytes, {digest.hex}"


def _write_shard(
    plan: WritePlan,
    shard: int,
    place: ShardPlace,
    spool: RecordSpool,
    order: npt.NDArray[np.int64],
) -> ShardReport:
    job = plan.job
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    with storage_for(job.output).temporary(temporary) as local:
        writer = ShardWriter(local, options=plan.job.writer)
        try:
            for records, crc32cs in spool.batches(order):
                writer.write(records, crc32cs)
            written = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        report = ShardReport(
            path=place.path,
            shard_index=shard,
            job=plan.fingerprint,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=written.digest,
            written=written.digest,
        )
        _check_current(plan)  # Hours may have passed.
        place.publish(local, written, report)
    return report


def commit_write(
    plan: WritePlan,
    reports: Iterable[ShardReport],
    *,
    commit: Callable[..., Manifest] = commit_dataset,
) -> WriteResult:
    """Checks that all records are in the shards, and commits the dataset.

    Groups without records have nobody who writes them: their empty shards are written
    here.

    Args:
        plan: The plan.
        reports: Of the shards, in any order; a shard may be there twice.
        commit: Commits the split, called as `commit_dataset` is.

    Raises:
        DataLossError: Shards are missing, or do not hold all records.
        JobChangedError: Another write has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    job = plan.job
    if plan.committed:
        return _result(plan, open_manifest(job.output))
    by_shard = {report.shard_index: report for report in reports}
    for group, digest in enumerate(plan.digests):
        if not digest.records:
            by_shard |= {r.shard_index: r for r in write_group(plan, group, ())}
    missing = sorted(set(range(plan.shards)) - by_shard.keys())
    written = RecordsDigest.total(report.written for report in by_shard.values())
    if missing or written != plan.total:
        raise DataLossError(
            "not all records arrived in the shards",
            where=f"{job.output}, split {job.split}"
            + (f", {plan.shard_path(missing[0])}" if missing else ""),
            expected=f"{plan.shards:,} shards, {_facts(plan.total)}",
            got=f"{len(by_shard):,} shards, {_facts(written)}",
            cure="run again; if it repeats, please report it",
        )
    table = ShardTable.of([by_shard[shard] for shard in range(plan.shards)])
    place = layout.join(job.output, layout.table_path(job.name, job.split))
    seen = version_of(place)
    # Then: whoever takes over the output from here on is not written over.
    marker = _check_current(plan)
    split = write_table(
        job.output,
        job.name,
        job.split,
        table,
        replaces=seen,
        writer_options=job.writer.official,
        source={"write": plan.fingerprint, "options": job.options()},
    )

    def check() -> None:
        _check_current(plan)
        check_files(job.output, {job.split: split})

    manifest = commit(job.output, job.name, {job.split: split}, check=check)
    # That of a write that has begun since stays: without it, its shards are nobody's.
    with contextlib.suppress(StorageChangedError):
        if marker:
            storage_for(job.output).delete(_marker_path(job), version=marker)
    return _result(plan, manifest)


def _result(plan: WritePlan, manifest: Manifest) -> WriteResult:
    split = manifest.splits[plan.job.split]
    return WriteResult(
        output=plan.job.output,
        split=plan.job.split,
        shards=split.shards,
        records=split.records,
        raw_bytes=split.raw_bytes,
        file_bytes=split.file_bytes,
        committed_before=plan.committed,
    )
