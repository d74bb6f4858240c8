"""Writing shards, and the columns beside them, again without some of their records."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import walk_chunks
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, StoredShard
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest, words_of
from gristmill.dataset.base.errors import (
    CorruptShardError,
    JobChangedError,
)
from gristmill.dataset.commit.editions import newest_edition
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.metadata.shard_files import (
    ShardFacts,
    ShardPlace,
    check_shard,
    read_index,
    stored_footer,
)
from gristmill.dataset.metadata.shard_index import ShardIndex
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector
from gristmill.dataset.storage.lookup import storage_for

Int64 = npt.NDArray[np.int64]


class CutTask(NamedTuple):
    """A shard to write again.

    Attributes:
        write: The write of the new edition.
        shard: Number of the shard in the edition.
        shards: Number of shards in the edition.
        path: The shard before the removal, relative to the dataset.
        file_bytes: Its size.
        digest: The digest of its records.
        records: int64 [removed], ascending numbers of the records to remove.
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
        task: The shard.
        report: Report of the new shard.
        removed: uint64 [removed], `digest.words_of` the removed records.
        resumed: Whether it existed already.
    """

    task: CutTask
    report: ShardReport
    removed: npt.NDArray[np.uint64]
    resumed: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Adds the report to the new edition, and notes the removed records."""
        write = self.task.write.id
        gathered.rows.setdefault(write, ShardCollector()).add(self.report)
        gathered.notes["removed"][write, self.task.shard] = self.removed

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        report, said = self.report, f"{self.report.written.records} records left"
        counts = report.counts(resumed=self.resumed)
        return Done(report.path, said, self.task.file_bytes, report.written, counts)


def _opened(task: CutTask) -> tuple[StoredShard, ShardIndex]:
    """Opens the shard before the removal, with its index."""
    dataset = task.write.output
    path = layout.join(dataset, task.path)
    index_path = layout.join(dataset, layout.index_path(task.path))
    described = ShardFacts(task.digest.records, task.file_bytes)
    index = read_index(index_path, described)
    footer = stored_footer(path, task.file_bytes)
    check_shard(described, ShardFacts(footer.records), where=path)

    def opened(begin: int, end: int) -> AbstractContextManager[BinaryIO]:
        return storage_for(dataset).open(path, offset=begin, end=end)

    crc32cs = index.crc32cs
    return StoredShard(path=path, footer=footer, crc32cs=crc32cs, open=opened), index


def _lengths_of(stored: StoredShard, records: Int64) -> Int64:
    """Returns the lengths of records, given in ascending order: int64 [records]."""
    footer, found = stored.footer, [np.empty(0, np.int64)]
    ends = np.cumsum(footer.chunk_records)
    chunks = np.searchsorted(ends, records, side="right")
    for chunk in np.unique(chunks).tolist():
        begin, end = footer.chunk_offsets[[chunk, chunk + 1]].tolist()
        own = records[chunks == chunk]
        with stored.open(begin, end) as file:
            chunks_of = {"first_chunk": chunk, "last_chunk": chunk + 1}
            for part in walk_chunks(file, footer, path=stored.path, **chunks_of):
                sizes = part.encoded(hashed=True).lengths()
                found.append(sizes[own - part.first_record])
    return np.concatenate(found)


def cut_shard(task: CutTask) -> CutShard:
    """Writes a shard without its removed records, unless an earlier run has.

    Memory: see `ShardWriter`.

    Raises:
        CorruptShardError: The shard is damaged.
        JobChangedError: Another command has taken the place of this one.
        StorageError: Reading or writing failed.
        DataLossError: The new shard does not hold the records that were copied.
    """
    check_current(task.write)
    write, records = task.write, task.records
    path = layout.shard_name(write.name, write.key, task.shard, task.shards)
    place = ShardPlace.at(write.output, path)
    stored, index = _opened(task)
    report = place.finished(write.id)
    if report is not None:
        removed = words_of(index.crc32cs[records], _lengths_of(stored, records))
        _check(task, report.written, RecordsDigest.of_words(removed))
        return CutShard(task, report, removed, resumed=True)
    taken = np.ones(len(index.crc32cs), np.bool_)
    taken[records] = False
    with write.temporary() as local:
        with ShardWriter(local, options=stored.footer.options) as copier:
            _, lengths = copier.copy(stored, 0, taken)
            written = copier.finish()
        removed = words_of(index.crc32cs[records], lengths[records])
        _check(task, written.digest, RecordsDigest.of_words(removed))
        report = dataclasses.replace(
            index.report(),
            path=path,
            shard_index=task.shard,
            job=write.id,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            written=written.digest,
        )
        check_current(write)
        if report.skipped_regions:
            _copy_errors(task, place)
        places = index.places()
        report = place.publish(
            *(local, written, report),
            places=None if places is None else places.taken(taken),
        )
        return CutShard(task, report, removed)


def _copy_errors(task: CutTask, place: ShardPlace) -> None:
    """Copies the list of damage that was skipped in a shard's inputs."""
    dataset, new = task.write.output, layout.errors_path(place.path)
    storage, old = storage_for(dataset), layout.errors_path(task.path)
    if (content := storage.load(layout.join(dataset, old))) is not None:
        path = layout.join(dataset, new)
        storage.write(path, content.data, replaces=place.version(new))


def _check(task: CutTask, written: RecordsDigest, gone: RecordsDigest) -> None:
    """Checks that the new shard and the removed records make up the old shard."""
    got = written + gone
    if got != task.digest:
        raise CorruptShardError(
            "the records of a shard are not those that the table of shards describes",
            where=layout.join(task.write.output, task.path),
            expected=task.digest.summary,
            got=got.summary,
            cure="restore it and its index from a copy, or convert the dataset again",
        )


def check_current(write: Write) -> None:
    """Raises JobChangedError if a write was given up, or the split has changed."""
    write.check_current()
    now = open_manifest(write.output).splits.get(write.split)
    if now is None or now.edition != write.base:
        raise JobChangedError(
            "another command has finished this removal, or changed the split",
            where=write.where,
            expected=f"edition {write.base:,}",
            got=newest_edition(write.output, write.split),
            cure="run this command again, one at a time: it says if all is done",
        )
