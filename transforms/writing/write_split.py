"""The begin of a write, which describes it, and its end, which commits all records."""

from __future__ import annotations

import dataclasses
import functools
import logging
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.file_writer import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.base.digest import DIGEST_ROW
from gristmill.dataset.base.errors import DataLossError, JobChangedError
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.garbage import tidy_split
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.ownership import (
    check_removal,
)
from gristmill.dataset.commit.write import (
    next_write,
    option_differences,
    read_output,
)
from gristmill.dataset.metadata.manifest import (
    Manifest,
)
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
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
    manifest, damaged = read_output(job.output, job.name, replaces=overwrite)
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
        check_removal(job.output, manifest, job.split)
    write = _described(plan.write, manifest, damaged=damaged, replaces=overwrite)
    _log.info(
        "%s: split %s: %d records become %d shards, write %s",
        *(job.output, job.split, write.total.records, write.shards),
        write.own.id,
    )
    return dataclasses.replace(plan, write=write)


def _made(write: PlannedWrite, there: Split) -> bool:
    """Returns whether a split is what a write makes."""
    content = there.source.get("content")
    return len(there.parts) == 1 and content == write.content


def _committed(write: PlannedWrite, there: Split) -> PlannedWrite:
    own = dataclasses.replace(
        write.own, id=there.source["job"], mark=there.write, base=there.edition
    )
    return dataclasses.replace(write, own=own, committed=True)


def _described(
    write: PlannedWrite, manifest: Manifest | None, *, damaged: bool, replaces: bool
) -> PlannedWrite:
    job = write.job
    found = next_write(
        *(job.output, job.name, job.split, write.content),
        manifest=manifest,
        damaged=damaged,
        replaces=replaces,
        shards={write.shard_path(shard) for shard in range(write.shards)},
    )
    fields = {"name": job.name, "split": job.split, "shards": write.shards}
    own = found.describe({"write": fields, "options": job.options()})
    return dataclasses.replace(write, own=own)


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


class WriteResult(NamedTuple):
    """The result of a write.

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


# What is gathered of each shard for the commit.
SHARD_ROW = np.dtype(
    [
        ("shard", "<i8"),
        ("file_bytes", "<i8"),
        ("file_crc32c", "<u4"),
        ("digest", DIGEST_ROW),
    ]
)
_PACKED = struct.Struct("<qqI32s")


def pack_report(report: ShardReport) -> bytes:
    """Returns a row of `SHARD_ROW`."""
    return _PACKED.pack(
        report.shard_index,
        report.file_bytes,
        report.file_crc32c,
        report.written.pack(),
    )


def commit_write(
    write: PlannedWrite,
    rows: bytes,
    *,
    keep_replaced: bool = False,
    delete: bool = True,
) -> WriteResult:
    """Checks that all records are in the shards, and commits the dataset.

    Args:
        write: The write.
        rows: Rows of `SHARD_ROW`, in any order; a shard may be there twice.
        keep_replaced: Whether the split that is replaced is kept, to go back to.
        delete: Whether to delete what is replaced, by this run or a killed one.

    Raises:
        DataLossError: Shards are missing, or do not hold all records.
        JobChangedError: Another write has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    job = write.job
    if write.committed:
        manifest = open_manifest(job.output)
        if delete:
            tidy_split(job.output, manifest, job.split)
        return _result(write, manifest)
    found = np.frombuffer(rows, SHARD_ROW)
    shards, first = np.unique(found["shard"], return_index=True)
    table = _table(write, found[first])
    written = table.digest()
    if len(table) != write.shards or written != write.total:
        missing = np.setdiff1d(np.arange(write.shards), shards)
        raise DataLossError(
            "not all records arrived in the shards",
            where=f"{job.output}, split {job.split}"
            + (f", {write.shard_path(int(missing[0]))}" if len(missing) else ""),
            expected=f"{write.shards:,} shards, {write.total.summary}",
            got=f"{len(table):,} shards, {written.summary}",
            cure="run again; if it repeats, please report it",
        )
    split = write_table(
        job.output,
        job.name,
        write.own.key,
        table,
        check_current=write.own.check_current,
        writer_options=job.writer.described,
        source={
            "job": write.own.id,
            "content": write.content,
            "options": job.options(),
        },
    )

    check = functools.partial(
        check_files,
        job.output,
        {write.own.key: split},
        check_current=write.own.check_current,
    )
    manifest = commit_dataset(
        job.output,
        job.name,
        {write.own.key: split},
        based_on={write.own.key: write.own.base},
        replaces=[write.own.key] if write.own.replaces else (),
        keep_replaced=keep_replaced,
        check=check,
        delete=delete,
    )
    return _result(write, manifest)


def _table(write: PlannedWrite, rows: npt.NDArray[Any]) -> ShardTable:
    digest = rows["digest"]
    return ShardTable.of_columns(
        [write.shard_path(shard) for shard in rows["shard"].tolist()],
        {
            "records": digest["records"],
            "raw_bytes": digest["raw_bytes"],
            "file_bytes": rows["file_bytes"],
            "file_crc32c": rows["file_crc32c"],
            "digest_low": digest["low"],
            "digest_high": digest["high"],
        },
    )


def _result(write: PlannedWrite, manifest: Manifest) -> WriteResult:
    split = manifest.splits[write.job.split]
    _log.info(
        "%s: committed%s; split %s: %d records in %d shards, %d bytes",
        *(write.job.output, " before" * write.committed, write.job.split),
        *(split.records, split.shards, split.file_bytes),
    )
    return WriteResult(
        output=write.job.output,
        split=write.job.split,
        shards=split.shards,
        records=split.records,
        raw_bytes=split.raw_bytes,
        file_bytes=split.file_bytes,
        committed_before=write.committed,
    )
