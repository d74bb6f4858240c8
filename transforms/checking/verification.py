"""The job of a verification: metadata against files that exist, then every shard.

A file has one finding at most, and what comes after is checked all the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError, InvalidDatasetError
from gristmill.dataset.base.findings import (
    UNREADABLE,
    Finding,
    Findings,
    finding_of,
)
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.commit.garbage import find_leftovers, is_left, named_shards
from gristmill.dataset.commit.listings import (
    Listings,
    Names,
    compare_files,
    compare_indexes,
    compare_shards,
    decode_name,
    encode_names,
    find_names,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnTable,
    column_entries,
    read_column_table,
)
from gristmill.dataset.metadata.manifest import Manifest, open_manifest, read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.recount import Ends
from gristmill.dataset.packed.row_format import RowFormat
from gristmill.transforms.checking.verify_shard import (
    GatheredChecks,
    PackedShard,
    VerifyTask,
    check_same,
    verify_shard,
)
from gristmill.transforms.jobs.job import Begun

_log = logging.getLogger(__name__)

_BLOCK_SHARDS = 4096
_DIGEST = {  # Columns of a table by the fields of a digest.
    **{"records": "records", "raw_bytes": "raw_bytes"},
    **{"low": "digest_low", "high": "digest_high"},
}

_Columns = Sequence[tuple[ColumnType, ColumnTable]]


class VerifiedTable(NamedTuple):
    """A table of shards to verify.

    Attributes:
        table: The table.
        row_format: The encoding of rows of tokens; None for other records.
        ends: The tokens at the start and end of documents.
        columns: The columns beside the records.
    """

    table: ShardTable
    row_format: RowFormat | None
    ends: Ends
    columns: _Columns

    def packed(self) -> Iterator[PackedShard | None]:
        """Yields the table's description of the packed rows of each shard."""
        if self.row_format is None:
            yield from itertools.repeat(None, len(self.table))
            return
        names = "segments_bytes", "segments_crc32c"
        sizes, crc32cs = (map(int, self.table.columns[name]) for name in names)
        for begin in range(0, len(self.table), _BLOCK_SHARDS):
            for counts in self.table.packed(begin, begin + _BLOCK_SHARDS):
                assert counts is not None  # There is a format.
                yield PackedShard(
                    *(self.row_format, counts, next(sizes), next(crc32cs), self.ends)
                )


@dataclasses.dataclass
class VerifyTasks:
    """A task for each shard of some tables, made as they are iterated over.

    Attributes:
        dataset: The dataset's directory.
        content_digest: Its digest.
        tables: The tables.
    """

    dataset: str
    content_digest: str
    tables: list[VerifiedTable] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(one.table) for one in self.tables)

    def __iter__(self) -> Iterator[VerifyTask]:
        for one in self.tables:
            table, names = one.table, ("file_bytes", "file_crc32c", *_DIGEST.values())
            facts = (map(int, table.columns[name]) for name in names)
            found = enumerate(zip(table.paths, one.packed(), *facts, strict=True))
            for shard, (path, packed, size, crc32c, *sums) in found:
                digest = RecordsDigest(**dict(zip(_DIGEST, sums, strict=True)))
                yield VerifyTask(
                    *(self.dataset, path, self.content_digest, size, crc32c),
                    *(digest, packed),
                    tuple((kind, files.file(shard)) for kind, files in one.columns),
                )


class VerifyPlan(NamedTuple):
    """The findings from a dataset's metadata, and the shards to read.

    Attributes:
        known: Findings: missing, truncated or replaced shards, files that readers would
            mistake for shards, tables that differ from their description in
            `dataset.json`, wrong totals; for replaced editions that are kept, missing
            files and wrong sizes. Also leftover files, and the counts of packed rows
            from the tables.
        tasks: A task for every shard of all splits whose table is readable; each other
            table has a finding.
    """

    known: GatheredChecks
    tasks: VerifyTasks

    @property
    def findings(self) -> Findings:
        """The findings."""
        return self.known.findings


def plan_verify(dataset: str, *, shards_too: bool = True) -> VerifyPlan:
    """Checks `dataset.json`, the tables of shards, and that all files are there.

    It lists two directories and opens no shard, so it takes seconds for most datasets.
    In a bucket it proves that every shard is the file that was written, since a listing
    has the checksums of all objects, computed on upload.

    Args:
        dataset: The directory of a committed dataset.
        shards_too: Whether to compare shards and indexes with the listings. The tasks
            compare them again, and would count their faults twice.

    Raises:
        NotADatasetError: The dataset is not committed, or a split is being replaced.
        InvalidDatasetError: `dataset.json` is damaged.
        FormatVersionError: Its version is unknown.
    """
    manifest = open_manifest(dataset)
    known, tasks = GatheredChecks(), VerifyTasks(dataset, manifest.content_digest)
    findings, listings = known.findings, Listings(dataset)
    tables: dict[str, ShardTable] = {}
    for name, split in manifest.known.items():
        try:
            table = tables[name] = read_table(dataset, split)
        except UNREADABLE as error:
            findings.add([finding_of(split.table, error)])
            continue
        columns = _columns_of(split, table, dataset, findings)
        now = name in manifest.editions
        if shards_too or not now:  # No task reads those of replaced editions.
            findings.add(_compare_columns(columns, listings))
            findings.add(compare_shards(table, listings))
            findings.add(compare_indexes(table, listings))
        if not now:
            continue
        row_format: RowFormat | None = None
        ends: Ends = (None, None)
        try:
            row_format, ends = _rows_of(split, table, dataset)
        except UNREADABLE as error:
            findings.add([finding_of(layout.DATASET_JSON, error)])
        tasks.tables.append(VerifiedTable(table, row_format, ends, columns))
        if (counts := table.packed_total()) is not None:
            known.packed = counts + (known.packed or PackedCounts())
    findings.add(_owned_twice({n: tables[n] for n in manifest.editions if n in tables}))
    named = named_shards(tables.values())
    findings.add(_owned_never(dataset, manifest, tables, named, listings))
    whole = len(tables) == len(manifest.known)
    left = find_leftovers(dataset, manifest, listings, named if whole else None)
    for path, is_unfinished in left:
        known.leftovers.add([path])
        known.unfinished += is_unfinished
    if findings:
        check_same(dataset, manifest.content_digest)
    return VerifyPlan(known, tasks)


def _columns_of(
    edition: Split, table: ShardTable, dataset: str, findings: Findings
) -> _Columns:
    """Returns the columns of an edition whose tables can be read."""
    found = []
    for name, fields in edition.columns.items():
        alone = dataclasses.replace(edition, columns={name: fields})
        try:
            (entry,) = column_entries(alone, dataset).values()
            found.append((entry.kind, read_column_table(dataset, entry, table)))
        except UNREADABLE as error:
            findings.add([finding_of(str(fields.get("table")), error)])
    return found


def _compare_columns(columns: _Columns, listings: Listings) -> Iterator[Finding]:
    """Compares the files of columns with what the storage lists."""
    for _, table in columns:
        yield from compare_files("column", table.paths, table.columns, listings)


def _rows_of(
    split: Split, table: ShardTable, dataset: str
) -> tuple[RowFormat | None, Ends]:
    """Returns the encoding of a split's rows, and the tokens around documents."""
    total, where = table.packed_total(), layout.join(dataset, layout.DATASET_JSON)
    packed = None
    if split.packed is not None:
        packed = PackedSplit.parse(split.packed, where=where)
    counts = None if packed is None else packed.counts
    if counts != total:
        raise InvalidDatasetError(
            f"dataset.json and {split.table} disagree about packed rows",
            where=where,
            expected=str(total and total.as_dict()),
            got=str(counts and counts.as_dict()),
            cure="restore the files of the dataset from a copy, or pack the "
            "documents again",
        )
    if packed is None:
        return None, (None, None)
    try:
        row_format = RowFormat(packed.length, packed.id_bytes, packed.rows)
    except InputError as error:
        raise InvalidDatasetError(
            "packed rows of an unknown kind",
            where=where,
            got=f"{packed.rows}, {packed.length:,} tokens, ids of {packed.id_bytes} "
            "bytes",
            cure="restore dataset.json from a copy",
        ) from error
    return row_format, (packed.bos_id, packed.eos_id)


def _owned_twice(tables: dict[str, ShardTable]) -> Iterator[Finding]:
    """Finds shards that belong to two current editions."""
    names = [*tables]
    parts = [encode_names(table.paths) for table in tables.values()]
    if not parts:
        return
    paths = np.concatenate(parts)
    splits = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(paths, kind="stable")
    paths, splits = paths[order], splits[order]
    for twice in np.flatnonzero(paths[1:] == paths[:-1]).tolist():
        first, second = splits[twice : twice + 2]
        yield Finding(
            decode_name(paths[twice]),
            f"shard of two splits, {names[first]} and {names[second]}",
        )


def _owned_never(
    dataset: str,
    manifest: Manifest,
    readable: Container[str],
    named: Names,
    listings: Listings,
) -> Iterator[Finding]:
    """Finds files named like shards of an edition, except leftovers of jobs."""
    for name in manifest.splits:
        there = listings.of("").with_ends(layout.shard_prefix(manifest.name, name))
        for file in map(decode_name, there[find_names(named, there) < 0]):
            mark = layout.shard_mark(file, manifest.name, name)
            key = layout.write_key(name, mark or "")
            left = mark is not None and is_left(dataset, file, mark)
            if key in readable and not left:
                yield Finding(
                    file, f"file is named like a shard of {key}, but is none of them"
                )


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    """The result of a verification.

    Attributes:
        dataset: Its directory.
        shards: Shards that were checked.
        records: Records that were decoded and compared; None if quick.
        raw_bytes: Their size in bytes; None if quick.
        findings: The first 10,000 faults, at most one per file.
        leftovers: The first 1,000 files of commands that were killed, or are running.
        more_findings: Number of further findings.
        more_leftovers: Number of further leftovers.
        packed: Counts of packed rows; None if there are none.
        unfinished: How many of the leftovers are of unfinished work.
    """

    dataset: str
    shards: int
    records: int | None
    raw_bytes: int | None
    findings: tuple[Finding, ...]
    leftovers: tuple[str, ...] = ()
    more_findings: int = 0
    more_leftovers: int = 0
    packed: PackedCounts | None = None
    unfinished: int = 0


@dataclasses.dataclass(frozen=True)
class VerifyJob:
    """The job that verifies a dataset.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to skip the contents of shards and indexes.
    """

    dataset: str
    quick: bool = False

    step = staticmethod(verify_shard)

    def begin(self) -> Begun[VerifyTask]:
        """Checks the metadata."""
        known, tasks = plan_verify(self.dataset, shards_too=self.quick)
        shards = 0 if self.quick else len(tasks)
        _log.info("%s: %d shards to verify", self.dataset, shards)
        if self.quick:
            known.shards = len(tasks)
        else:
            known.packed = None  # The shards have the counts.
        return Begun(
            label="verifying",
            tasks=tasks if shards else (),
            parts=shards,
            stored_bytes=sum(one.table.total("file_bytes") for one in tasks.tables),
            known=(known,),
            sources=(self.dataset,),
        )

    def commit(self, gathered: Gathered) -> VerifyResult:
        """Returns the findings, and logs their number."""
        checks: GatheredChecks = gathered.rows["checks"]
        findings, leftovers = checks.findings, checks.leftovers
        _log.log(
            logging.WARNING if findings else logging.INFO,
            "%s: verified %d shards, %s records, %d findings%s",
            *(self.dataset, checks.shards, checks.records, len(findings)),
            f", the first {findings.first[0]}" if findings else "",
            extra={"told": True},  # A command prints the result.
        )
        return VerifyResult(
            self.dataset,
            checks.shards,
            None if self.quick else checks.records,
            None if self.quick else checks.raw_bytes,
            *(findings.first, leftovers.first, findings.more, leftovers.more),
            checks.packed,
            checks.unfinished,
        )
