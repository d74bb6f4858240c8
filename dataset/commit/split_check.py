"""A comparison of a split's table with the existing files, without opening one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
    StorageMissingError,
)
from gristmill.dataset.base.findings import Finding, Findings, finding_of, wrong_size
from gristmill.dataset.commit.listings import Listings
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split


def check_split(dataset: str, split: Split) -> Findings:
    """Compares the table of one split with listings: opens no shard, and no manifest.

    The dataset need not be committed yet.

    Returns:
        Shards and indexes that are missing or not the ones that were written, or why
        the table cannot be read.

    Raises:
        StorageError: The storage refuses to say what is there.
    """
    findings = Findings()
    try:
        table = read_checked_table(dataset, split)
    except (InvalidDatasetError, FormatVersionError, StorageMissingError) as error:
        return findings.add([finding_of(split.table, error)])
    prefix = _common_prefix(list(table.paths))
    findings.add(compare_shards(table, Listings(dataset, prefix)))
    # One listing after the other.
    return findings.add(compare_indexes(table, Listings(dataset, prefix)))


def _common_prefix(paths: list[str]) -> str:
    """Returns the common prefix of paths: an edition may have a few of a million."""
    if not paths or any("/" in path for path in paths):
        return ""  # A prefix is of names in one directory.
    first, last = min(paths), max(paths)
    return "".join(
        a
        for a, _ in itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(first, last, strict=False)
        )
    )


def read_checked_table(dataset: str, split: Split) -> ShardTable:
    """Reads the table of a split; raises InvalidDatasetError if a path is unusable."""
    table = read_table(dataset, split)
    table.check_paths(where=layout.join(dataset, split.table))
    return table


def compare_shards(table: ShardTable, listings: Listings) -> Iterator[Finding]:
    """Compares size and checksum of every shard with what the storage lists."""
    return _compare("shard", table, listings, "file", str)


def compare_indexes(table: ShardTable, listings: Listings) -> Iterator[Finding]:
    """Finds the indexes of shards that are missing, and segment indexes of others."""
    sizes, _ = listings.find(map(layout.index_path, table.paths))
    for shard in np.flatnonzero(sizes < 0).tolist():
        path = layout.index_path(table.paths[shard])
        yield Finding(path, "shard index is missing")
    if table.is_packed:
        yield from _compare(
            "segment index", table, listings, "segments", layout.segments_path
        )


def _compare(
    what: str,
    table: ShardTable,
    listings: Listings,
    column: str,
    path_of: Callable[[str], str],
) -> Iterator[Finding]:
    """Compares files, one of each shard, with columns of the table."""
    expected_sizes = table.columns[f"{column}_bytes"]
    expected_crc32cs = table.columns[f"{column}_crc32c"].astype(np.int64)
    sizes, crc32cs = listings.find(map(path_of, table.paths))
    wrong = sizes != expected_sizes
    # Buckets keep a checksum of every object; a local disk has none.
    other = (crc32cs >= 0) & (crc32cs != expected_crc32cs)
    for shard in np.flatnonzero(wrong | other).tolist():
        path, size = path_of(table.paths[shard]), int(sizes[shard])
        if size < 0:
            yield Finding(path, f"{what} is missing")
        elif wrong[shard]:
            yield wrong_size(path, int(expected_sizes[shard]), size, what=what)
        else:
            yield Finding(
                path,
                f"{what} is not the file that was written",
                expected=f"crc32c {expected_crc32cs[shard]:#010x}",
                got=f"{crc32cs[shard]:#010x}",
            )
