"""Verifying the metadata of a dataset against the files that exist.

Continues after the first finding, as a repair needs all of them. Opens no shard:
`checking.shard` reads those that are planned here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gristmill.dataset.commit.leftovers import find_leftovers
from gristmill.dataset.commit.split_check import (
    Listings,
    compare_indexes,
    compare_shards,
    read_checked_table,
)
from gristmill.dataset.commit.split_files import shard_prefix
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import InvalidDatasetError
from gristmill.dataset.findings import UNREADABLE, Finding, finding_of
from gristmill.dataset.metadata.manifest import (
    check_in_place,
    open_manifest,
    read_manifest,
)
from gristmill.dataset.metadata.shard_table import ShardTable


class VerifyTask(NamedTuple):
    """One shard to verify: its row of the table of shards.

    Attributes:
        dataset: The dataset's directory.
        path: The shard, relative to it.
        file_bytes: Size of the shard.
        file_crc32c: crc32c of the whole file.
        digest: Digest of its records.
        content_digest: That of the dataset, which tells whether it was replaced since.
    """

    dataset: str
    path: str
    file_bytes: int
    file_crc32c: int
    digest: RecordsDigest
    content_digest: str = ""


class VerifyPlan(NamedTuple):
    """Findings about the metadata of a dataset, and the shards to read.

    Attributes:
        findings: What is wrong: shards that are missing, too short or not the ones that
            were written, files that readers would take for shards, tables that are not
            the ones that `dataset.json` describes, totals that do not add up.
        tasks: One for every shard of all splits whose table can be read: for those of
            the others there is a finding.
        leftovers: Files of commands that were killed, or that still run.
    """

    findings: list[Finding]
    tasks: list[VerifyTask]
    leftovers: tuple[str, ...]


def plan_verify(dataset: str) -> VerifyPlan:
    """Checks `dataset.json`, the tables of shards, and that all files are there.

    Lists two directories and opens no shard, so it takes seconds on any dataset. In a
    bucket that proves that every shard is the file that was written: a listing there
    has the checksums of all objects, which were computed when they arrived.

    Args:
        dataset: The directory of a committed dataset.

    Raises:
        NotADatasetError: The dataset is not committed, or a split is being replaced.
        InvalidDatasetError: `dataset.json` is damaged.
        FormatVersionError: Its version is unknown.
    """
    manifest = open_manifest(dataset)
    check_in_place(dataset, manifest)
    findings: list[Finding] = []
    tasks: list[VerifyTask] = []
    listings = Listings(dataset)
    owners: dict[str, str] = {}
    readable = []
    for name, split in manifest.splits.items():
        try:
            table = read_checked_table(dataset, split)
        except UNREADABLE as error:
            findings.append(finding_of(split.table, error))
            continue
        readable.append(name)
        for path in table.paths:
            if path in owners:
                findings.append(
                    Finding(path, f"shard of two splits, {owners[path]} and {name}")
                )
            owners[path] = name
        tasks += _tasks(dataset, table, manifest.content_digest)
        findings += compare_shards(table, listings)
        findings += compare_indexes(table, listings)
    for name in readable:
        prefix = shard_prefix(manifest.name, name)
        findings += [
            Finding(file, f"file is named like a shard of {name}, but is none of them")
            for file in listings.of("")
            if file.startswith(prefix) and file not in owners
        ]
    leftovers = tuple(find_leftovers(dataset, manifest, listings))
    if findings:
        check_same(dataset, manifest.content_digest)
    return VerifyPlan(findings, tasks, leftovers)


def check_same(dataset: str, content_digest: str) -> None:
    """Checks that a dataset is the one in which something was found.

    Raises:
        InvalidDatasetError: It was replaced meanwhile: what was found says nothing.
    """
    now = read_manifest(dataset)
    if now is None or now.content_digest != content_digest:
        raise InvalidDatasetError(
            "dataset was changed while it was verified",
            where=dataset,
            expected=content_digest,
            got="no dataset" if now is None else now.content_digest,
            cure="verify it again, when the command that replaces it has ended",
        )


def _tasks(
    dataset: str, table: ShardTable, content_digest: str
) -> Iterator[VerifyTask]:
    for shard, path in enumerate(table.paths):
        yield VerifyTask(
            dataset=dataset,
            path=path,
            file_bytes=int(table.file_bytes[shard]),
            file_crc32c=int(table.file_crc32cs[shard]),
            digest=table.digest(shard),
            content_digest=content_digest,
        )
