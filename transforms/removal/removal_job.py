"""The plan of a removal, and its description beside the dataset."""

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
    JobChangedError,
    StateMismatchError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.columns.column_file import Values
from gristmill.dataset.commit.attached_split import made_column
from gristmill.dataset.commit.clean import give_up as give_up_work
from gristmill.dataset.commit.clean import sweep
from gristmill.dataset.commit.commit import check_files, commit, write_table
from gristmill.dataset.commit.editions import (
    changed_since,
    newest_edition,
    stands,
    with_parts,
    without_replaced,
)
from gristmill.dataset.commit.garbage import (
    SplitFiles,
    delete_leftovers,
    write_keys,
)
from gristmill.dataset.commit.listings import check_no_link
from gristmill.dataset.commit.write import Write, described_writes, next_write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    StoredColumn,
    column_entries,
    read_column_table,
    read_values,
)
from gristmill.dataset.metadata.layout import DIRECTORIES
from gristmill.dataset.metadata.manifest import (
    Manifest,
    chosen_split,
    is_over,
    not_a_dataset,
    open_manifest,
    read_manifest,
    read_table,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.removal.cut_shard import CutTask, cut_shard

Int64 = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EditionRemoval:
    """An edition that loses records, and the one that takes its place.

    Attributes:
        base: The edition as it is.
        write: The write of the new one.
        records: int64 [removed], numbers among the records of the edition, rising.
    """

    base: Split
    write: Write
    records: Int64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removal:
    """Records to remove from a split of a dataset.

    Attributes:
        dataset: Its directory.
        name: Its name.
        split: The split.
        before: The split as it is.
        editions: Those that lose records, in the order of their records.
        request: A digest of what was asked for, which tells that it was done before.
    """

    dataset: str
    name: str
    split: str
    before: Split
    editions: tuple[EditionRemoval, ...]
    request: str

    @property
    def records(self) -> int:
        """How many records are removed."""
        return sum(len(one.records) for one in self.editions)

    def check_current(self) -> None:
        """Raises JobChangedError if it was given up."""
        for one in self.editions:
            one.write.check_current()


def plan_removal(
    dataset: str,
    manifest: Manifest,
    split_name: str,
    records: npt.ArrayLike,
    *,
    request: str,
) -> Removal:
    """Sorts records of a split into its editions.

    Args:
        dataset: The dataset's directory.
        manifest: The dataset as it is.
        split_name: The name of the split.
        records: Numbers of records of the split, one and more, in any order.
        request: See `Removal`.

    Raises:
        InputError: There is no such record, or none is given.
    """
    split = manifest.splits[split_name]
    wanted = wanted_of(records)
    bad = wanted[(wanted < 0) | (wanted >= split.records)]
    if len(bad) or not len(wanted):
        raise InputError(
            "no such record" if len(bad) else "no records to remove",
            where=f"{dataset}, split {split_name}",
            expected=f"numbers of records, 0 to {split.records - 1:,}",
            got=f"{bad[0]:,}" if len(bad) else "none",
            cure="give numbers as `gristmill trace` and `head` show them",
        )
    editions: list[EditionRemoval] = []
    first = 0
    for part in split.parts:
        begin, end = np.searchsorted(wanted, [first, first + part.records]).tolist()
        if begin < end:
            own = wanted[begin:end] - first
            about = [request, part.edition, part.shards_digest, _digest(own)]
            write = next_write(
                *(dataset, manifest.name, split_name, json.dumps(about)),
                manifest=manifest,
                replaces=True,
                plain=False,
            )
            editions.append(EditionRemoval(base=part, write=write, records=own))
        first += part.records
    return Removal(
        dataset=dataset,
        name=manifest.name,
        split=split_name,
        before=split,
        editions=tuple(editions),
        request=request,
    )


def wanted_of(records: npt.ArrayLike) -> Int64:
    """Returns the records to be removed in order, each once.

    Raises InputError if they are not given as a list of numbers.
    """
    found = np.asarray(records, np.int64)
    if found.ndim != 1:
        raise InputError(
            "records are given by their numbers",
            expected="a list of numbers",
            got=f"an array of shape {found.shape}",
            cure="give the number of each record once",
        )
    return np.unique(found)


def _digest(records: Int64) -> str:
    return hashlib.sha256(records.astype("<i8").tobytes()).hexdigest()


def describe(removal: Removal) -> None:
    """Describes a removal beside its dataset, the first of its editions last."""
    about = {"request": removal.request, "base": removal.before.edition}
    for one in reversed(removal.editions):
        one.write.describe({"removal": about})


def check_nothing_begun(dataset: str, split: str, removal: Removal | None) -> None:
    """Raises JobChangedError if another command has begun work on a split.

    Its files can hold the records that are to be erased, or their values.

    Args:
        dataset: The dataset's directory.
        split: The split.
        removal: The caller's own work, which may be begun.
    """
    for directory in DIRECTORIES:
        check_no_link(layout.join(dataset, directory), directory)
    own = set() if removal is None else {one.write.key for one in removal.editions}
    files = SplitFiles(dataset, open_manifest(dataset), split)
    begun = [path for path, _ in files.unfinished(own)]
    if begun:
        raise JobChangedError(
            "records are not erased as long as work on the split is unfinished",
            where=f"{dataset}, split {split}",
            expected="nothing that could hold them",
            got=some_of(begun),
            cure="repeat the command that has begun it to finish it, or give it up: "
            "gristmill remove with --erase --give-up, or gristmill clean --unfinished",
        )


def check_same_numbers(dataset: str, split: str, request: str) -> None:
    """Raises StateMismatchError if a removal was begun and records were removed since.

    Its numbers are those of other records by now.

    Args:
        dataset: The dataset's directory.
        split: The split.
        request: The digest of what was asked for.
    """
    manifest = open_manifest(dataset)
    there = manifest.splits.get(split)
    for key in described_writes(dataset, manifest.name, split):
        if is_over(manifest, key):
            continue
        path = layout.join(dataset, layout.job_path(manifest.name, key))
        content = storage_for(dataset).load(path)
        try:
            about = json.loads(content.data)["removal"] if content else {}
            begun = about.get("request") == request
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # It is that of another command.
        if begun and not stands(there, about["base"]):
            raise StateMismatchError(
                "the split has changed since this removal was begun",
                where=f"{dataset}, split {split}",
                expected=f"edition {about['base']:,}, whose records have these numbers",
                got=newest_edition(dataset, split),
                cure="give up what was begun with gristmill clean --unfinished, then "
                "give the numbers that records have in the newest edition",
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
    SplitFiles(dataset, manifest, name).delete_garbage()
    delete_leftovers(dataset, manifest.name, write_keys(manifest, name))
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


def cut_tasks(one: EditionRemoval, table: ShardTable) -> Iterator[CutTask]:
    """Yields a task for each shard of an edition that loses records."""
    ends = np.cumsum(table.records)
    for shard in np.unique(np.searchsorted(ends, one.records, side="right")).tolist():
        begin = int(ends[shard] - table.records[shard])
        own = slice(*np.searchsorted(one.records, [begin, ends[shard]]))
        yield CutTask(
            write=one.write,
            shard=shard,
            shards=len(table),
            path=table.paths[shard],
            file_bytes=int(table.file_bytes[shard]),
            digest=table.digest(shard),
            records=one.records[own] - begin,
        )


def cut_columns(
    one: EditionRemoval, new: ShardTable
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the columns of a new edition, for `Split.columns`; writes their files.

    Args:
        one: The edition, and the one that it takes the place of.
        new: The shards of the new one.

    Raises:
        InvalidDatasetError: A column is damaged, or belongs to other records.
    """
    if not one.base.columns:
        return {}
    before = read_table(one.write.output, one.base)
    return {
        name: made_column(one.write, name, entry, new, _left(one, entry, before))
        for name, entry in column_entries(one.base, one.write.output).items()
    }


def _left(
    one: EditionRemoval, entry: ColumnEntry, before: ShardTable
) -> Iterator[Values | StoredColumn]:
    """Yields the values that each shard has left, or its file if that stays."""
    dataset = one.write.output
    table = read_column_table(dataset, entry, before)
    cut = {task.shard: task.records for task in cut_tasks(one, before)}
    for shard in range(len(before)):
        if shard in cut:
            values = read_values(dataset, entry.kind, table, shard)
            yield np.delete(values, cut[shard], axis=0)
        else:
            yield table.file(shard)
