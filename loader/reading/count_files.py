"""Counts the records of plain files by their footers, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from gristmill.loader.cache.footers import FooterCache
from gristmill.loader.reading.open_shard import open_shard
from gristmill.loader.reading.read_limits import READ_LIMITS, ReadLimits
from gristmill.loader.reading.shard_file import ShardFile
from gristmill.loader.reading.shard_list import most_open

_THREADS = 32


class CountedFile(NamedTuple):
    """A file whose records were counted.

    Attributes:
        records: Number of its records.
        file_bytes: Its size.
        opened: The open file, None if there are more than may be open at a time.
    """

    records: int
    file_bytes: int
    opened: ShardFile | None


def count_files(
    paths: Sequence[str],
    *,
    footers: FooterCache | None,
    limits: ReadLimits = READ_LIMITS,
) -> list[CountedFile]:
    """Counts the records of ArrayRecord files, and keeps them open.

    Args:
        paths: The files.
        footers: Keeps the indexes that are made of their footers.
        limits: How many to keep open.

    Raises:
        CorruptShardError: A file is truncated, damaged, or no ArrayRecord file.
        StorageError: A file does not exist or cannot be read.
    """
    if not paths:
        return []
    most = most_open(len(paths), limits)

    def count(number: int) -> CountedFile:
        opened = open_shard(paths[number], footers=footers)
        index = opened.index
        kept = opened if number < most else None
        return CountedFile(index.records, index.file_bytes, kept)

    with ThreadPoolExecutor(min(len(paths), _THREADS)) as pool:
        return list(pool.map(count, range(len(paths))))
