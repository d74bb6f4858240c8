"""The end of a removal: new editions take the places of those that lost something."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill import __version__
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, StorageChangedError
from gristmill.dataset.commit.clean import sweep
from gristmill.dataset.commit.commit import check_files, commit, write_table
from gristmill.dataset.commit.editions import with_parts, without_replaced
from gristmill.dataset.commit.garbage import delete_garbage, delete_leftovers
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest, read_table
from gristmill.dataset.metadata.removed import RemovedRecords
from gristmill.dataset.metadata.report_columns import ShardReports
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.removal.begin_removal import BegunRemoval
from gristmill.transforms.removal.claim import check_current, check_nothing_begun
from gristmill.transforms.removal.cut_columns import cut_columns
from gristmill.transforms.removal.plan_removal import EditionRemoval, Removal

# Of what made an edition, which no other edition has.
_OWN_SOURCE = ("job", "write")


class RemovalResult(NamedTuple):
    """The result of a removal.

    Attributes:
        manifest: The dataset as it is now.
        split: The split that lost records.
        records: How many it lost.
        raw_bytes: Their size.
        editions: The numbers of the new editions.
        cut_shards: How many shards were written again.
        shared_shards: How many of these editions have been left as they were.
        left: Files that commands write which still run, if records were erased.
    """

    manifest: Manifest
    split: str
    records: int
    raw_bytes: int
    editions: tuple[int, ...]
    cut_shards: int
    shared_shards: int
    left: tuple[str, ...] = ()


def commit_removal(
    dataset: str, cuts: Gathered, *, erase: bool = False
) -> RemovalResult:
    """Commits the editions that a removal made, by one write of `dataset.json`.

    Args:
        dataset: The dataset's directory.
        cuts: What was begun, and every shard that lost records.
        erase: Whether the state before is given up, and its files are deleted.

    Raises:
        DataLossError: Shards are missing, or records are.
        JobChangedError: Another command has taken the place of this one.
        StorageChangedError: Another command has changed the split meanwhile.
    """
    begun: BegunRemoval | None = cuts.notes["begun"].get(dataset)
    if begun is None:
        raise DataLossError(
            "nothing says what was to be removed",
            where=dataset,
            cure="run the same command again: finished shards are kept",
        )
    _, removal, _, name = begun
    if removal is not None and _is_committed(removal):
        removal = None  # By an attempt before this one, which the runner repeats.
    made: dict[int, Split] = {}
    whole = cut_shards = 0
    if removal is not None:
        for one in removal.editions:
            made[one.base.edition], cut = _finish(one, removal, cuts)
            whole, cut_shards = whole + one.base.shards, cut_shards + cut
    new = {layout.edition_key(name, part.edition): part for part in made.values()}

    def change(old: Manifest | None) -> Manifest:
        split = None if old is None else old.splits.get(name)
        if old is None or split is None:
            raise StorageChangedError(
                "the split is gone from which records are removed",
                where=f"{dataset}, split {name}",
                cure="run one command at a time on a dataset",
            )
        if any(split.known.get(part.edition) != part for part in new.values()):
            split = with_parts(split, made)
        if erase:
            split = without_replaced(split)
        return dataclasses.replace(
            old,
            splits={**old.splits, name: split},
            created_by=f"gristmill {__version__}",
        )

    def check() -> None:
        if removal is not None:
            current = functools.partial(check_current, removal)
            check_files(dataset, new, check_current=current)
        if erase:
            check_nothing_begun(dataset, name, removal)

    manifest = commit(dataset, change, check=check, delete=False)
    # In this order: TFDS reads the old files as long as they are described.
    delete_garbage(dataset, manifest, name)
    done = [
        layout.edition_key(name, part.edition) for part in manifest.splits[name].parts
    ]
    delete_leftovers(dataset, manifest.name, [name, *done])
    left = sweep(dataset, manifest, name) if erase else ()
    lost = [part.removed for part in new.values() if part.removed is not None]
    return RemovalResult(
        manifest=manifest,
        split=name,
        records=sum(one["records"] for one in lost),
        raw_bytes=sum(one["raw_bytes"] for one in lost),
        editions=tuple(part.edition for part in new.values()),
        cut_shards=cut_shards,
        shared_shards=whole - cut_shards,
        left=left,
    )


def _is_committed(removal: Removal) -> bool:
    """Returns whether the editions that a removal makes are in the dataset."""
    manifest = read_manifest(removal.dataset)
    split = None if manifest is None else manifest.splits.get(removal.split)
    known = {} if split is None else split.known
    found = [known.get(one.edition) for one in removal.editions]
    return all(
        part is not None
        and part.removed is not None
        and part.removed.get("request") == removal.request
        for part in found
    )


def _finish(one: EditionRemoval, removal: Removal, cuts: Gathered) -> tuple[Split, int]:
    """Writes the table and the list of an edition; returns it, and its new shards."""
    dataset, base = removal.dataset, one.base
    key = layout.edition_key(removal.split, one.edition)
    check_current(removal)
    table, found = read_table(dataset, base), cuts.rows.get(one.edition)
    reports: ShardReports | None = None if found is None else found.reports()
    ends = np.cumsum(table.records)
    expected = np.unique(np.searchsorted(ends, one.records, side="right"))
    rows = np.empty(0, np.int64) if reports is None else reports.shard_indices
    if reports is None or not np.array_equal(rows, expected):
        raise DataLossError(
            "not all shards that lose records were written again",
            where=f"{dataset}, split {key}",
            expected=f"{len(expected):,} shards",
            got=f"{len(rows):,}",
            cure="run the same command again: finished shards are kept",
        )
    removed = cuts.notes["removed"]
    words = np.concatenate([removed[one.edition, row] for row in rows.tolist()])
    digest = RecordsDigest.of_words(words)
    new = _replaced(table, rows, reports.table)
    left = new.digest() + digest
    if len(words) != len(one.records) or left.hex != base.records_digest:
        raise DataLossError(
            "the remaining and the removed records are not those of before",
            where=f"{dataset}, split {key}",
            expected=f"{base.records:,} records, digest {base.records_digest}",
            got=left.summary,
            cure="verify the dataset with gristmill verify, then run again",
        )
    listed = RemovedRecords.of(one.records, words)
    list_path = layout.removed_path(removal.name, key)
    place = layout.join(dataset, list_path)
    storage_for(dataset).write(place, listed.encode(), replaces=version_of(place))
    source = {n: v for n, v in base.source.items() if n not in _OWN_SOURCE}
    split = write_table(
        dataset,
        removal.name,
        key,
        new,
        check_current=functools.partial(check_current, removal),
        writer_options=base.writer_options,
        source=source,
    )
    columns = cut_columns(removal, one, new, rows)
    about: Mapping[str, Any] = {
        "edition": base.edition,
        "shards_digest": base.shards_digest,
        "records": digest.records,
        "raw_bytes": digest.raw_bytes,
        "records_digest": digest.hex,
        "list": list_path,
        "request": removal.request,
        **({} if base.removed is None else {"before": dict(base.removed)}),
    }
    split = dataclasses.replace(
        split,
        features=base.features,
        removed=about,
        columns=columns,
        extra=base.extra,
    )
    return split, len(rows)


def _replaced(
    table: ShardTable, rows: npt.NDArray[np.int64], new: ShardTable
) -> ShardTable:
    """Returns a table with other shards in some rows. Both are empty then."""
    order = np.arange(len(table))
    order[rows] = len(table) + np.arange(len(rows))
    # What this version does not know is true of a shard still, such as its part.
    others = table.columns.keys() - new.columns.keys()
    for name in others:
        if not name.startswith("span_"):
            new.columns[name] = table.columns[name][rows]
    return ShardTable.joined([table, new]).taken(order)
