"""The job of an index: files in place get an index each, and a table."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.footer import walk_file
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.write import Write, next_write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.shard_collector import ShardCollector
from gristmill.dataset.metadata.shard_index import encode_index
from gristmill.dataset.metadata.shard_report import INDEXED_JOB, ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.shards.shard_reader import stored_footer
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.indexing.plan_index import IndexTask, plan_index
from gristmill.transforms.jobs.job import Begun
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


_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexJob:
    """The job; attributes are as for `plan_index` and `commit_index`."""

    files: tuple[str, ...]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False

    step = staticmethod(index_shard)

    def begin(self) -> Begun[IndexTask]:
        """Finds the files."""
        tasks = plan_index(
            self.files, name=self.name, split=self.split, overwrite=self.overwrite
        )
        files, size = len(tasks), tasks.file_bytes
        _log.info("%s: %d files listed, %d bytes", tasks.dataset, files, size)
        return Begun(
            label="indexing",
            noun="files",
            tasks=tasks,
            parts=files,
            stored_bytes=size,
            sources=self.files,
            sink=tasks.dataset,
        )

    def commit(self, indexed: Gathered) -> Manifest:
        """Makes the directory a dataset."""
        return commit_index(
            indexed, inputs=self.files, keep_replaced=self.keep_replaced
        )


def commit_index(
    indexed: Gathered, *, inputs: Sequence[str], keep_replaced: bool = False
) -> Manifest:
    """Makes the directory a dataset.

    A split that is there with the very same files stays as it is.

    Args:
        indexed: All files that were planned.
        inputs: The patterns, for the record.
        keep_replaced: Whether splits that are replaced are kept, to go back to.

    Raises:
        DataLossError: An index is not there any more.
        JobChangedError: Another command has changed one of the splits meanwhile.
    """
    if not indexed.rows:
        raise ValueError("no file was indexed")
    task: IndexTask = next(iter(indexed.notes["task"].values()))
    dataset, name = task.dataset, task.name
    before = read_manifest(dataset)
    made: dict[str, Split] = {}
    writes: dict[str, Write] = {}
    for split in sorted(indexed.rows):
        reports = indexed.rows[split]
        writer_options = {o for s, o in indexed.notes["writer_options"] if s == split}
        old = None if before is None else before.splits.get(split)
        table, options = reports.table(), " | ".join(sorted(writer_options))
        if old is not None and _is_made_of(old, table, options, inputs):
            made[layout.write_key(split, old.write)] = old
            continue
        text = json.dumps([table.shards_digest, options, list(inputs)])
        write = next_write(
            *(dataset, name, split, hashlib.sha256(text.encode()).hexdigest()),
            manifest=before,
            replaces=True,
            plain=False,
        )
        writes[write.key] = write
        made[write.key] = write_table(
            dataset,
            name,
            write.key,
            table,
            check_current=write.check_current,
            writer_options=options,
            source={"indexed": list(inputs), "job": write.id},
        )
    manifest = commit_dataset(
        dataset,
        name,
        {key: made[key] for key in writes},
        based_on={key: write.base for key, write in writes.items()},
        replaces=[key for key, write in writes.items() if write.replaces],
        keep_replaced=keep_replaced,
        check=functools.partial(check_files, dataset, made),
    )
    parts = [
        f"split {key}: {split.records:,} records in {split.shards:,} shards"
        for key, split in made.items()
    ]
    _log.info("%s: committed; %s", dataset, "; ".join(parts))
    return manifest


def _is_made_of(
    split: Split, table: ShardTable, writer_options: str, inputs: Sequence[str]
) -> bool:
    """Returns whether a split is the result of an index of the same files."""
    encoded = table.encode()
    return (
        len(split.parts) == 1
        and (split.table_bytes, split.table_crc32c)
        == (len(encoded), google_crc32c.value(encoded))
        and split.writer_options == writer_options
        and split.source.get("indexed") == list(inputs)
    )
