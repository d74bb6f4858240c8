"""The end of a write: all records are proved to be in shards, then committed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import DataLossError, StorageChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
    read_manifest,
)
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.lookup import version_of
from gristmill.transforms.planning.write_plan import WritePlan
from gristmill.transforms.writing.write_group import write_group


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


def commit_write(
    plan: WritePlan,
    reports: Iterable[ShardReport],
    *,
    commit: Callable[..., Manifest] = commit_dataset,
) -> WriteResult:
    """Checks that all records are in the shards, and commits the dataset.

    A group without records never reaches `write_group` through a shuffle: its empty
    shards are written here.

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
    finish_exchange(plan.dataset)  # Of an earlier attempt at this very commit, perhaps.
    if plan.committed or _is_exchanged(plan):
        return _result(plan, open_manifest(plan.dataset))
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
            expected=f"{plan.shards:,} shards, {plan.total.summary}",
            got=f"{len(by_shard):,} shards, {written.summary}",
            cure="run again; if it repeats, please report it",
        )
    table = ShardTable.of([by_shard[shard] for shard in range(plan.shards)])
    place = layout.join(job.output, layout.table_path(job.name, job.split))
    seen = version_of(place)
    # In this order: a write that takes over the output later is not written over.
    marker = plan.marker
    version = marker.check_current()
    split = write_table(
        job.output,
        job.name,
        job.split,
        table,
        replaces=seen,
        writer_options=job.writer.described,
        source={"write": plan.fingerprint, "options": job.options()},
    )

    aside = plan.replaces_in is not None

    def check() -> None:
        marker.check_current()
        if aside:
            plan.aside.check()
        check_files(job.output, {job.split: split})

    manifest = commit(
        plan.dataset,
        job.name,
        {job.split: split},
        aside=[job.split] if aside else [],
        check=check,
    )
    # The marker of a write that has begun since stays: its shards belong to it.
    with contextlib.suppress(StorageChangedError):
        if version and not aside:
            marker.remove(version)
    return _result(plan, manifest)


def _is_exchanged(plan: WritePlan) -> bool:
    """Tells whether an earlier attempt has put the shards into their places."""
    if plan.replaces_in is None or plan.marker.load() is not None:
        return False
    manifest = read_manifest(plan.dataset)
    return manifest is not None and plan.marker.made(
        manifest.splits.get(plan.job.split)
    )


def _result(plan: WritePlan, manifest: Manifest) -> WriteResult:
    split = manifest.splits[plan.job.split]
    return WriteResult(
        output=plan.dataset,
        split=plan.job.split,
        shards=split.shards,
        records=split.records,
        raw_bytes=split.raw_bytes,
        file_bytes=split.file_bytes,
        committed_before=plan.committed,
    )
