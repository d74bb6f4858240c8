"""Counting the records of plain files: by their footers, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from gristmill.loader.cache.footers import FooterCache
from gristmill.loader.reading.shard_files import ShardFile, most_open, open_shard

_THREADS = 32


class CountedFile(NamedTuple):
    """A file that somebody has looked into.

    Attributes:
        records: How many it holds.
        file_bytes: Its size.
        opened: The file, unless there are more than may be open at a time.
    """

    records: int
    file_bytes: int
    opened: ShardFile | None


def count_files(
    paths: Sequence[str], *, footers: FooterCache | None
) -> list[CountedFile]:
    """Counts the records of ArrayRecord files, and keeps them open.

    Args:
        paths: The files.
        footers: Where to find, or keep, what their footers say.

    Raises:
        CorruptShardError: A file is truncated, damaged, or no ArrayRecord file.
        StorageError: A file is not there or cannot be read.
    """
    if not paths:
        return []
    most = most_open(len(paths))

    def count(number: int) -> CountedFile:
        opened = open_shard(paths[number], footers=footers)
        index = opened.index
        kept = opened if number < most else None
        return CountedFile(index.records, index.file_bytes, kept)

    with ThreadPoolExecutor(min(len(paths), _THREADS)) as pool:
        return list(pool.map(count, range(len(paths))))
