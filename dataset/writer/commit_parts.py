"""Committing the parts of a split together, once all are finished."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from gristmill.dataset.commit.aside import Aside
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.commit.leftovers import delete_leftovers
from gristmill.dataset.commit.staged_parts import staged_shards
from gristmill.dataset.errors import DataLossError, InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.provenance import PART_COLUMN, part_count
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.metadata.shard_index import parse_index, with_report
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo, for_all
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.dataset.writer.found_output import begun_job, check_free
from gristmill.dataset.writer.parts_job import PartsJob

_INDEXES_AT_ONCE = 16


def commit_parts(
    path: StrPath,
    *,
    name: str | None = None,
    split: str = "train",
    overwrite: bool = False,
) -> Manifest:
    """Commits the parts that several writers have finished as one split.

    The records of part 0 come first, then those of part 1, and so on. Call it once all
    writers have ended. It can be repeated: where the parts are committed, it returns
    what is there.

    Args:
        path: The dataset's directory, as the writers got it.
        name: The dataset's name; by default the last part of the directory.
        split: The split.
        overwrite: Whether to replace the split that is there, as for `Writer`.

    Returns:
        The committed dataset.

    Raises:
        DataLossError: A part is not finished, or a file of one is gone.
        InputError: No writer has written a part of the split.
        JobChangedError: The output holds the split already, or another writer has taken
            it over.
    """
    output = path_text(path, "output")
    output = output.rstrip("/") or output
    name = layout.check_name(layout.base_name(output) if name is None else name)
    layout.check_split(split)
    finish_exchange(output, or_give_up=overwrite)
    begun = begun_job(output, name, split)
    if begun is not None:
        job = PartsJob.described(output, begun.options, where=begun.where)
        return commit_job(job, overwrite=overwrite)
    manifest = read_manifest(output)
    there = None if manifest is None else manifest.splits.get(split)
    if manifest is None or there is None or part_count(there) is None or overwrite:
        raise InputError(
            "there are no parts to commit",
            where=f"{output}, split {split}",
            expected="the parts that `Writer(path, part=..., parts=...)` has written",
            cure="check path, name and split; write the parts first",
        )
    delete_leftovers(output, name, [split])
    return manifest


def commit_job(job: PartsJob, *, overwrite: bool) -> Manifest:
    """Commits all parts of a job; raises as `commit_parts` does."""
    aside = Aside(**job.owner)
    table, sources = _joined(job)
    place = layout.join(aside.path, layout.table_path(job.name, job.split))
    seen = version_of(place)
    aside.check()
    _write_indexes(job, table, sources)
    split = write_table(
        aside.path,
        job.name,
        job.split,
        table,
        replaces=seen,
        writer_options=job.writer.described,
        source=job.source,
    )
    split = dataclasses.replace(split, features=job.features)

    def check() -> None:
        aside.check()
        if not overwrite:
            check_free(job)
        _check_staged(job, table, staged_shards(aside.path, split, table))

    return commit_dataset(
        job.output,
        job.name,
        {job.split: split},
        aside=[job.split],
        check=check,
    )


def _joined(job: PartsJob) -> tuple[ShardTable, list[str]]:
    """Returns the table of all shards, and where the shards are, both in their order.

    Raises:
        DataLossError: A part is not finished.
    """
    paths = [job.part_table(part) for part in range(job.parts)]
    found = storage_for(job.output).load_all(paths)
    missing = [part for part, content in enumerate(found) if content is None]
    if missing:
        raise DataLossError(
            f"{len(missing):,} of {job.parts:,} parts are not finished",
            where=job.where,
            got=f"no table of part {some_of(missing)}",
            cure="write these parts, then commit again: finished parts are kept",
        )
    tables = [
        ShardTable.decode(content.data, where=path)
        for path, content in zip(paths, found, strict=True)
        if content is not None
    ]
    column = np.repeat(np.arange(job.parts), [len(table) for table in tables])
    table = ShardTable.joined(tables)
    # A part without records has an empty shard; the split has one if it has no other.
    rows = np.flatnonzero(table.records) if table.records.any() else np.zeros(1, int)
    table.columns[PART_COLUMN] = column
    table = table.taken(rows)
    parts = table.columns[PART_COLUMN].tolist()
    sources = [
        layout.join(job.part_dir(part), path)
        for part, path in zip(parts, table.paths, strict=True)
    ]
    names = [
        layout.shard_name(job.name, job.split, shard, len(rows))
        for shard in range(len(rows))
    ]
    return dataclasses.replace(table, paths=names), sources


def _write_indexes(job: PartsJob, table: ShardTable, sources: list[str]) -> None:
    """Writes the index of each shard, with a report that has its final name."""
    storage, aside = storage_for(job.output), job.aside
    listed = storage.list(layout.join(aside, layout.INDEX_DIR))
    versions = {info.path: info.version for info in listed}

    def write(shard: int) -> None:
        directory, _, file = sources[shard].rpartition("/")
        old = layout.join(directory, layout.index_path(file))
        content = storage.load(old)
        if content is None:
            raise _lost(job, f"{old} is missing")
        report = parse_index(content.data, path=old).report()
        if report.file_crc32c != table.file_crc32cs[shard]:
            raise _lost(job, f"{old} is of another shard than the table of its part")
        path = table.paths[shard]
        named = dataclasses.replace(report, path=path, shard_index=shard)
        place = layout.join(aside, layout.index_path(path))
        data = with_report(content.data, named, path=old)
        storage.write(place, data, replaces=versions.get(place, ""))

    for_all(write, range(len(table)), at_once=_INDEXES_AT_ONCE)


def _check_staged(
    job: PartsJob, table: ShardTable, staged: Mapping[str, FileInfo]
) -> None:
    """Checks that the shards are those of the table, as far as a listing shows."""
    sizes, crc32cs = table.file_bytes.tolist(), table.file_crc32cs.tolist()
    for path, size, crc32c in zip(table.paths, sizes, crc32cs, strict=True):
        info = staged.get(path)
        if info is None:
            raise _lost(job, f"what is to become {path} is missing")
        if (info.size_bytes, info.crc32c or crc32c) != (size, crc32c):
            raise _lost(job, f"{info.path} is not the file that was written")


def _lost(job: PartsJob, got: str) -> DataLossError:
    return DataLossError(
        "a file of a finished part is not there any more",
        where=job.where,
        got=got,
        cure="write the part again with overwrite=True",
    )
