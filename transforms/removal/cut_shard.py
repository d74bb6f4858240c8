"""Writing shards, and the columns beside them, again without some of their records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import walk_chunks
from gristmill.dataset.arrayrecord.shard_copier import ShardCopier, StoredShard
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest, words_of
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.columns.column_file import Values
from gristmill.dataset.commit.attached_split import made_column
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    StoredColumn,
    column_entries,
    read_column_table,
    read_values,
)
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_collector import ShardCollector
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.shards.publish_shard import ShardPlace
from gristmill.dataset.shards.shard_reader import (
    ShardFacts,
    check_shard,
    read_index,
    stored_footer,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.removal.plan_removal import (
    EditionRemoval,
    check_current,
)

Int64 = npt.NDArray[np.int64]


class ShardToCut(StoredShard):
    """A shard to copy from, with an index."""

    crc32cs: npt.NDArray[np.uint32]


def open_stored(
    dataset: str, shard: str, file_bytes: int, records: int
) -> tuple[ShardToCut, ShardIndex]:
    """Opens a shard as it is, with its index.

    Args:
        dataset: The dataset's directory.
        shard: The shard, relative to it.
        file_bytes: Its size.
        records: How many it has.

    Raises:
        CorruptShardError: It is not the shard that the dataset describes.
        InvalidDatasetError: Its index is damaged.
        StorageError: It cannot be read.
    """
    storage = storage_for(dataset)
    path = layout.join(dataset, shard)
    index_path = layout.join(dataset, layout.index_path(shard))
    described = ShardFacts(records, file_bytes)
    index = read_index(index_path, described)
    footer = stored_footer(path, file_bytes)
    check_shard(described, ShardFacts(footer.records), where=path)

    def opened(begin: int, end: int) -> AbstractContextManager[BinaryIO]:
        return storage.open(path, offset=begin, end=end)

    crc32cs = index.crc32cs
    return ShardToCut(path=path, footer=footer, crc32cs=crc32cs, open=opened), index


def lengths_of(stored: ShardToCut, records: Int64) -> Int64:
    """Returns the lengths of some records of a shard, rising: int64 [records]."""
    footer, found = stored.footer, [np.empty(0, np.int64)]
    ends = np.cumsum(footer.chunk_records)
    chunks = np.searchsorted(ends, records, side="right")
    for chunk in np.unique(chunks).tolist():
        begin, end = footer.chunk_offsets[[chunk, chunk + 1]].tolist()
        own = records[chunks == chunk]
        with stored.open(begin, end) as file:
            for part in walk_chunks(
                file,
                footer,
                path=stored.path,
                first_chunk=chunk,
                last_chunk=chunk + 1,
            ):
                sizes = part.encoded(hashed=True).measure()
                found.append(sizes[own - part.first_record])
    return np.concatenate(found)


class CutTask(NamedTuple):
    """A shard to write again.

    Attributes:
        write: The write of the new edition.
        shard: Number of the shard in the edition.
        shards: How many that has.
        path: The shard as it is, relative to the dataset.
        file_bytes: Its size.
        digest: The digest of its records.
        records: int64 [removed], numbers of the records that it loses, rising.
    """

    write: Write
    shard: int
    shards: int
    path: str
    file_bytes: int
    digest: RecordsDigest
    records: Int64


class CutShard(NamedTuple):
    """A shard that was written again.

    Attributes:
        task: Which shard.
        report: Report of the new one.
        removed: uint64 [removed], `digest.words_of` the records that it lost.
        resumed: Whether it was there already.
    """

    task: CutTask
    report: ShardReport
    removed: npt.NDArray[np.uint64]
    resumed: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Adds the report to those of the new edition, and notes what it lost."""
        write = self.task.write.id
        gathered.rows.setdefault(write, ShardCollector(write)).add(self.report)
        gathered.notes["removed"][write, self.task.shard] = self.removed

    @property
    def done(self) -> Done:
        """What was done."""
        report, left = self.report, self.report.written
        return Done(
            report.path,
            f"{left.records} records left",
            *(self.task.file_bytes, left.records, left.raw_bytes),
            report.counts(resumed=self.resumed),
        )


def cut_tasks(one: EditionRemoval, table: ShardTable) -> Iterator[CutTask]:
    """Yields a task for each shard of an edition that loses records."""
    ends = np.cumsum(table.records)
    for shard in np.unique(np.searchsorted(ends, one.records, side="right")).tolist():
        begin = int(ends[shard] - table.records[shard])
        own = slice(*np.searchsorted(one.records, [begin, ends[shard]]))
        yield CutTask(
            write=one.write,
            shard=shard,
            shards=len(table),
            path=table.paths[shard],
            file_bytes=int(table.file_bytes[shard]),
            digest=table.digest(shard),
            records=one.records[own] - begin,
        )


def cut_columns(
    one: EditionRemoval, new: ShardTable
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the columns of a new edition, for `Split.columns`; writes their files.

    Args:
        one: The edition, and the one that it takes the place of.
        new: The shards of the new one.

    Raises:
        InvalidDatasetError: A column is damaged, or belongs to other records.
    """
    if not one.base.columns:
        return {}
    before = read_table(one.write.output, one.base)
    return {
        name: made_column(one.write, name, entry, new, _left(one, entry, before))
        for name, entry in column_entries(one.base, one.write.output).items()
    }


def _left(
    one: EditionRemoval, entry: ColumnEntry, before: ShardTable
) -> Iterator[Values | StoredColumn]:
    """Yields the values that each shard has left, or its file if that stays."""
    dataset = one.write.output
    table = read_column_table(dataset, entry, before)
    cut = {task.shard: task.records for task in cut_tasks(one, before)}
    for shard in range(len(before)):
        if shard in cut:
            values = read_values(dataset, entry.kind, table, shard)
            yield np.delete(values, cut[shard], axis=0)
        else:
            yield table.file(shard)


def cut_shard(task: CutTask) -> CutShard:
    """Writes a shard without the records that are removed, unless a run before has.

    Memory: see `ShardCopier`.

    Args:
        task: Which shard.

    Raises:
        CorruptShardError: The shard is damaged.
        JobChangedError: Another command has taken the place of this one.
        StorageError: Reading or writing failed.
        DataLossError: The new shard does not hold what was copied.
    """
    check_current(task.write)
    dataset, records = task.write.output, task.records
    name, key = task.write.name, task.write.key
    path = layout.shard_name(name, key, task.shard, task.shards)
    place = ShardPlace.at(dataset, path)
    stored, index = open_stored(
        dataset, task.path, task.file_bytes, task.digest.records
    )
    report = place.finished(task.write.id)
    if report is not None:
        removed = words_of(stored.crc32cs[records], lengths_of(stored, records))
        _check(task, report.written, RecordsDigest.of_words(removed))
        return CutShard(task, report, removed, resumed=True)
    taken = np.ones(len(stored.crc32cs), np.bool_)
    taken[records] = False
    temporary = layout.temporary_dir(dataset, name, key)
    with storage_for(dataset).temporary(temporary) as local:
        with ShardCopier(local, options=stored.footer.options) as copier:
            _, lengths = copier.copy(stored, 0, taken)
            written = copier.finish()
        removed = words_of(stored.crc32cs[records], lengths[records])
        _check(task, written.digest, RecordsDigest.of_words(removed))
        report = dataclasses.replace(
            index.report(),
            path=path,
            shard_index=task.shard,
            job=task.write.id,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            written=written.digest,
        )
        check_current(task.write)
        if report.skipped_regions:
            _copy_errors(task, place)
        places = index.places()
        report = place.publish(
            *(local, written, report),
            places=None if places is None else places.taken(taken),
        )
        return CutShard(task, report, removed)


def _copy_errors(task: CutTask, place: ShardPlace) -> None:
    """Copies the list of what was left out of a shard's inputs."""
    dataset, new = task.write.output, layout.errors_path(place.path)
    storage, old = storage_for(dataset), layout.errors_path(task.path)
    if (content := storage.load(layout.join(dataset, old))) is not None:
        path = layout.join(dataset, new)
        storage.write(path, content.data, replaces=place.version(new))


def _check(task: CutTask, written: RecordsDigest, gone: RecordsDigest) -> None:
    """Checks that a new shard and what was removed are the shard as it was."""
    got = written + gone
    if got != task.digest:
        raise CorruptShardError(
            "the records of a shard are not those that the table of shards describes",
            where=layout.join(task.write.output, task.path),
            expected=task.digest.summary,
            got=got.summary,
            cure="restore it and its index from a copy, or convert the dataset again",
        )
