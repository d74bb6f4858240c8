"""Verifying what a dataset says of itself against the files that are there.

Goes on after the first finding, since whoever repairs a dataset wants all of them.
Opens no shard: it lists those to read, which is `shard_check`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Split, open_manifest, read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.checking.findings import (
    UNREADABLE,
    Finding,
    finding_of,
    wrong_size,
)
from gristmill.transforms.conversion.output_split import shard_prefix


class VerifyTask(NamedTuple):
    """One shard to verify: its row of the table of shards.

    Attributes:
        dataset: The dataset's directory.
        path: The shard, relative to it.
        file_bytes: Size of the shard.
        file_crc32c: crc32c of the whole file.
        digest: Digest of its records.
    """

    dataset: str
    path: str
    file_bytes: int
    file_crc32c: int
    digest: RecordsDigest


class VerifyPlan(NamedTuple):
    """What the metadata of a dataset says.

    Attributes:
        findings: What is wrong: shards that are missing, too short or not the ones that
            were written, files that readers would take for shards, tables that are not
            the ones that `dataset.json` describes, totals that do not add up.
        tasks: One for every shard of all splits whose table can be read: for those of
            the others there is a finding.
    """

    findings: list[Finding]
    tasks: list[VerifyTask]


def plan_verify(dataset: str) -> VerifyPlan:
    """Checks `dataset.json`, the tables of shards, and that all files are there.

    Lists two directories and opens no shard, so it takes seconds on any dataset. In a
    bucket that proves that every shard is the file that was written: a listing there
    has the checksums of all objects, which were computed when they arrived.

    Args:
        dataset: The directory of a committed dataset.

    Raises:
        NotADatasetError: The dataset is not committed.
        InvalidDatasetError: `dataset.json` is damaged.
        FormatVersionError: Its version is unknown.
    """
    manifest = open_manifest(dataset)
    findings: list[Finding] = []
    tasks: list[VerifyTask] = []
    listings = _Listings(dataset)
    owners: dict[str, str] = {}
    readable = []
    for name, split in manifest.splits.items():
        try:
            table = _table(dataset, split)
        except UNREADABLE as error:
            findings.append(finding_of(split.table, error))
            continue
        readable.append(name)
        own = list(_tasks(dataset, table))
        for path in table.paths:
            if path in owners:
                findings.append(
                    Finding(path, f"shard of two splits, {owners[path]} and {name}")
                )
            owners[path] = name
        tasks += own
        findings += _compare_shards(own, listings)
        findings += _compare_indexes(table, listings)
    for name in readable:
        prefix = shard_prefix(manifest.name, name)
        findings += [
            Finding(file, f"file has the name of a shard of {name}, but is none of its")
            for file in listings.of("")
            if file.startswith(prefix) and file not in owners
        ]
    return VerifyPlan(findings, tasks)


def check_split(dataset: str, split: Split) -> list[Finding]:
    """Compares the table of one split with listings: opens no shard, and no manifest.

    Args:
        dataset: The dataset's directory; it need not be committed yet.
        split: The split.

    Returns:
        Shards and indexes that are missing or not the ones that were written, or why
        the table cannot be read.
    """
    try:
        table = _table(dataset, split)
    except UNREADABLE as error:
        return [finding_of(split.table, error)]
    # One listing after the other: of a million files each takes half a gigabyte.
    findings = _compare_shards(_tasks(dataset, table), _Listings(dataset))
    return findings + _compare_indexes(table, _Listings(dataset))


def _tasks(dataset: str, table: ShardTable) -> Iterator[VerifyTask]:
    for shard, path in enumerate(table.paths):
        yield VerifyTask(
            dataset=dataset,
            path=path,
            file_bytes=int(table.file_bytes[shard]),
            file_crc32c=int(table.file_crc32cs[shard]),
            digest=table.digest(shard),
        )


def _compare_shards(tasks: Iterable[VerifyTask], listings: _Listings) -> list[Finding]:
    findings: list[Finding] = []
    for task in tasks:
        findings += _compare_listed(task, listings.find(task.path))
    return findings


def _compare_indexes(table: ShardTable, listings: _Listings) -> list[Finding]:
    return [
        Finding(path, "shard index is missing")
        for path in map(layout.index_path, table.paths)
        if listings.find(path) is None
    ]


def _table(dataset: str, split: Split) -> ShardTable:
    table = read_table(dataset, split)
    table.check_paths(where=layout.join(dataset, split.table))
    return table


class _Listings:
    """What the storage says of the files of a dataset, one listing a directory."""

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


def _compare_listed(task: VerifyTask, found: FileInfo | None) -> list[Finding]:
    """Compares a shard with what the storage says of it."""
    path, file_crc32c = task.path, task.file_crc32c
    if found is None:
        return [Finding(path, "shard is missing")]
    if found.size_bytes != task.file_bytes:
        return [wrong_size(path, task.file_bytes, found.size_bytes)]
    # Buckets keep a checksum of every object; a local disk has none.
    if found.crc32c not in (None, file_crc32c):
        return [
            Finding(
                path,
                "shard is not the file that was written",
                expected=f"crc32c {file_crc32c:#010x}",
                got=f"{found.crc32c:#010x}",
            )
        ]
    return []
