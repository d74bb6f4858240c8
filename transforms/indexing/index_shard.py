"""Indexing one existing ArrayRecord file."""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.walk import walk_file
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_collector import ShardCollector
from gristmill.dataset.metadata.shard_index import encode_index
from gristmill.dataset.metadata.shard_report import INDEXED_JOB, ShardReport
from gristmill.dataset.shards.open_shard import stored_footer
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.indexing.plan_index import IndexTask
from gristmill.transforms.sources.input_formats import check_formats


class IndexedShard(NamedTuple):
    """A file that has its index now.

    Attributes:
        task: Which file.
        report: What was counted.
        writer_options: How it was written.
    """

    task: IndexTask
    report: ShardReport
    writer_options: str

    def gather(self, gathered: Gathered) -> None:
        """Adds the report to those of the split, and notes how the file was written."""
        split = self.task.split
        empty = ShardCollector(INDEXED_JOB)
        gathered.rows.setdefault(split, empty).add(self.report)
        gathered.notes["task"][split] = self.task
        gathered.notes["writer_options"][split, self.writer_options] = True

    @property
    def done(self) -> Done:
        """What was done."""
        report, read = self.report, self.report.read
        return Done(
            report.path,
            f"{read.records} records indexed",
            *(self.task.file_bytes, read.records, read.raw_bytes),
            report.counts(),
        )


def index_shard(task: IndexTask) -> IndexedShard:
    """Reads a whole file, and writes its index.

    The hash of every chunk is compared, so damaged files get no index; nor do files
    that the loader could not read afterwards.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    some 20 bytes a record.

    Raises:
        CorruptShardError: The file is damaged or no ArrayRecord file.
        InputError: It is of another format.
        TransposedChunkError: It has transposed chunks.
    """
    storage = storage_for(task.dataset)
    path = layout.join(task.dataset, task.file)
    index_path = layout.join(task.dataset, layout.index_path(task.file))
    seen = version_of(index_path)
    info = storage.stat(path)
    size = 0 if info is None else info.size_bytes
    try:
        footer = stored_footer(path, size)
    except CorruptShardError:
        # Perhaps it is of another format: of many files, only some were looked at.
        check_formats([FileInfo(path, size)], wanted="arrayrecord")
        raise
    parts = [np.empty(0, np.uint32)]
    digest = RecordsDigest()
    file_crc = 0
    version = None if info is None else info.version
    with storage.open(path, version=version) as file:
        for data, chunks in walk_file(file, footer, path=path, size_bytes=size):
            file_crc = google_crc32c.extend(file_crc, data)
            if chunks is None:
                continue
            records = chunks.decode(hashed=True)
            count = len(records)
            crcs = np.fromiter(map(google_crc32c.value, records), np.uint32, count)
            lengths = np.fromiter(map(len, records), np.int64, count)
            digest += RecordsDigest.of(crcs, lengths)
            parts.append(crcs)
    decoded = int(footer.chunk_decoded_bytes.sum())
    if digest.raw_bytes != decoded:
        raise CorruptShardError(
            "the records of this ArrayRecord file are not as long as its footer says",
            where=path,
            expected=f"{decoded:,} bytes",
            got=f"{digest.raw_bytes:,}",
            cure="restore the file from a copy, or write it again",
        )
    report = ShardReport(
        path=task.file,
        shard_index=task.shard,
        job=INDEXED_JOB,
        file_bytes=size,
        file_crc32c=file_crc,
        read=digest,
        written=digest,
    )
    crc32cs = np.concatenate(parts)
    index = encode_index(footer=footer, crc32cs=crc32cs, report=report)
    storage.write(index_path, index, replaces=seen)
    return IndexedShard(task, report, footer.writer_options)
