"""The end of a write: all records are proved to be in shards, then committed."""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import DIGEST_ROW
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.garbage import tidy_split
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.transforms.planning.write_plan import PlannedWrite

_log = logging.getLogger(__name__)


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
    commit: Callable[..., Manifest] = commit_dataset,
) -> WriteResult:
    """Checks that all records are in the shards, and commits the dataset.

    Args:
        write: The write.
        rows: Rows of `SHARD_ROW`, in any order; a shard may be there twice.
        keep_replaced: Whether the split that is replaced is kept, to go back to.
        delete: Whether to delete what is replaced, by this run or a killed one.
        commit: Commits the split, called as `commit_dataset` is.

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
        write.key,
        table,
        check_current=write.as_write.check_current,
        writer_options=job.writer.described,
        source={
            "job": write.fingerprint,
            "content": write.content,
            "options": job.options(),
        },
    )

    check = functools.partial(
        check_files,
        job.output,
        {write.key: split},
        check_current=write.as_write.check_current,
    )
    manifest = commit(
        job.output,
        job.name,
        {write.key: split},
        based_on={write.key: write.base},
        replaces=[write.key] if write.replaces else (),
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
