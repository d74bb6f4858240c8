"""Files that no edition names: those of unfinished work, and garbage.

A write is over once it was committed or given up. Files of a write that is not over are
unfinished work, and stay. Files of a write that is over, and that no edition names, are
garbage. The description of a write and then its table are deleted last: as long as they
are there, the next command finds the rest.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import NamedTuple

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
    encode_names,
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
    LIST,
    OF_SHARDS,
    RESULT,
    SHARD,
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


def described_files(manifest: Manifest) -> set[str]:
    """Returns the files that describe the editions of a dataset, relative to it."""
    found: set[object] = set()
    for key, edition in manifest.known.items():
        found |= {*layout.split_paths(manifest.name, key), edition.table}
        found |= {removed.get("list") for _, removed in edition.removals()}
        found |= {column.get("table") for column in edition.columns.values()}
        found.add(edition.source.get("file_list"))
    return {path for path in found if isinstance(path, str)}


def named_shards(tables: Iterable[ShardTable]) -> Names:
    """Returns the shards of tables, encoded and sorted."""
    return np.sort(encode_names(path for table in tables for path in table.paths))


class _Left(NamedTuple):
    """Files that describe writes which are over and not named, and their write keys."""

    files: Mapping[Kind, Sequence[FileInfo]]
    keys: Collection[str]


class SplitFiles:
    """The files of a split, except those that its dataset names.

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
        """Returns whether a write is over, given its `layout.write_key`."""
        return is_over(self.manifest, key) if "." in key else self._plain_is_over

    @functools.cached_property
    def _plain_is_over(self) -> bool:
        """Whether the write with TFDS's plain names is over."""
        id_ = self._id_of(layout.job_path(self.manifest.name, self.name))
        return id_ is None or is_over(self.manifest, layout.write_key(self.name, id_))

    def _id_of(self, job: str) -> str | None:
        """Returns the id of the write that a file describes."""
        found = storage_for(self.output).load(layout.join(self.output, job))
        return None if found is None else id_in(found.data)

    def _walk(self, *kinds: Kind, prefix: str = "") -> Iterator[Found]:
        known = layout.parts_of(self.manifest.name, self.name)
        listings = self._listings
        return walk(self.output, kinds, known, listings=listings, prefix=prefix)

    def _mark_of(self, shard: str) -> str | None:
        return layout.shard_mark(shard, self.manifest.name, self.name)

    def unfinished(self, own: Collection[str] = ()) -> Iterator[tuple[str, str]]:
        """Yields files and directories of unfinished work, and the mark of each.

        Args:
            own: Keys of writes to leave out.
        """

        def found() -> Iterator[tuple[str, str]]:
            for one in self._walk(*DESCRIBING):
                yield one.path, layout.key_in(one.parts)
            for one in self._walk(SHARD, prefix=self._prefix):
                if (mark := self._mark_of(one.path)) is not None:
                    yield one.path, layout.write_key(self.name, mark)
            for key, tree in self._trees().items():
                yield layout.base_name(tree), key

        for path, key in found():
            if key not in own and not self.is_over(key):
                yield path, key.partition(".")[2]

    def unfinished_writes(self) -> frozenset[str]:
        """Returns the ids of the writes that are not finished."""
        plain = layout.job_path(self.manifest.name, self.name)
        ids = {mark or self._id_of(plain) or "" for _, mark in self.unfinished()}
        return frozenset(ids - {""})

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
        named, columns, keys = described_files(self.manifest), list[Found](), set[str]()
        files: dict[Kind, list[FileInfo]] = {kind: [] for kind in DESCRIBING}
        for one in self._walk(*DESCRIBING, COLUMN):
            key = layout.key_in(one.parts)
            if one.kind is COLUMN:
                columns.append(one)
            elif self.is_over(key) and one.path not in named:
                files[one.kind].append(one.info)
                if key not in self.manifest.known:
                    keys.add(key)
        files[COLUMN] = [*self._lost(columns, described_files)]
        return _Left(files, keys)

    def garbage(
        self, *, named: Names | None = None, quick: bool = False
    ) -> Iterator[Iterable[FileInfo]]:
        """Yields garbage in steps, each to be deleted before the next.

        Files that were only indexed are left, whatever their names.

        Args:
            named: All shards that the dataset names, if already read.
            quick: Whether to list shards and values only if a description of them is
                left.

        Raises:
            InvalidDatasetError: The table of a named edition cannot be read, so its
                files are not known.
            StorageError: The same, or files cannot be listed.
        """
        files, keys = self._left
        yield files[LIST]
        if files[COLUMN] or not quick:
            yield self._lost(
                self._walk(VALUES),
                lambda manifest: set().union(
                    *(named_values(self.output, s) for s in manifest.splits.values())
                ),
            )
        if keys or not quick:
            yield self._lost_shards(named)
        yield from (files[COLUMN], files[JOB], files[TABLE])

    def delete_garbage(self) -> None:
        """Deletes the garbage that something still describes.

        Raises as `garbage` does.
        """
        for step in self.garbage(quick=True):
            delete_all(step)
        for key in self._left.keys:
            delete_tree(layout.temporary_dir(self.output, self.manifest.name, key))

    def _lost(
        self, listed: Iterable[Found], named_by: Callable[[Manifest], Collection[str]]
    ) -> Iterator[FileInfo]:
        """Yields files of columns that nothing names, and no unfinished work will name.

        It lists files, then unfinished work, then reads what is committed, in this
        order: work is described from before its first file until its commit.
        """
        if not (found := [*listed]):
            return
        named = named_by(self.manifest)
        lost = [one for one in found if one.path not in named]
        begun = self._begun() if lost else set()
        lost = [one for one in lost if one.parts["KEY"] not in begun]
        now = read_manifest(self.output) if lost else None
        if now is not None and now != self.manifest:
            named = named_by(now)
        yield from (one.info for one in lost if one.path not in named)

    def _begun(self) -> set[str]:
        """Returns the ids of the unfinished writes of all splits."""
        known = {"NAME": self.manifest.name}
        return {
            self._id_of(one.path) or ""
            for one in walk(self.output, (JOB,), known, listings=self._listings)
            if one.parts["SPLIT"] in self.manifest.splits
            and not is_over(self.manifest, layout.key_in(one.parts))
        }

    def _lost_shards(self, named: Names | None) -> Iterator[FileInfo]:
        if named is None:
            known = self.manifest.known.values()
            named = named_shards(read_table(self.output, edition) for edition in known)
        listed, given_up = self._listed_shards(), self._given_up()
        ids = given_up - {""}

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
            return any(id_ in shard for id_ in ids) or (
                next(_jobs(self.output, [shard]), "") in ids
            )

        only = not given_up and all(one.startswith(self._prefix) for one in listed)
        prefix = self._prefix if only else ""
        for block in blocks(self._walk(*OF_SHARDS, prefix=prefix)):
            shards = [one.parts["SHARD"] for one in block]
            kept = find_names(named, encode_names(shards)) >= 0
            for one, shard, keep in zip(block, shards, kept, strict=True):
                if not keep and is_lost(shard):
                    yield one.info

    def _listed_shards(self) -> set[str]:
        """Returns the shards without a mark in leftover tables."""
        split, found = self.manifest.splits.get(self.name), set[str]()
        known = () if split is None else split.known.values()
        if any("indexed" in edition.source for edition in known):
            return found
        for info in self._left.files[TABLE]:
            # Shards of a damaged one are found if TFDS would name them so.
            with contextlib.suppress(InvalidDatasetError, StorageError):
                data = storage_for(self.output).read(info.path)
                paths = ShardTable.decode(data, where=info.path).paths
                plain = [path for path in paths if not self._mark_of(path)]
                if next(_jobs(self.output, plain), "") != INDEXED_JOB:
                    found.update(plain)
        return found

    def _given_up(self) -> set[str]:
        """Returns marks and ids of abandoned writes that have no table of shards."""
        own, name = layout.join(self.output, ""), self.manifest.name
        tables, found = {info.path for info in self._left.files[TABLE]}, set[str]()
        for info in self._left.files[JOB]:
            path = info.path.removeprefix(own)
            parts = JOB.parse(path, NAME=name, SPLIT=self.name) or {}
            id_, mark = self._id_of(path), parts.get("WRITE", "")
            table = layout.table_path(name, layout.write_key(self.name, mark))
            over = id_ and is_over(self.manifest, layout.write_key(self.name, id_))
            if id_ and over and own + table not in tables:
                found |= {id_, mark}
        return found

    def delete_strays(self, key: str) -> None:
        """Deletes files named like those of an edition that do not belong to it.

        An abandoned attempt may have published them at the last moment. It deletes none
        of a first edition, whose names others may use.

        Args:
            key: The edition's `layout.write_key`.
        """
        edition = self.manifest.known.get(key)
        if "." in key and edition is not None:
            shards = {*read_table(self.output, edition).paths}
            prefix = layout.shard_prefix(self.manifest.name, key)
            found = self._walk(*OF_SHARDS, prefix=prefix)
            delete_all(one.info for one in found if one.parts["SHARD"] not in shards)


def splits_of(
    output: str, manifest: Manifest, *, listings: Listings | None = None
) -> list[str]:
    """Returns a dataset's splits, and those that only unfinished work describes."""
    jobs = walk(output, (JOB,), {"NAME": manifest.name}, listings=listings)
    begun = {found.parts["SPLIT"] for found in jobs}
    return sorted(begun | manifest.splits.keys())


def is_left(output: str, shard: str, mark: str) -> bool:
    """Returns whether a job left a shard that no edition has.

    Others may use TFDS's plain names, and names of indexed files: for these, the
    shard's index tells, which only jobs write.

    Args:
        output: The dataset's directory.
        shard: The shard, named like one of the split.
        mark: The mark in its name.
    """
    return bool(mark) or next(_jobs(output, [shard]), INDEXED_JOB) != INDEXED_JOB


def _jobs(output: str, shards: Iterable[str]) -> Iterator[str]:
    """Yields the jobs of the shards that have an index.

    Shards that their command did not name are all indexed files, or none is.
    """
    waiting = iter(shards)
    # The first decides, unless a deletion was killed that had reached the indexes.
    count = 1
    while some := list(itertools.islice(waiting, count)):
        count = _LOOKED_AT
        paths = [layout.join(output, layout.index_path(shard)) for shard in some]
        for path, content in zip(paths, load_all(paths), strict=True):
            if content is not None:
                with contextlib.suppress(InvalidDatasetError):
                    yield parse_index(content.data, path=path).report().job


def delete_leftovers(output: str, name: str, keys: Iterable[str]) -> None:
    """Deletes what killed commands left of writes.

    A command that still runs loses nothing, except a shard that another machine is
    making in a shared file system: that command ends with an error. `verify` names what
    cannot be deleted.

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
    """Deletes all that commands left beside a finished split.

    The next command finds what cannot be deleted.

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
    dataset: str, manifest: Manifest, listings: Listings, named: Names | None = None
) -> Iterator[tuple[str, bool]]:
    """Yields files that no edition names, or that are being written.

    With each comes whether it is of unfinished work, which only `clean --unfinished`
    deletes.

    In no particular order: what `delete_leftovers` and a cleaning would delete, and
    files of unfinished work. Kept editions are not leftovers.

    Args:
        dataset: The dataset's directory.
        manifest: What it says of itself.
        listings: Listings of its files.
        named: All shards that it names, if already read.
    """
    if named is not None:
        listings = listings.without(named)
    storage, own = storage_for(dataset), layout.join(dataset, "")
    trees = set[str]()  # Directories of unfinished work.
    for directory in (RESULT.directory,) if storage.remote else DIRECTORIES:
        for info in listings.scan(directory, "."):
            path = info.path.removeprefix(own)
            if is_unfinished(layout.base_name(path)) or RESULT.parse(path):
                yield path, False
    for split in splits_of(dataset, manifest, listings=listings):
        files = SplitFiles(dataset, manifest, split, listings)
        # An unreadable table is a finding elsewhere, and nothing is deleted then.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            for info in itertools.chain.from_iterable(files.garbage(named=named)):
                yield info.path.removeprefix(own), False
        for path, _ in files.unfinished():
            if TEMPORARY.parse(f"{path}/"):
                trees.add(path)
            else:
                yield path, True
    # Files in such directories, even of splits that nothing describes yet.
    prefix = layout.temporary_dir("", manifest.name, "")
    for info in storage.scan(dataset, deep=True, prefix=prefix):
        path = info.path.removeprefix(own)
        yield path, path.partition("/")[0] in trees


def files_in(tree: str) -> list[FileInfo]:
    """Returns the files in a directory of unfinished files, in order."""
    if os.path.islink(tree):  # What it leads to is not in the dataset.
        return []
    return sorted(storage_for(tree).scan(tree, deep=True))
