"""Files that no edition names: those of unfinished work, and garbage.

A write is over once it was committed or given up. What is there of another one is
unfinished work, and stays. What is there of one that is over, and no edition names, is
garbage. The table of a write is deleted last, and before it its description: as long as
they are there, whoever comes next finds what is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Self

import numpy as np

from gristmill.dataset.base.errors import (
    GristmillError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.commit.listings import (
    Found,
    Listings,
    Names,
    blocks,
    check_no_link,
    decode_name,
    encode_names,
    files_of_shards,
    find_names,
    walk,
)
from gristmill.dataset.commit.write import id_in
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import named_values
from gristmill.dataset.metadata.layout import (
    COLUMN,
    DESCRIBING,
    DIRECTORIES,
    JOB,
    RESULT,
    SHARD_NAME,
    TABLE,
    TEMPORARY,
    VALUES,
    Kind,
    parser,
)
from gristmill.dataset.metadata.manifest import (
    Manifest,
    is_over,
    read_manifest,
    read_table,
)
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.metadata.shard_report import INDEXED_JOB
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo, is_unfinished
from gristmill.dataset.storage.directory_lock import (
    delete_tree,
    delete_unfinished,
    is_in_use,
)
from gristmill.dataset.storage.lookup import delete_all, load_all, storage_for

_LOOKED_AT = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedFiles:
    """The files that a dataset names. Takes as much memory as the names of its shards.

    Attributes:
        described: The files that describe editions, relative to the dataset.
        shards: The shards of all editions, encoded and sorted.
    """

    described: frozenset[str]
    shards: Names

    @classmethod
    def of(cls, manifest: Manifest, tables: Iterable[ShardTable]) -> Self:
        """Returns the files that a dataset names.

        Args:
            manifest: What `dataset.json` says.
            tables: The tables of all editions in `Manifest.known`.
        """
        described: set[object] = set()
        for key, edition in manifest.known.items():
            described |= {*layout.split_paths(manifest.name, key), edition.table}
            described |= {removed.get("list") for _, removed in edition.removals()}
            described |= {column.get("table") for column in edition.columns.values()}
            described.add(edition.source.get("file_list"))
        names = [np.empty(0, "S1"), *(encode_names(table.paths) for table in tables)]
        return cls(
            described=frozenset(path for path in described if isinstance(path, str)),
            shards=np.sort(np.concatenate(names)),
        )

    def has_shards(self, shards: Iterable[str]) -> list[bool]:
        """Returns whether each of some shards is named."""
        rows = find_names(self.shards, encode_names(shards))
        found: list[bool] = (rows >= 0).tolist()
        return found


@dataclasses.dataclass
class _Left:
    """Files that describe writes which are over and not named, and their write keys."""

    lists: list[FileInfo] = dataclasses.field(default_factory=list)
    jobs: list[FileInfo] = dataclasses.field(default_factory=list)
    tables: list[FileInfo] = dataclasses.field(default_factory=list)
    columns: list[FileInfo] = dataclasses.field(default_factory=list)
    keys: set[str] = dataclasses.field(default_factory=set)


class SplitFiles:
    """The files of a split, but for those that its dataset names.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        listings: Listings of its files; by default they are listed when needed.
    """

    def __init__(
        self,
        output: str,
        manifest: Manifest,
        name: str,
        listings: Listings | None = None,
    ):
        self.output, self.manifest, self.name = output, manifest, name
        self._listings = listings
        self._prefix = layout.shard_prefix(manifest.name, name)

    def is_over(self, key: str) -> bool:
        """Returns whether no work is to come on a write, by its `layout.write_key`."""
        return is_over(self.manifest, key) if "." in key else self._plain_is_over

    @functools.cached_property
    def _plain_is_over(self) -> bool:
        """Whether it is so of the write that has TFDS's plain names."""
        id_ = self._id_of(layout.job_path(self.manifest.name, self.name))
        return id_ is None or is_over(self.manifest, layout.write_key(self.name, id_))

    def _id_of(self, job: str) -> str | None:
        """Returns the id of the write that a file describes."""
        found = storage_for(self.output).load(layout.join(self.output, job))
        return None if found is None else id_in(found.data)

    def _walk(self, *kinds: Kind) -> Iterator[Found]:
        known = layout.parts_of(self.manifest.name, self.name)
        return walk(self.output, kinds, known, listings=self._listings)

    def _mark_of(self, shard: str) -> str | None:
        return layout.shard_mark(shard, self.manifest.name, self.name)

    def unfinished(self, own: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Yields files and directories of unfinished work, and the mark of each.

        Args:
            own: Keys of writes that are left out.
        """

        def is_begun(key: str) -> bool:
            return key not in own and not self.is_over(key)

        for one in self._walk(*DESCRIBING):
            if is_begun(layout.key_in(one.parts)):
                yield one.path, one.parts.get("WRITE", "")
        listed = self._listings or storage_for(self.output)
        place = "" if self._listings else self.output
        for info in listed.scan(place, prefix=self._prefix):
            file = info.path.rpartition("/")[2]
            mark = self._mark_of(file)
            if mark is not None and is_begun(layout.write_key(self.name, mark)):
                yield file, mark
        for key, tree in self._trees().items():
            if is_begun(key):
                yield layout.base_name(tree), key.partition(".")[2]

    def unfinished_writes(self) -> frozenset[str]:
        """Returns the ids of the writes that are not finished."""
        marks = {mark for _, mark in self.unfinished()}
        if "" in marks:
            job = layout.job_path(self.manifest.name, self.name)
            marks.add(self._id_of(job) or "")
        return frozenset(marks - {""})

    def _trees(self) -> dict[str, str]:
        """Returns the directories of unfinished files, by write key."""
        found, name, own = {}, self.manifest.name, layout.join(self.output, "")
        begin = layout.temporary_dir("", name, self.name)
        for info in storage_for(self.output).scan(self.output, deep=True, prefix=begin):
            directory = info.path.removeprefix(own).partition("/")[0]
            if parts := TEMPORARY.parse(f"{directory}/", NAME=name, SPLIT=self.name):
                found[layout.key_in(parts)] = own + directory
        return found

    def idle_trees(self) -> list[str]:
        """Returns directories of unfinished files in which no process works."""
        trees = self._trees()
        for key in self._left.keys:
            trees[key] = layout.temporary_dir(self.output, self.manifest.name, key)
        return [
            tree
            for key, tree in sorted(trees.items())
            if self.is_over(key) and not is_in_use(tree)
        ]

    @property
    def has_garbage(self) -> bool:
        """Whether something describes a write whose files are garbage."""
        return bool(self._left.keys)

    @functools.cached_property
    def _left(self) -> _Left:
        named = NamedFiles.of(self.manifest, ()).described
        left, columns = _Left(), list[Found]()
        of_kind = {TABLE: left.tables, JOB: left.jobs}
        for one in self._walk(*DESCRIBING, COLUMN):
            key = layout.key_in(one.parts)
            if one.kind is COLUMN:
                columns.append(one)
            elif self.is_over(key) and one.path not in named:
                of_kind.get(one.kind, left.lists).append(one.info)
                if key not in self.manifest.known:
                    left.keys.add(key)
        left.columns += self._lost(
            columns,
            lambda manifest: NamedFiles.of(manifest, ()).described if manifest else (),
        )
        return left

    def garbage(
        self, *, named: NamedFiles | None = None, quick: bool = False
    ) -> Iterator[Iterable[FileInfo]]:
        """Yields what can be deleted, in steps: each is to go before the next.

        Files that were indexed and not written are left, whatever their names.

        Args:
            named: All that the dataset names, where that was read.
            quick: Whether to list shards and values only where a description of them
                is left.

        Raises:
            InvalidDatasetError: The table of an edition that it names cannot be read:
                what belongs to that is not known.
            StorageError: The same, or files cannot be listed.
        """
        left = self._left
        yield left.lists
        if left.columns or not quick:
            yield self._lost_values()
        if left.keys or not quick:
            yield self._lost_shards(named)
        yield from (left.columns, left.jobs, left.tables)

    def delete_garbage(self) -> None:
        """Deletes what is garbage, as far as something describes it.

        Raises as `garbage` does.
        """
        for step in self.garbage(quick=True):
            delete_all(step)
        for key in self._left.keys:
            delete_tree(layout.temporary_dir(self.output, self.manifest.name, key))

    def _lost_values(self) -> Iterator[FileInfo]:
        found = walk(self.output, (VALUES,), listings=self._listings)
        if (first := next(found, None)) is not None:
            yield from self._lost(itertools.chain((first,), found), self._named_values)

    def _lost(
        self,
        listed: Iterable[Found],
        named_by: Callable[[Manifest | None], Collection[str]],
    ) -> Iterator[FileInfo]:
        """Yields files of columns that nothing names, and nobody is about to name.

        In this order: files are listed, then who is at work, then what is committed.
        Work is described before its first file, and until it is committed.
        """
        named = named_by(self.manifest)
        lost = [one for one in listed if one.path not in named]
        begun = self._begun() if lost else set()
        lost = [one for one in lost if one.parts["KEY"] not in begun]
        if lost and (now := read_manifest(self.output)) not in (None, self.manifest):
            named = named_by(now)
        yield from (one.info for one in lost if one.path not in named)

    def _named_values(self, manifest: Manifest | None) -> set[str]:
        splits = manifest.splits.values() if manifest else ()
        return {path for split in splits for path in named_values(self.output, split)}

    def _begun(self) -> set[str]:
        """Returns the ids of the unfinished writes of all splits."""
        known = {"NAME": self.manifest.name}
        return {
            self._id_of(one.path) or ""
            for one in walk(self.output, (JOB,), known, listings=self._listings)
            if one.parts["SPLIT"] in self.manifest.splits
            and not is_over(self.manifest, layout.key_in(one.parts))
        }

    def _lost_shards(self, named: NamedFiles | None) -> Iterator[FileInfo]:
        if named is None:
            known = self.manifest.known.values()
            tables = [read_table(self.output, edition) for edition in known]
            named = NamedFiles.of(self.manifest, tables)
        listed, given_up = self._listed_shards(), self._given_up()

        @functools.cache
        def is_lost(shard: str) -> bool:
            mark = self._mark_of(shard)
            if mark:
                return self.is_over(layout.write_key(self.name, mark))
            if shard in listed:
                return True
            if mark == "":
                # Nobody else had these names when a write with them began.
                anew = "" in given_up or is_left(self.output, shard, "")
                return self.is_over(self.name) and anew
            if parser(SHARD_NAME)(shard):  # It is of another split.
                return False
            ids = given_up - {""}
            return any(id_ in shard for id_ in ids) or (
                next(_jobs(self.output, [shard]), "") in ids
            )

        only = not given_up and all(one.startswith(self._prefix) for one in listed)
        files = files_of_shards(
            self.output, self._prefix if only else "", listings=self._listings
        )
        for block in blocks(files):
            kept = named.has_shards(shard for _, shard in block)
            for (info, shard), keep in zip(block, kept, strict=True):
                if not keep and is_lost(shard):
                    yield info

    def _listed_shards(self) -> set[str]:
        """Returns the shards of tables that are left, but for those with a mark."""
        split, found = self.manifest.splits.get(self.name), set[str]()
        known = () if split is None else split.known.values()
        if any("indexed" in edition.source for edition in known):
            return found
        for info in self._left.tables:
            # Shards of a damaged one are found if TFDS would name them so.
            with contextlib.suppress(InvalidDatasetError, StorageError):
                data = storage_for(self.output).read(info.path)
                paths = ShardTable.decode(data, where=info.path).paths
                plain = [path for path in paths if not self._mark_of(path)]
                if next(_jobs(self.output, plain), "") != INDEXED_JOB:
                    found.update(plain)
        return found

    def _given_up(self) -> set[str]:
        """Returns marks and ids of writes given up that have no table of shards."""
        own, tables = layout.join(self.output, ""), {t.path for t in self._left.tables}
        found = set()
        for info in self._left.jobs:
            path = info.path.removeprefix(own)
            parts = JOB.parse(path, NAME=self.manifest.name, SPLIT=self.name) or {}
            id_, mark = self._id_of(path), parts.get("WRITE", "")
            table = layout.table_path(
                self.manifest.name, layout.write_key(self.name, mark)
            )
            over = id_ and is_over(self.manifest, layout.write_key(self.name, id_))
            if id_ and over and own + table not in tables:
                found |= {id_, mark}
        return found

    def delete_strays(self, key: str) -> None:
        """Deletes files named like those of an edition that do not belong to it.

        An attempt that was given up may have published them at the last moment. None of
        a first edition, as others may use its names.

        Args:
            key: The edition's `layout.write_key`.
        """
        edition = self.manifest.known.get(key)
        if "." in key and edition is not None:
            shards = {*read_table(self.output, edition).paths}
            prefix = layout.shard_prefix(self.manifest.name, key)
            files = files_of_shards(self.output, prefix)
            delete_all(info for info, shard in files if shard not in shards)


def splits_of(
    output: str, manifest: Manifest, *, listings: Listings | None = None
) -> list[str]:
    """Returns the splits of a dataset, and those of which there is unfinished work."""
    jobs = walk(output, (JOB,), {"NAME": manifest.name}, listings=listings)
    begun = {found.parts["SPLIT"] for found in jobs}
    return sorted(begun | manifest.splits.keys())


def is_left(output: str, shard: str, mark: str) -> bool:
    """Returns whether a shard that no edition has is one that a job has left.

    Others may use TFDS's plain names, and those of files that are indexed: there, the
    index of the shard tells it, which only jobs write.

    Args:
        output: The dataset's directory.
        shard: The shard, which has the name of one of the split.
        mark: The mark in its name.
    """
    return bool(mark) or next(_jobs(output, [shard]), INDEXED_JOB) != INDEXED_JOB


def _jobs(output: str, shards: Iterable[str]) -> Iterator[str]:
    """Yields the jobs of shards, as far as they have an index.

    Shards that their command did not name are all indexed files, or none is.
    """
    waiting = iter(shards)
    # The first tells it, unless a deletion was killed that had come to the indexes.
    count = 1
    while some := list(itertools.islice(waiting, count)):
        count = _LOOKED_AT
        paths = [layout.join(output, layout.index_path(shard)) for shard in some]
        for path, content in zip(paths, load_all(paths), strict=True):
            if content is not None:
                with contextlib.suppress(InvalidDatasetError):
                    yield parse_index(content.data, path=path).report().job


def delete_leftovers(output: str, name: str, keys: Iterable[str]) -> None:
    """Deletes what killed commands left of writes that are over.

    Nothing of a command that still runs is lost, except, where machines share a file
    system, a shard that another machine makes of these writes: it ends with an error.
    What cannot be deleted stays, and a verification names it.

    Args:
        output: The dataset's directory.
        name: Its name.
        keys: Splits, and writes by their `layout.write_key`.
    """
    for directory in DIRECTORIES:
        with contextlib.suppress(StorageError, InvalidDatasetError):
            check_no_link(layout.join(output, directory), directory)
            delete_unfinished(layout.join(output, directory))
    for key in keys:
        if "." not in key:
            known = {"NAME": name, "SPLIT": key}
            with contextlib.suppress(StorageError, InvalidDatasetError):
                delete_all(found.info for found in walk(output, (RESULT,), known))
        with contextlib.suppress(StorageError):
            delete_tree(layout.temporary_dir(output, name, key))


def tidy_split(output: str, manifest: Manifest, name: str) -> None:
    """Deletes all that commands left beside a split that is as they were to make it.

    What cannot be deleted is found by the next command.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
    """
    delete_leftovers(output, manifest.name, write_keys(manifest, name))
    with contextlib.suppress(GristmillError):
        SplitFiles(output, manifest, name).delete_garbage()


def write_keys(manifest: Manifest, name: str) -> set[str]:
    """Returns a split, and the writes of its editions by `layout.write_key`."""
    known = manifest.splits[name].known.values()
    return {name, *(layout.write_key(name, part.write) for part in known)}


def find_leftovers(
    dataset: str,
    manifest: Manifest,
    listings: Listings,
    named: NamedFiles | None = None,
) -> Iterator[str]:
    """Yields files that no edition names, or that are being written.

    In no certain order: what `delete_leftovers` and a cleaning would delete, and the
    files of work that is not finished. Editions that are kept are not leftovers.

    Args:
        dataset: The dataset's directory.
        manifest: What it says of itself.
        listings: Listings of its files.
        named: All that it names, where that was read.
    """
    storage = storage_for(dataset)
    for directory in (RESULT.directory,) if storage.remote else DIRECTORIES:
        for name in listings.of(directory).with_prefix("."):
            file = decode_name(name)
            path = layout.join(directory, file)
            if is_unfinished(file) or RESULT.parse(path):
                yield path
    own = layout.join(dataset, "")
    for split in splits_of(dataset, manifest, listings=listings):
        files = SplitFiles(dataset, manifest, split, listings)
        # Where a table cannot be read, that is a finding, and nothing is deleted.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            for info in itertools.chain.from_iterable(files.garbage(named=named)):
                yield info.path.removeprefix(own)
        for path, _ in files.unfinished():
            if not TEMPORARY.parse(f"{path}/"):
                yield path
    # What is in such directories, also of splits that nothing describes yet.
    prefix = layout.temporary_dir("", manifest.name, "")
    for info in storage.scan(dataset, deep=True, prefix=prefix):
        yield info.path.removeprefix(own)


def files_in(tree: str) -> list[FileInfo]:
    """Returns the files in a directory of unfinished files, in order."""
    if os.path.islink(tree):  # What it leads to is not in the dataset.
        return []
    return sorted(storage_for(tree).scan(tree, deep=True))
