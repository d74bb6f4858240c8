"""Committing the parts of a split together, once all are finished."""

from __future__ import annotations

import contextlib
import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    InputError,
    InvalidDatasetError,
    JobChangedError,
    some_of,
)
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.garbage import delete_strays, tidy_split
from gristmill.dataset.commit.write import read_output
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import encode_sources
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.dataset.writer.part import PartState, check_same_parts
from gristmill.dataset.writer.parts_job import PartsJob, described_jobs

_PART = "part"  # Column of a table of shards: int64 [shards], the part of each.


def commit_parts(
    path: StrPath,
    *,
    name: str | None = None,
    split: str = "train",
    overwrite: bool = False,
    keep_replaced: bool = False,
) -> Manifest:
    """Commits the parts that several writers have finished as one split.

    The records of part 0 come first, then those of part 1, and so on. Call it once all
    writers have ended. It can be repeated: where the parts are committed, it returns
    the present state.

    Args:
        path: The dataset's directory, as the writers got it.
        name: The dataset's name; by default the last part of the directory.
        split: The split.
        overwrite: Whether to replace the split that is there, as for `Writer`.
        keep_replaced: Whether to keep what is replaced, as for `Writer`.

    Returns:
        The committed dataset.

    Raises:
        DataLossError: A part is not finished, or a file of one is gone.
        InputError: No writer has written a part of the split.
        JobChangedError: Writers with different options have, or a writer writes a
            finished part again.
        StorageChangedError: Another command has changed the split since they began.
    """
    output = path_text(path, "output")
    output = output.rstrip("/") or output
    name = layout.check_name(layout.base_name(output) if name is None else name)
    layout.check_split(split)
    manifest, _ = read_output(output, name, replaces=overwrite)
    there = None if manifest is None else manifest.splits.get(split)
    base = 0 if there is None else there.edition
    begun = [
        job
        for job in described_jobs(output, name, split, manifest)
        if job.write.base == base and (overwrite or not job.write.replaces)
    ]
    if len(begun) > 1:
        options = some_of(f"write {job.write.id}" for job in begun)
        raise JobChangedError(
            "writers with different options have written parts of the split",
            where=f"{output}, split {split}",
            got=options,
            cure="delete them with gristmill clean --unfinished, then write the parts "
            "with the same options",
        )
    if begun:
        return commit_job(begun[0], keep_replaced=keep_replaced)
    if manifest is None or there is None or there.writer_parts is None or overwrite:
        raise InputError(
            "there are no parts to commit",
            where=f"{output}, split {split}",
            expected="the parts that `Writer(path, part=..., parts=...)` has written",
            cure="check path, name and split; write the parts first",
        )
    # What a commit that was killed has left to delete.
    key = layout.write_key(split, there.parts[0].write)
    tidy_split(output, manifest, split)
    with contextlib.suppress(GristmillError):
        delete_strays(output, manifest, key)
        _delete_description(output, name, key)
    return manifest


def _delete_description(output: str, name: str, key: str) -> None:
    path = layout.join(output, layout.job_path(name, key))
    storage_for(output).delete(path)


def commit_job(job: PartsJob, *, keep_replaced: bool) -> Manifest:
    """Commits all parts of a job; raises as `commit_parts` does."""
    states = PartState.load_all(job, range(job.parts))
    table = _joined(job, states)
    check_current = functools.partial(check_same_parts, job, states)
    output, name, key = job.write.output, job.write.name, job.write.key
    source = job.source
    if job.sources is not None:
        path = layout.inputs_path(name, key)
        data, source["file_list_digest"] = encode_sources(job.sources)
        storage_for(output).write(layout.join(output, path), data)
        source["file_list"] = path
    made = write_table(
        output,
        name,
        key,
        table,
        check_current=check_current,
        writer_options=job.writer.described,
        source=source,
    )
    made = dataclasses.replace(made, features=job.features)
    splits = {job.write.split: made}
    check = functools.partial(check_files, output, splits, check_current=check_current)
    manifest = commit_dataset(
        output,
        name,
        {key: made},
        based_on={key: job.write.base},
        replaces=[key] if job.write.replaces else (),
        keep_replaced=keep_replaced,
        check=check,
    )
    with contextlib.suppress(GristmillError):  # The split is committed.
        _delete_description(output, name, key)
    return manifest


def _joined(job: PartsJob, states: list[PartState | None]) -> ShardTable:
    """Returns the table of all shards, in their order.

    Raises:
        DataLossError: A part is not finished.
    """
    tables = [None if state is None else state.table for state in states]
    missing = [part for part, table in enumerate(tables) if table is None]
    if missing:
        raise DataLossError(
            f"{len(missing):,} of {job.parts:,} parts are not finished",
            where=job.write.where,
            got=f"no table of part {some_of(map(str, missing))}",
            cure="write these parts, then commit again: finished parts are kept",
        )
    found = [table for table in tables if table is not None]
    column = np.repeat(np.arange(job.parts), [len(table) for table in found])
    joined = ShardTable.joined(found)
    # A part without records has an empty shard; the split has one if it has no other.
    rows = np.flatnonzero(joined.records) if joined.records.any() else np.zeros(1, int)
    joined.columns[_PART] = column
    return joined.taken(rows)


def part_column(table: ShardTable, *, where: str) -> npt.NDArray[np.int64]:
    """Returns the part of each shard, int64 [shards], for a split that has parts.

    Args:
        table: The table of its shards.
        where: The table's path, for messages.

    Raises:
        InvalidDatasetError: It does not have them.
    """
    column = table.columns.get(_PART)
    if column is None or column.shape != (len(table),) or column.dtype != np.int64:
        raise InvalidDatasetError(
            "table of shards does not say which part each is of",
            where=where,
            cure="restore it from a copy, or write the split again with overwrite=True",
        )
    return column
