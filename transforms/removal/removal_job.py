"""The job of a removal: new editions take the places of those that lose records."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill import __version__
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest, lanes_of
from gristmill.dataset.base.errors import (
    DataLossError,
    InputError,
    StateMismatchError,
    StorageMissingError,
)
from gristmill.dataset.commit.clean import give_up as give_up_work
from gristmill.dataset.commit.clean import sweep
from gristmill.dataset.commit.commit import check_files, commit, write_table
from gristmill.dataset.commit.editions import (
    changed_since,
    with_parts,
    without_replaced,
)
from gristmill.dataset.commit.garbage import delete_garbage, delete_leftovers
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest, read_table
from gristmill.dataset.metadata.open_manifest import (
    chosen_split,
    not_a_dataset,
    open_manifest,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.removal.cut_shard import (
    CutTask,
    cut_columns,
    cut_shard,
    cut_tasks,
)
from gristmill.transforms.removal.plan_removal import (
    EditionRemoval,
    Removal,
    check_nothing_begun,
    check_same_numbers,
    describe,
    plan_removal,
    wanted_of,
)


class BegunRemoval(NamedTuple):
    """A removal that is described, or has been done already.

    Attributes:
        dataset: The dataset's directory.
        removal: What is to be done; None if it has been done.
        manifest: The dataset as it is.
        split: The name of the split.
        erase: Whether no file is to hold the records then.
    """

    dataset: str
    removal: Removal | None
    manifest: Manifest
    split: str
    erase: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Notes what was begun."""
        gathered.notes["begun"][""] = self


def begin_removal(
    dataset: str,
    records: npt.ArrayLike,
    *,
    split: str | None = None,
    edition: int | None = None,
    request: str | None = None,
    looked_up: bool = False,
    erase: bool = False,
    give_up: bool = False,
) -> BegunRemoval:
    """Plans a removal, and describes it beside the dataset.

    Args:
        dataset: The dataset's directory.
        records: Numbers of records of the split, in any order.
        split: The split; None for the only one.
        edition: The newest edition, whose records are numbered so. None for any: then
            what was removed by these numbers before is not removed again.
        request: A digest of what was asked for; by default of records and edition.
        looked_up: Whether the numbers were looked up in that edition: then they are
            removed though the same was asked for before.
        erase: Whether no file is to hold the records then.
        give_up: Whether to give up first what others have begun on the split.

    Raises:
        NotADatasetError: There is no committed dataset.
        InputError: There is no such split or record, or the split has packed rows.
        JobChangedError: Another command is changing the split, or has begun to, which
            erasing waits for.
        StateMismatchError: The edition is not the newest one, or records have other
            numbers since the same was begun.
    """
    manifest, name = open_split(dataset, split)
    if give_up:
        manifest = give_up_work(dataset, name)
    found = manifest.splits[name]
    if request is None:
        request = request_of(wanted_of(records).tolist(), edition)
    if not looked_up and done_before(found, request):
        if erase:
            check_nothing_begun(dataset, name, None)
        return BegunRemoval(dataset, None, manifest, name, erase)
    if edition not in (None, found.edition):
        raise StateMismatchError(
            "the edition is not the newest one",
            where=f"{dataset}, split {name}",
            expected=f"edition {found.edition:,}",
            got=f"edition {edition:,}",
            cure="give the numbers that records have in the newest edition",
        )
    if not looked_up:
        check_same_numbers(dataset, name, request)
    removal = plan_removal(dataset, manifest, name, records, request=request)
    if erase:
        check_nothing_begun(dataset, name, removal)
    describe(removal)
    return BegunRemoval(dataset, removal, manifest, name, erase)


def open_split(dataset: str, split: str | None) -> tuple[Manifest, str]:
    """Returns a dataset and the split that is to lose records.

    Raises as `begin_removal` does.
    """
    manifest = open_manifest(dataset)
    name = chosen_split(dataset, manifest, split)
    found = manifest.splits[name]
    if found.packed is not None:
        cure = "remove the documents from the inputs, then pack these again"
        if "shards_digest" in found.source:  # The input is a dataset.
            source = found.source["inputs"][0]
            cure = f"run gristmill remove on {source}, then pack it again"
        raise InputError(
            "documents cannot be removed from packed rows",
            where=f"{dataset}, split {name}",
            expected="a dataset of records",
            got="packed rows",
            cure=f"{cure}, with gristmill pack --overwrite",
        )
    return manifest, name


def request_of(asked: list[Any], *more: object) -> str:
    """Returns a digest of what was asked for."""
    text = json.dumps([asked, *more])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def done_before(split: Split, request: str) -> bool:
    """Returns whether an edition of a split was made by such a request."""
    return any(
        removed.get("request") == request
        for part in split.parts
        for _, removed in part.removals()
    )


def tasks_of(removal: Removal) -> Iterator[CutTask]:
    """Yields a task for each shard that loses records."""
    for one in removal.editions:
        yield from cut_tasks(one, read_table(removal.dataset, one.base))


_log = logging.getLogger(__name__)

# Of what made an edition, which no other edition has.
_OWN_SOURCE = ("job", "content")
_LIST_VERSION = 1


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


def commit_removal(cuts: Gathered) -> RemovalResult:
    """Commits the editions that a removal made, by one write of `dataset.json`.

    Args:
        cuts: What was begun, and every shard that lost records.

    Raises:
        DataLossError: Shards are missing, or records are.
        JobChangedError: Another command has taken the place of this one.
        StorageChangedError: Another command has changed the split meanwhile.
    """
    begun: BegunRemoval = cuts.notes["begun"][""]
    dataset, removal, _, name, erase = begun
    made: dict[int, Split] = {}
    whole = cut_shards = 0
    if removal is not None:
        for one in removal.editions:
            made[one.base.edition], cut = _finish(one, removal, cuts)
            whole, cut_shards = whole + one.base.shards, cut_shards + cut
    new = {layout.write_key(name, part.write): part for part in made.values()}

    where = f"{dataset}, split {name}"

    def change(old: Manifest | None) -> Manifest:
        split = None if old is None else old.splits.get(name)
        if old is None:
            raise not_a_dataset(dataset)
        if removal is not None:
            split = with_parts(split, made, before=removal.before, where=where)
        if split is None:
            base = begun.manifest.splits[name].edition
            raise changed_since(split, base, where=where)
        if erase:
            split = without_replaced(split)
        return dataclasses.replace(
            old,
            splits={**old.splits, name: split},
            created_by=f"gristmill {__version__}",
        )

    def check() -> None:
        if removal is not None:
            check_files(dataset, new, check_current=removal.check_current)
        if erase:
            check_nothing_begun(dataset, name, removal)

    manifest = commit(dataset, change, check=check, delete=False)
    # In this order: TFDS reads the old files as long as they are described.
    delete_garbage(dataset, manifest, name)
    done = [layout.write_key(name, part.write) for part in manifest.splits[name].parts]
    delete_leftovers(dataset, manifest.name, [name, *done])
    left = sweep(dataset, manifest, name) if erase else ()
    lost = [part.removed for part in new.values() if part.removed is not None]
    return RemovalResult(
        manifest=manifest,
        split=name,
        records=sum(one["records"] for one in lost),
        raw_bytes=sum(one["raw_bytes"] for one in lost),
        editions=tuple(
            part.edition
            for part in manifest.splits[name].known.values()
            if layout.write_key(name, part.write) in new
        ),
        cut_shards=cut_shards,
        shared_shards=whole - cut_shards,
        left=left,
    )


@dataclasses.dataclass(frozen=True)
class RemovalJob:
    """The job.

    Attributes:
        dataset: The dataset's directory.
        asked: What to remove, as arguments of `begin_removal`.
    """

    dataset: str
    asked: Mapping[str, Any]

    step, commit = staticmethod(cut_shard), staticmethod(commit_removal)

    def begin(self) -> Begun[CutTask]:
        """Plans the removal, and describes it."""
        begun = begin_removal(self.dataset, **self.asked)
        tasks = [] if begun.removal is None else [*tasks_of(begun.removal)]
        _log.info("%s: %d shards lose records", self.dataset, len(tasks))
        return Begun.on(self.dataset, "cutting", tasks, begun)


def _finish(one: EditionRemoval, removal: Removal, cuts: Gathered) -> tuple[Split, int]:
    """Writes the table and the list of an edition; returns it, and its new shards."""
    dataset, base = removal.dataset, one.base
    key = one.write.key
    removal.check_current()
    table, found = read_table(dataset, base), cuts.rows.get(one.write.id)
    made: ShardTable | None = None if found is None else found.table()
    ends = np.cumsum(table.records)
    expected = np.unique(np.searchsorted(ends, one.records, side="right"))
    rows = np.empty(0, np.int64) if made is None else made.numbers
    if made is None or not np.array_equal(rows, expected):
        raise DataLossError(
            "not all shards that lose records were written again",
            where=f"{dataset}, split {key}",
            expected=f"{len(expected):,} shards",
            got=f"{len(rows):,}",
            cure="run the same command again: finished shards are kept",
        )
    removed = cuts.notes["removed"]
    words = np.concatenate([removed[one.write.id, row] for row in rows.tolist()])
    digest = RecordsDigest.of_words(words)
    new = _replaced(table, rows, made)
    left = new.digest() + digest
    if len(words) != len(one.records) or left.hex != base.records_digest:
        raise DataLossError(
            "the remaining and the removed records are not those of before",
            where=f"{dataset}, split {key}",
            expected=f"{base.records:,} records, digest {base.records_digest}",
            got=left.summary,
            cure="verify the dataset with gristmill verify, then run again",
        )
    list_path = layout.removed_path(removal.name, key)
    place = layout.join(dataset, list_path)
    listed = _encoded_list(one.records, words)
    storage_for(dataset).write(place, listed, replaces=version_of(place))
    source = {n: v for n, v in base.source.items() if n not in _OWN_SOURCE}
    source["job"] = one.write.id
    split = write_table(
        dataset,
        removal.name,
        key,
        new,
        check_current=removal.check_current,
        writer_options=base.writer_options,
        source=source,
    )
    try:
        columns = cut_columns(one, new)
    except StorageMissingError:
        # Another command may have replaced a column, and deleted its files.
        manifest = read_manifest(dataset)
        now = None if manifest is None else manifest.splits.get(removal.split)
        if now is None or now.parts != removal.before.parts:
            where = f"{dataset}, split {removal.split}"
            raise changed_since(now, removal.before.edition, where=where) from None
        raise
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


def _encoded_list(
    records: npt.NDArray[np.int64], words: npt.NDArray[np.uint64]
) -> bytes:
    """Returns the file that lists removed records: their numbers and digests."""
    out, (low, high) = io.BytesIO(), lanes_of(words)
    version = np.array(_LIST_VERSION)
    np.savez_compressed(
        out, version=version, records=records, digest_low=low, digest_high=high
    )
    return out.getvalue()


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
