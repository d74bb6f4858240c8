"""Indexing existing ArrayRecord files, which become a dataset in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.arrayrecord.official_reader import (
    BATCH_BYTES,
    read_with_official_reader,
)
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import CorruptShardError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_index import encode_index
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.indexing.plan_index import IndexTask


def index_shard(task: IndexTask) -> tuple[IndexTask, ShardReport, str]:
    """Reads a whole file through the official reader, and writes its index.

    The official reader checks the hash of every chunk, so damaged files get no index.

    Args:
        task: Which file.

    Returns:
        The task, what was counted, and the options the file was written with.

    Raises:
        CorruptShardError: The file is damaged or no ArrayRecord file.
    """
    storage = storage_for(task.dataset)
    path = layout.join(task.dataset, task.file)
    index_path = layout.join(task.dataset, layout.index_path(task.file))
    seen = version_of(index_path)
    info = storage.stat(path)
    size = 0 if info is None else info.size_bytes
    footer = read_footer(
        lambda begin, end: storage.read(path, begin, end), size, path=path
    )
    file_crc = 0
    with storage.open(path) as stream:
        while block := stream.read(BATCH_BYTES):
            file_crc = google_crc32c.extend(file_crc, block)
    crc32cs = np.zeros(footer.records, np.uint32)
    lengths = np.zeros(footer.records, np.int64)
    decoded = int(footer.chunk_decoded_bytes.sum())
    begin, mean = 0, decoded // max(footer.records, 1)
    # The lengths are compared below, so that the file may be in a bucket.
    for records in read_with_official_reader(
        path, 0, footer.records, mean_bytes=mean, remote=True
    ):
        end = begin + len(records)
        crc32cs[begin:end] = [google_crc32c.value(record) for record in records]
        lengths[begin:end] = [len(record) for record in records]
        begin = end
    if int(lengths.sum()) != decoded:
        # Of a file that is truncated meanwhile, the reader returns empty records.
        raise CorruptShardError(
            "the records of this ArrayRecord file are not as long as its footer says",
            where=path,
            expected=f"{decoded:,} bytes",
            got=f"{int(lengths.sum()):,}",
            cure="restore the file from a copy, or write it again",
        )
    digest = RecordsDigest.of(crc32cs, lengths)
    report = ShardReport(
        path=task.file,
        shard_index=task.shard,
        job="indexed",
        file_bytes=size,
        file_crc32c=file_crc,
        read=digest,
        written=digest,
    )
    index = encode_index(footer=footer, crc32cs=crc32cs, report=report)
    storage.write(index_path, index, replaces=seen)
    return task, report, footer.writer_options


def commit_index(
    results: Iterable[tuple[IndexTask, ShardReport, str]], *, inputs: Sequence[str]
) -> Manifest:
    """Makes the directory a dataset.

    Args:
        results: Of every task, in any order.
        inputs: The patterns, for the record.
    """
    by_split: dict[str, list[tuple[ShardReport, str]]] = {}
    for task, report, options in results:
        by_split.setdefault(task.split, []).append((report, options))
    dataset, name = task.dataset, task.name
    splits = {}
    for split, found in by_split.items():
        found.sort(key=lambda pair: pair[0].shard_index)
        splits[split] = write_table(
            dataset,
            name,
            split,
            ShardTable.of([report for report, _ in found]),
            replaces=version_of(layout.join(dataset, layout.table_path(name, split))),
            writer_options=" | ".join(sorted({options for _, options in found})),
            source={"indexed": list(inputs)},
        )
    return commit_dataset(
        dataset, name, splits, check=lambda: check_files(dataset, splits)
    )
