"""Comparing the table of a split with the files that are there, without opening one."""

from __future__ import annotations

import posixpath

from gristmill.dataset.findings import UNREADABLE, Finding, finding_of, wrong_size
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for


class Listings:
    """The files of a dataset as the storage lists them: each directory once."""

    def __init__(self, dataset: str):
        self._dataset = dataset
        self._storage = storage_for(dataset)
        self._directories: dict[str, dict[str, FileInfo]] = {}

    def of(self, directory: str) -> dict[str, FileInfo]:
        """Returns the files of a directory of the dataset, by name."""
        if directory not in self._directories:
            listing = self._storage.list(layout.join(self._dataset, directory))
            self._directories[directory] = {
                posixpath.basename(info.path): info for info in listing
            }
        return self._directories[directory]

    def find(self, path: str) -> FileInfo | None:
        """Returns a file, None if it is not there."""
        directory, name = posixpath.split(path)
        return self.of(directory).get(name)


def check_split(dataset: str, split: Split) -> list[Finding]:
    """Compares the table of one split with listings: opens no shard, and no manifest.

    The dataset need not be committed yet.

    Returns:
        Shards and indexes that are missing or not the ones that were written, or why
        the table cannot be read.
    """
    try:
        table = read_checked_table(dataset, split)
    except UNREADABLE as error:
        return [finding_of(split.table, error)]
    # One listing after the other: of a million files each takes half a gigabyte.
    findings = compare_shards(table, Listings(dataset))
    return findings + compare_indexes(table, Listings(dataset))


def read_checked_table(dataset: str, split: Split) -> ShardTable:
    """Reads the table of a split; raises InvalidDatasetError if a path is unusable."""
    table = read_table(dataset, split)
    table.check_paths(where=layout.join(dataset, split.table))
    return table


def compare_shards(table: ShardTable, listings: Listings) -> list[Finding]:
    """Compares size and checksum of every shard with what the storage lists."""
    findings: list[Finding] = []
    for shard, path in enumerate(table.paths):
        file_bytes = int(table.file_bytes[shard])
        file_crc32c = int(table.file_crc32cs[shard])
        found = listings.find(path)
        if found is None:
            findings.append(Finding(path, "shard is missing"))
        elif found.size_bytes != file_bytes:
            findings.append(wrong_size(path, file_bytes, found.size_bytes))
        # Buckets keep a checksum of every object; a local disk has none.
        elif found.crc32c not in (None, file_crc32c):
            findings.append(
                Finding(
                    path,
                    "shard is not the file that was written",
                    expected=f"crc32c {file_crc32c:#010x}",
                    got=f"{found.crc32c:#010x}",
                )
            )
    return findings


def compare_indexes(table: ShardTable, listings: Listings) -> list[Finding]:
    """Lists the indexes of shards that are missing."""
    return [
        Finding(path, "shard index is missing")
        for path in map(layout.index_path, table.paths)
        if listings.find(path) is None
    ]
