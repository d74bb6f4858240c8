"""The job of removing records, which replaces each edition that loses some."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Gathered, save_arrays
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
from gristmill.dataset.commit.write import Output, Write, described_writes, id_of
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
    open_manifest,
    read_table,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.removal.cut_shard import CutTask, cut_shard

Int64 = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)

# Fields about the source that belong to one edition only.
_OWN_SOURCE = ("job", "content")
_LIST_VERSION = 1


class EditionRemoval(NamedTuple):
    """An edition that loses records, and the edition that replaces it.

    Attributes:
        base: The edition before the removal.
        write: The write of the new edition.
        records: int64 [removed], ascending numbers among the records of the edition.
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
        before: The split before the removal.
        request: A digest of the request, by which a repeated one is recognised.
        editions: The editions that lose records, in the order of their records; none if
            the request was done before.
        erase: Whether to delete every file that holds the records.
    """

    dataset: str
    name: str
    split: str
    before: Split
    request: str
    editions: tuple[EditionRemoval, ...] = ()
    erase: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Notes the removal."""
        gathered.notes["begun"][""] = self

    def check_current(self) -> None:
        """Raises JobChangedError if it was given up."""
        for one in self.editions:
            one.write.check_current()

    def tasks(self) -> Iterator[CutTask]:
        """Yields a task for each shard that loses records."""
        for one in self.editions:
            with self.change_told():
                table = read_table(self.dataset, one.base)
            yield from _cut_tasks(one, table)

    @contextlib.contextmanager
    def change_told(self) -> Iterator[None]:
        """Raises StorageChangedError if another command has deleted a file."""
        try:
            yield
        except StorageMissingError:
            manifest, _ = read_versioned_manifest(self.dataset)
            now = manifest.splits.get(self.split)
            if now is None or now.parts != self.before.parts:
                where = f"{self.dataset}, split {self.split}"
                raise changed_since(now, self.before.edition, where=where) from None
            raise


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
) -> Removal:
    """Plans a removal, and describes it beside the dataset.

    Args:
        dataset: The dataset's directory.
        records: Numbers of records of the split, in any order.
        split: The split; None for the only one.
        edition: The newest edition, to which the numbers refer. None for any: then
            numbers that were removed before are not removed again.
        request: A digest of the request; by default of records and edition.
        looked_up: Whether the numbers were looked up in that edition, so that they are
            removed even if the request is a repeated one.
        erase: Whether to delete every file that holds the records.
        give_up: Whether to give up unfinished work of other commands on the split
            first.

    Raises:
        NotADatasetError: There is no committed dataset.
        InputError: There is no such split or record, or the split has packed rows.
        JobChangedError: Another command is changing the split, or, when erasing, has
            unfinished work on it.
        StateMismatchError: The edition is not the newest one, or the numbers of records
            have changed since this request was begun.
    """
    manifest, name = open_split(dataset, split)
    if give_up:
        manifest = give_up_work(dataset, name)
    found, numbers = manifest.splits[name], np.asarray(records, np.int64)
    if numbers.ndim != 1:
        raise InputError(
            "records are given by their numbers",
            expected="a list of numbers",
            got=f"an array of shape {numbers.shape}",
            cure="give the number of each record once",
        )
    wanted = np.unique(numbers)
    removal = Removal(
        dataset=dataset,
        name=manifest.name,
        split=name,
        before=found,
        request=request or id_of(wanted.tolist(), edition),
        erase=erase,
    )
    if looked_up or not done_before(found, removal.request):
        if edition not in (None, found.edition):
            raise StateMismatchError(
                "the edition is not the newest one",
                where=f"{dataset}, split {name}",
                expected=f"edition {found.edition:,}",
                got=f"edition {edition:,}",
                cure="give the numbers that records have in the newest edition",
            )
        if not looked_up:
            _check_same_numbers(removal)
        editions = tuple(_editions(removal, manifest, wanted))
        removal = dataclasses.replace(removal, editions=editions)
    if erase:
        _check_nothing_begun(removal)
    for one in reversed(removal.editions):  # The first last.
        about = {"request": removal.request, "base": found.edition}
        one.write.describe({"removal": about})
    return removal


def _editions(
    removal: Removal, manifest: Manifest, wanted: Int64
) -> Iterator[EditionRemoval]:
    """Sorts records into the editions of their split."""
    dataset, name, split = removal.dataset, removal.split, removal.before
    bad = wanted[(wanted < 0) | (wanted >= split.records)]
    if len(bad) or not len(wanted):
        raise InputError(
            "no such record" if len(bad) else "no records to remove",
            where=f"{dataset}, split {name}",
            expected=f"numbers of records, 0 to {split.records - 1:,}",
            got=f"{bad[0]:,}" if len(bad) else "none",
            cure="give numbers as `gristmill trace` and `head` show them",
        )
    write = Write(output=dataset, name=manifest.name, split=name)
    output, first = Output(write, manifest), 0
    for part in split.parts:
        begin, end = np.searchsorted(wanted, [first, first + part.records]).tolist()
        if begin < end:
            own = wanted[begin:end] - first
            digest = hashlib.sha256(own.astype("<i8").tobytes()).hexdigest()
            about = [removal.request, part.edition, part.shards_digest, digest]
            write = output.next_write(json.dumps(about), replaces=True, plain=False)
            yield EditionRemoval(part, write, own)
        first += part.records


def open_split(dataset: str, split: str | None) -> tuple[Manifest, str]:
    """Returns the manifest of a dataset, and the name of the split to remove from."""
    manifest = open_manifest(dataset)
    name = chosen_split(split, manifest.splits, dataset)
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


def done_before(split: Split, request: str) -> bool:
    """Returns whether a request has made an edition of a split."""
    return any(
        removed.get("request") == request
        for part in split.parts
        for _, removed in part.removals()
    )


def _check_nothing_begun(removal: Removal) -> None:
    """Raises JobChangedError if another command has unfinished work on the split.

    Its files may hold the records to erase, or their values.
    """
    dataset, split = removal.dataset, removal.split
    for directory in DIRECTORIES:
        check_no_link(layout.join(dataset, directory), directory)
    own = {one.write.key for one in removal.editions}
    files = SplitFiles(dataset, open_manifest(dataset), split)
    if begun := [path for path, _ in files.unfinished(own)]:
        raise JobChangedError(
            "records are not erased as long as work on the split is unfinished",
            where=f"{dataset}, split {split}",
            expected="nothing that could hold them",
            got=some_of(begun),
            cure="repeat the command that has begun it to finish it, or give it up: "
            "gristmill remove with --erase --give-up, or gristmill clean --unfinished",
        )


def _check_same_numbers(removal: Removal) -> None:
    """Raises StateMismatchError if records were renumbered since the same request."""
    dataset, split = removal.dataset, removal.split
    manifest = open_manifest(dataset)
    for key in described_writes(dataset, manifest.name, split):
        if is_over(manifest, key):
            continue
        path = layout.join(dataset, layout.job_path(manifest.name, key))
        content = storage_for(dataset).load(path)
        try:
            about = json.loads(content.data)["removal"] if content else {}
            begun = about.get("request") == removal.request
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # The description of another command.
        if begun and not stands(manifest.splits.get(split), about["base"]):
            raise StateMismatchError(
                "the split has changed since this removal was begun",
                where=f"{dataset}, split {split}",
                expected=f"edition {about['base']:,}, whose records have these numbers",
                got=newest_edition(dataset, split),
                cure="give up what was begun with gristmill clean --unfinished, then "
                "give the numbers that records have in the newest edition",
            )


def _cut_tasks(one: EditionRemoval, table: ShardTable) -> Iterator[CutTask]:
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


class RemovalResult(NamedTuple):
    """The result of a removal.

    Attributes:
        manifest: The dataset after the commit.
        split: The split that lost records.
        records: Number of removed records.
        raw_bytes: Their size in bytes.
        editions: The numbers of the new editions.
        cut_shards: Number of shards written again.
        shared_shards: Number of shards of these editions that were kept.
        left: When erasing, files of commands that may still be running.
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
    """Commits the new editions of a removal, by one write of `dataset.json`.

    Args:
        cuts: The removal, and every shard that lost records.

    Raises:
        DataLossError: Shards or records are missing.
        JobChangedError: Another command has replaced this one.
        StorageChangedError: Another command has changed the split meanwhile.
    """
    removal: Removal = cuts.notes["begun"][""]
    dataset, name = removal.dataset, removal.split
    where = f"{dataset}, split {name}"
    made: dict[int, Split] = {}
    shards = cut_shards = 0
    for one in removal.editions:
        made[one.base.edition], cut = _finish(one, removal, cuts)
        shards, cut_shards = shards + one.base.shards, cut_shards + cut
    new = {layout.write_key(name, part.write): part for part in made.values()}

    def change(old: Manifest) -> Manifest:
        split = old.splits.get(name)
        if made:
            split = with_parts(split, made, before=removal.before, where=where)
        if split is None:
            raise changed_since(split, removal.before.edition, where=where)
        if removal.erase:
            split = without_replaced(split)
        return dataclasses.replace(old, splits={**old.splits, name: split})

    def check() -> None:
        check_files(dataset, new, check_current=removal.check_current)
        if removal.erase:
            _check_nothing_begun(removal)

    manifest = commit(dataset, change, check=check, delete=False)
    # In this order, as TFDS reads the old files as long as they are described.
    SplitFiles(dataset, manifest, name).delete_garbage()
    delete_leftovers(dataset, manifest.name, write_keys(manifest, name))
    left = sweep(dataset, manifest, name) if removal.erase else ()
    lost = [part.removed for part in new.values() if part.removed is not None]
    known = manifest.splits[name].known.values()
    keys = ((layout.write_key(name, part.write), part) for part in known)
    return RemovalResult(
        manifest=manifest,
        split=name,
        records=sum(one["records"] for one in lost),
        raw_bytes=sum(one["raw_bytes"] for one in lost),
        editions=tuple(part.edition for key, part in keys if key in new),
        cut_shards=cut_shards,
        shared_shards=shards - cut_shards,
        left=left,
    )


@dataclasses.dataclass(frozen=True)
class RemovalJob:
    """The job of removing records.

    Attributes:
        dataset: The dataset's directory.
        asked: The arguments of `begin_removal`.
    """

    dataset: str
    asked: Mapping[str, Any]

    step, commit = staticmethod(cut_shard), staticmethod(commit_removal)

    def begin(self) -> Begun[CutTask]:
        """Plans the removal, and describes it."""
        removal = begin_removal(self.dataset, **self.asked)
        tasks = [*removal.tasks()]
        _log.info("%s: %d shards lose records", self.dataset, len(tasks))
        return Begun.on(self.dataset, "cutting", tasks, removal)


def _finish(one: EditionRemoval, removal: Removal, cuts: Gathered) -> tuple[Split, int]:
    """Writes the table and the list of an edition; returns it, and its cut shards."""
    dataset, base, key = removal.dataset, one.base, one.write.key
    removal.check_current()
    with removal.change_told():
        table = read_table(dataset, base)
    tasks = [*_cut_tasks(one, table)]
    made = _made_table(one, tasks, removal, cuts)
    expected = [task.shard for task in tasks]
    removed = cuts.notes["removed"]
    words = np.concatenate([removed[one.write.id, shard] for shard in expected])
    digest = RecordsDigest.of_words(words)
    # Columns that this version does not know still hold for a shard.
    for column in table.columns.keys() - made.columns.keys():
        if not column.startswith("span_"):
            made.columns[column] = table.columns[column][expected]
    order = np.arange(len(table))
    order[expected] = len(table) + np.arange(len(expected))
    new = ShardTable.joined([table, made]).taken(order)
    left = new.digest() + digest
    if len(words) != len(one.records) or left.hex != base.records_digest:
        raise DataLossError(
            "the remaining and the removed records are not those of before",
            where=f"{dataset}, split {key}",
            expected=f"{base.records:,} records, digest {base.records_digest}",
            got=left.summary,
            cure="verify the dataset with gristmill verify, then run again",
        )
    about: Mapping[str, Any] = {
        "edition": base.edition,
        "shards_digest": base.shards_digest,
        "records": digest.records,
        "raw_bytes": digest.raw_bytes,
        "records_digest": digest.hex,
        "list": _write_list(one, removal, words),
        "request": removal.request,
        **({} if base.removed is None else {"before": dict(base.removed)}),
    }
    source = {n: v for n, v in base.source.items() if n not in _OWN_SOURCE}
    split = write_table(
        one.write,
        new,
        check_current=removal.check_current,
        writer_options=base.writer_options,
        source=source,
    )
    split = dataclasses.replace(
        split,
        features=base.features,
        removed=about,
        columns=_cut_columns(one, removal, new, tasks),
        extra=base.extra,
    )
    return split, len(expected)


def _made_table(
    one: EditionRemoval, tasks: Sequence[CutTask], removal: Removal, cuts: Gathered
) -> ShardTable:
    """Returns the table of the shards that were written again; raises DataLossError."""
    rows: ShardCollector = cuts.rows.get(one.write.id) or ShardCollector()
    made = rows.table()
    if made.numbers.tolist() != [task.shard for task in tasks]:
        raise DataLossError(
            "not all shards that lose records were written again",
            where=f"{removal.dataset}, split {one.write.key}",
            expected=f"{len(tasks):,} shards",
            got=f"{len(made):,}",
            cure="run the same command again: finished shards are kept",
        )
    return made


def _write_list(one: EditionRemoval, removal: Removal, words: npt.NDArray[Any]) -> str:
    """Writes the numbers and digests of removed records; returns the file's path."""
    low, high = lanes_of(words)
    columns = {"records": one.records, "digest_low": low, "digest_high": high}
    path = layout.removed_path(removal.name, one.write.key)
    place = layout.join(removal.dataset, path)
    data = save_arrays(_LIST_VERSION, columns)
    storage_for(removal.dataset).write(place, data, replaces=version_of(place))
    return path


def _cut_columns(
    one: EditionRemoval, removal: Removal, new: ShardTable, tasks: Sequence[CutTask]
) -> dict[str, Mapping[str, Any]]:
    """Writes the columns of an edition without the removed records."""
    if not one.base.columns:
        return {}
    with removal.change_told():
        # The first one was consumed by the join.
        table = read_table(removal.dataset, one.base)
        return {
            name: made_column(one.write, name, entry, new, _left(entry, table, tasks))
            for name, entry in column_entries(one.base, removal.dataset).items()
        }


def _left(
    entry: ColumnEntry, table: ShardTable, tasks: Sequence[CutTask]
) -> Iterator[Values | StoredColumn]:
    """Yields the remaining values of each shard, or its file if unchanged."""
    dataset = tasks[0].write.output
    columns = read_column_table(dataset, entry, table)
    cut = {task.shard: task.records for task in tasks}
    for shard in range(len(table)):
        if shard in cut:
            values = read_values(dataset, entry.kind, columns, shard)
            yield np.delete(values, cut[shard], axis=0)
        else:
            yield columns.file(shard)
