"""Committing the parts of a split together, once all are finished."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np

from gristmill.dataset.base.errors import (
    DataLossError,
    InputError,
    JobChangedError,
    StorageError,
    some_of,
)
from gristmill.dataset.commit.claim import Claim
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.garbage import tidy_split
from gristmill.dataset.commit.write_marker import BegunWrite
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.parts import PART_COLUMN, part_count
from gristmill.dataset.metadata.shard_index import parse_index, with_report
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo, Link, for_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.dataset.writer.parts_job import PartsJob
from gristmill.dataset.writer.take_output import check_free

_INDEXES_AT_ONCE = 16


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
        JobChangedError: The output holds the split already, or another writer has taken
            it over.
    """
    output = path_text(path, "output")
    output = output.rstrip("/") or output
    name = layout.check_name(layout.base_name(output) if name is None else name)
    layout.check_split(split)
    claim = Claim.next(output, name, split, overwrite=overwrite)
    begun, _ = BegunWrite.load(output, name, claim.key)
    if begun is not None and begun.parts:
        job = PartsJob.described(claim, begun)
        return commit_job(job, overwrite=overwrite, keep_replaced=keep_replaced)
    manifest, there = claim.manifest, claim.there
    if manifest is None or there is None or part_count(there) is None or overwrite:
        raise InputError(
            "there are no parts to commit",
            where=f"{output}, split {split}",
            expected="the parts that `Writer(path, part=..., parts=...)` has written",
            cure="check path, name and split; write the parts first",
        )
    tidy_split(output, manifest, split)
    return manifest


def commit_job(job: PartsJob, *, overwrite: bool, keep_replaced: bool) -> Manifest:
    """Commits all parts of a job; raises as `commit_parts` does."""
    storage = storage_for(job.output)
    # Versions come first: what another one writes after the check is not written over.
    claim = dataclasses.replace(
        Claim.next(job.output, job.name, job.split, overwrite=overwrite),
        edition=job.edition,
    )
    named = {info.path: info for info in claim.files()}
    parts = _part_tables(job)
    marker = _check_claim(job, overwrite=overwrite, marker=job.taken)

    def check() -> None:
        _check_claim(job, overwrite=overwrite, marker=marker)
        tables = storage.stat_all([*parts])
        if [info.version if info else "" for info in tables] != [*parts.values()]:
            raise JobChangedError(
                "a writer writes a finished part again",
                where=job.where,
                cure="commit the parts once all writers have ended",
            )

    check()
    table, sources = _joined(job)
    try:
        links = _links(job, table, sources, named)
        # Of an earlier attempt, before a part was written again.
        own = {*table.paths, *map(layout.index_path, table.paths)}
        storage.delete_all(
            info
            for path, info in named.items()
            if path.removeprefix(layout.join(job.output, "")) not in own
        )
        _write_indexes(job, table, sources, named)
        storage.link_all(links)
    except (DataLossError, StorageError):
        check()  # Another writer may have deleted what is missing.
        raise
    made = write_table(
        job.output,
        job.name,
        job.key,
        table,
        check_current=check,
        writer_options=job.writer.described,
        source=job.source,
    )
    made = dataclasses.replace(made, features=job.features)
    manifest = commit_dataset(
        job.output,
        job.name,
        {job.key: made},
        replaces=[job.key],
        keep_replaced=keep_replaced,
        check=check,
    )
    with contextlib.suppress(StorageError):  # The split is committed.
        storage.delete_tree(job.directory)
    return manifest


def _check_claim(job: PartsJob, *, overwrite: bool, marker: str | None = None) -> str:
    """Raises JobChangedError if a job does not own its output.

    Args:
        job: The job.
        overwrite: Whether it replaces the split.
        marker: The version of its marker before, None for any. Returned is that now.
    """
    claim = Claim.next(job.output, job.name, job.split, overwrite=overwrite)
    if not overwrite:
        begun, _ = BegunWrite.load(job.output, job.name, job.key)
        check_free(job, claim, begun)
    return job.marker.check_current(claim.there, version=marker)


def _part_tables(job: PartsJob) -> dict[str, str]:
    """Returns the versions of the tables of all parts, by path; "" for none."""
    paths = [job.part_table(part) for part in range(job.parts)]
    found = storage_for(job.output).stat_all(paths)
    versions = (info.version if info else "" for info in found)
    return dict(zip(paths, versions, strict=True))


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
        layout.shard_name(job.name, job.key, shard, len(rows))
        for shard in range(len(rows))
    ]
    return dataclasses.replace(table, paths=names), sources


def _write_indexes(
    job: PartsJob, table: ShardTable, sources: list[str], named: Mapping[str, FileInfo]
) -> None:
    """Writes the index of each shard, with a report that has its final name."""
    storage = storage_for(job.output)

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
        report = dataclasses.replace(report, path=path, shard_index=shard)
        place = layout.join(job.output, layout.index_path(path))
        data = with_report(content.data, report, path=old)
        version = named[place].version if place in named else ""
        storage.write(place, data, replaces=version)

    for_all(write, range(len(table)), at_once=_INDEXES_AT_ONCE)


def _links(
    job: PartsJob, table: ShardTable, sources: list[str], named: Mapping[str, FileInfo]
) -> list[Link]:
    """Returns the shards and their names, if they are as they were written.

    They keep their names in their parts as well. So all of this can be repeated, also
    after a part was written again.
    """
    storage = storage_for(job.output)
    staged = {info.path: info for info in storage.list_tree(job.directory)}
    links = []
    rows = zip(
        table.paths,
        sources,
        table.file_bytes.tolist(),
        table.file_crc32cs.tolist(),
        strict=True,
    )
    for path, source, size, crc32c in rows:
        info = staged.get(source)
        if info is None:
            raise _lost(job, f"{source} is missing")
        if (info.size_bytes, info.crc32c or crc32c) != (size, crc32c):
            raise _lost(job, f"{source} is not the file that was written")
        place = layout.join(job.output, path)
        version = named[place].version if place in named else ""
        links.append(Link(info, place, version))
    return links


def _lost(job: PartsJob, got: str) -> DataLossError:
    return DataLossError(
        "a file of a finished part is not there any more",
        where=job.where,
        got=got,
        cure="write the part again with overwrite=True",
    )
