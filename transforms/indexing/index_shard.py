"""Indexing existing ArrayRecord files, which become a dataset in place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.arrayrecord.official_reader import (
    BATCH_BYTES,
    read_with_official_reader,
)
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.ownership import check_other_splits
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import CorruptShardError, InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.shard_index import encode_index
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.sources.input_files import find_inputs

_TFDS_NAME = re.compile(r"(?P<name>.+)-(?P<split>\w+)\.array_record-\d{5,}-of-(\d{5,})")


class IndexTask(NamedTuple):
    """One file to index.

    Attributes:
        dataset: The directory.
        name: The dataset's name.
        split: The split that the file belongs to.
        shard: Its number in the split.
        file: Its name in the directory.
        file_bytes: Its size when it was listed.
    """

    dataset: str
    name: str
    split: str
    shard: int
    file: str
    file_bytes: int


def plan_index(
    patterns: Sequence[str],
    *,
    name: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
) -> list[IndexTask]:
    """Sorts existing files into the splits of a dataset.

    Args:
        patterns: ArrayRecord files or glob patterns, all in one directory.
        name: The dataset's name; by default from the file names as TFDS writes them,
            else that of the directory.
        split: The split of all files; by default from the file names, else `train`.
        overwrite: Whether to replace splits that are there.

    Raises:
        InputError: The files cannot make a dataset.
    """
    files = find_inputs(patterns)
    directories = {os.path.dirname(path) or "." for path in files.paths}
    if len(directories) != 1:
        raise InputError(
            "the files are in several directories",
            where=", ".join(sorted(directories)[:3]),
            expected="files of one directory, which becomes the dataset",
            cure="index each directory separately",
        )
    (directory,) = directories
    names = [
        layout.check_shard(path.rpartition("/")[2], where=path) for path in files.paths
    ]
    parsed = [_TFDS_NAME.fullmatch(file) for file in names]
    found = {match["name"] for match in parsed if match}
    if name is None:
        if len(found) > 1:
            raise InputError(
                "the files are of several datasets",
                got=", ".join(sorted(found)[:3]),
                cure="index those of one dataset at a time, or give --name",
            )
        base = os.path.basename(os.path.abspath(directory)) or "dataset"
        name = found.pop() if found else base
    layout.check_name(name)
    if split is not None:
        layout.check_split(split)
    counts: dict[str, int] = {}
    stated: dict[str, int] = {}
    tasks = []
    for file, match, size in zip(names, parsed, files.sizes.tolist(), strict=True):
        own = layout.check_split(split or (match["split"] if match else "train"))
        tasks.append(IndexTask(directory, name, own, counts.get(own, 0), file, size))
        counts[own] = counts.get(own, 0) + 1
        if match and not split:
            stated[own] = int(match[3])
    for own, count in stated.items():
        if counts[own] != count:
            raise InputError(
                "not all shards of the split are there",
                where=f"{directory}, split {own}",
                expected=f"{count:,} files, as their names say",
                got=f"{counts[own]:,}",
                cure="add the missing files, or give --split to take the files as "
                "they are",
            )
    manifest = read_manifest(directory)
    there = sorted(counts.keys() & manifest.splits.keys()) if manifest else []
    if there and not overwrite:
        raise InputError(
            "the directory is a dataset with this split already",
            where=f"{directory}, split {', '.join(there)}",
            cure="look at it with gristmill inspect, or index again with --overwrite",
        )
    if manifest is not None:
        check_other_splits(
            directory, manifest, splits=counts, takes=set(names).__contains__
        )
    return tasks


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
