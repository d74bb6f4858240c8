"""Files of editions that a dataset names no more: found, and deleted.

A write is garbage when it was committed or given up, and `dataset.json` names no
edition of it, or when nothing describes it. Other writes are not finished. The table of
a write is deleted last, and before it its description: as long as they are there,
whoever comes next finds what is left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import itertools
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np

from gristmill.dataset.base.errors import (
    GristmillError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.commit.listings import (
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
from gristmill.dataset.commit.unfinished import (
    Over,
    splits_of,
    unfinished_files,
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
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo, is_unfinished
from gristmill.dataset.storage.directory_lock import delete_tree, delete_unfinished
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
        described: set[str] = set()
        for key, edition in manifest.known.items():
            paths = layout.job_path, layout.inputs_path
            described |= {edition.table, *(path(manifest.name, key) for path in paths)}
            lists = [removed.get("list") for _, removed in edition.removals()]
            others = edition.source.get("file_list"), *lists
            others += (*(column.get("table") for column in edition.columns.values()),)
            described |= {path for path in others if isinstance(path, str)}
        names = [np.empty(0, "S1"), *(encode_names(table.paths) for table in tables)]
        return cls(
            described=frozenset(described), shards=np.unique(np.concatenate(names))
        )

    def has_shards(self, shards: Iterable[str]) -> list[bool]:
        """Returns whether each of some shards is named."""
        rows = find_names(self.shards, encode_names(shards))
        found: list[bool] = (rows >= 0).tolist()
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Garbage:
    """What can be deleted of one split.

    Attributes:
        described: Files that describe editions which are not named, but for these:
        jobs: What is said of their writes.
        tables: Their tables.
        columns: Tables of columns that are not named.
        keys: The `layout.write_key` of each of these editions.
        written: Those of them that more than a table describes: what is indexed has
            nothing else.
    """

    described: tuple[FileInfo, ...]
    jobs: tuple[FileInfo, ...]
    tables: tuple[FileInfo, ...]
    columns: tuple[FileInfo, ...]
    keys: frozenset[str]
    written: frozenset[str]


def garbage_editions(
    output: str, manifest: Manifest, name: str, *, listings: Listings | None = None
) -> Garbage:
    """Finds editions of a split that are not named, by the files that describe them.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        listings: As in `walk`.
    """
    named = NamedFiles.of(manifest, ()).described
    described: list[FileInfo] = []
    jobs: list[FileInfo] = []
    tables: list[FileInfo] = []
    columns: dict[str, list[FileInfo]] = {}
    begun = set()
    keys, written = set(), set()
    kinds = (*DESCRIBING, COLUMN)
    known = layout.parts_of(manifest.name, name)
    is_over = Over(output, manifest, name)
    for info, path, kind, parts in walk(output, kinds, known, listings=listings):
        key = layout.key_in(parts)
        if kind is COLUMN and path not in named:
            columns.setdefault(parts["KEY"], []).append(info)
        elif kind is JOB and not is_over(key):
            begun.add(parts.get("WRITE", ""))
        elif path not in named and is_over(key):
            {TABLE: tables, JOB: jobs}.get(kind, described).append(info)
            if key not in manifest.known:
                keys.add(key)
                if kind is not TABLE:
                    written.add(key)
    lost = [tables for one, tables in columns.items() if one not in begun]
    return Garbage(
        described=tuple(described),
        jobs=tuple(jobs),
        tables=tuple(tables),
        columns=tuple(itertools.chain(*lost)),
        keys=frozenset(keys),
        written=frozenset(written),
    )


def find_garbage(
    output: str,
    manifest: Manifest,
    name: str,
    *,
    listings: Listings | None = None,
    named: NamedFiles | None = None,
) -> Iterator[FileInfo]:
    """Yields the files of a split that can be deleted, in the order to delete them.

    Files that were indexed and not written are left, whatever their names.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        listings: As in `walk`.
        named: All that the dataset names, where that was read.

    Raises:
        InvalidDatasetError: The table of an edition that it names cannot be read: what
            belongs to that is not known.
        StorageError: The same, or files cannot be listed.
    """
    found = garbage_editions(output, manifest, name, listings=listings)
    yield from found.described
    yield from _lost_values(output, manifest, listings)
    yield from _lost_shards(output, manifest, name, found, listings, named)
    yield from found.columns
    yield from found.jobs
    yield from found.tables


def _lost_values(
    output: str, manifest: Manifest, listings: Listings | None
) -> Iterator[FileInfo]:
    """Yields the files of values that no table names, and nobody is about to name.

    In this order: values are listed, then who is at work, then what is committed. Work
    is described before its first file, and until it is committed.
    """
    found = walk(output, (VALUES,), listings=listings)
    if (first := next(found, None)) is None:
        return
    named = _named_values(output, manifest)
    lost = [one for one in itertools.chain((first,), found) if one.path not in named]
    begun = _begun(output, manifest, listings) if lost else set[str]()
    lost = [one for one in lost if one.parts["KEY"] not in begun]
    if lost and (now := read_manifest(output)) not in (None, manifest):
        named = _named_values(output, now)
    yield from (one.info for one in lost if one.path not in named)


def _named_values(output: str, manifest: Manifest) -> set[str]:
    splits = manifest.splits.values()
    return set[str]().union(*(named_values(output, split) for split in splits))


def _begun(output: str, manifest: Manifest, listings: Listings | None) -> set[str]:
    """Returns the keys of the values that unfinished work writes."""
    begun = set()
    for name in manifest.splits:
        known = layout.parts_of(manifest.name, name)
        for one in walk(output, (JOB,), known, listings=listings):
            if not is_over(manifest, layout.key_in(one.parts)):
                content = storage_for(output).load(one.info.path)
                begun.add((content and id_in(content.data)) or "")
    return begun


def _lost_shards(
    output: str,
    manifest: Manifest,
    name: str,
    garbage: Garbage,
    listings: Listings | None = None,
    named: NamedFiles | None = None,
) -> Iterator[FileInfo]:
    split = manifest.splits.get(name)
    if named is None:
        tables = [read_table(output, edition) for edition in manifest.known.values()]
        named = NamedFiles.of(manifest, tables)
    lost: set[str] = set()
    for info in () if split and _is_indexed(split) else garbage.tables:
        # Shards of a damaged one are found if TFDS would name them so.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            data = storage_for(output).read(info.path)
            paths = ShardTable.decode(data, where=info.path).paths
            path = info.path.removeprefix(layout.join(output, ""))
            parts = TABLE.parse(path, NAME=manifest.name, SPLIT=name) or {}
            own, others = _named_by(paths, parts.get("WRITE", ""), manifest.name, name)
            lost.update(own)
            if next(_jobs(output, others), "") != INDEXED_JOB:
                lost.update(others)
    left: dict[str, bool] = {}
    is_over = Over(output, manifest, name)
    given_up = _given_up(output, manifest, name, garbage)
    prefix = layout.shard_prefix(manifest.name, name)
    prefix *= not given_up and all(shard.startswith(prefix) for shard in lost)
    for block in blocks(files_of_shards(output, prefix, listings=listings)):
        kept = named.has_shards(shard for _, shard in block)
        for (info, shard), keep in zip(block, kept, strict=True):
            if keep:
                continue
            if shard not in left:
                mark = layout.shard_mark(shard, manifest.name, name)
                # Nobody else had TFDS's plain names when a write with them began.
                left[shard] = shard in lost or (
                    _is_of(output, shard, given_up - {""})
                    if mark is None
                    else is_over(layout.write_key(name, mark))
                    and (mark in given_up or is_left(output, shard, mark))
                )
            if left[shard]:
                yield info


def _given_up(output: str, manifest: Manifest, name: str, garbage: Garbage) -> set[str]:
    """Returns marks and ids of writes given up that have no table of their shards."""
    place = layout.join(output, "")
    tables = {info.path for info in garbage.tables}
    marks = set()
    for info in garbage.jobs:
        parts = JOB.parse(info.path.removeprefix(place), NAME=manifest.name, SPLIT=name)
        key = layout.key_in(parts or {"SPLIT": name})
        content = storage_for(output).load(info.path)
        id_ = None if content is None else id_in(content.data)
        if (
            id_
            and is_over(manifest, layout.write_key(name, id_))
            and layout.join(output, layout.table_path(manifest.name, key)) not in tables
        ):
            marks |= {id_, key.partition(".")[2]}
    return marks


def _is_of(output: str, shard: str, ids: set[str]) -> bool:
    """Returns whether a shard without a name of TFDS's is of one of some writes."""
    if parser(SHARD_NAME)(shard):
        return False
    return any(id_ in shard for id_ in ids) or next(_jobs(output, [shard]), "") in ids


def _is_indexed(split: Split) -> bool:
    return any("indexed" in edition.source for edition in split.known.values())


def is_left(output: str, shard: str, mark: str) -> bool:
    """Returns whether a shard that no edition has is one that a job has left.

    Others may use TFDS's plain names, and those of files that are indexed: there, the
    index of the shard tells it, which only jobs write.

    Args:
        output: The dataset's directory.
        shard: The shard, which has the name of one of the split.
        mark: The mark in its name.
    """
    if mark:
        return True
    return next(_jobs(output, [shard]), INDEXED_JOB) != INDEXED_JOB


def _named_by(
    paths: Iterable[str], mark: str, name: str, split: str
) -> tuple[list[str], list[str]]:
    """Returns the shards of a table that its edition alone can have named, and others.

    Others may use the names of a first edition.
    """
    own: list[str] = []
    others: list[str] = []
    for path in paths:
        named = layout.shard_mark(path, name, split)
        (own if mark and named == mark else others).append(path)
    return own, others


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


def delete_garbage(output: str, manifest: Manifest, name: str) -> None:
    """Deletes the files of editions of a split that a dataset does not name.

    Where no file describes such an edition, nothing is listed but those that do.

    Raises as `find_garbage` does.
    """
    found = garbage_editions(output, manifest, name)
    storage = storage_for(output)
    delete_all(found.described)
    if found.columns:
        delete_all(_lost_values(output, manifest, None))
    delete_all(found.columns)
    if found.keys:
        delete_all(_lost_shards(output, manifest, name, found))
        for key in found.keys:
            if not storage.remote:
                delete_tree(layout.temporary_dir(output, manifest.name, key))
    delete_all(found.jobs)
    delete_all(found.tables)


def delete_strays(output: str, manifest: Manifest, key: str) -> None:
    """Deletes shards named like those of an edition that do not belong to it.

    Those who had claimed the edition before may have published one at the last moment.
    Nothing of a first edition is deleted, as others may use its names.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        key: The edition, which was committed just now.
    """
    _, mark = layout.parse_write_key(key)
    edition = manifest.known.get(key)
    if not mark or edition is None:
        return
    shards = {*read_table(output, edition).paths}
    files = files_of_shards(output, layout.shard_prefix(manifest.name, key))
    delete_all(i for i, shard in files if shard not in shards)


def delete_leftovers(output: str, name: str, splits: Iterable[str]) -> None:
    """Deletes what killed commands left of splits that are committed.

    Nothing of a command that still runs is lost, except, where machines share a file
    system, a shard that another machine makes of these splits: it ends with an error.
    What cannot be deleted stays, and a verification names it: the splits are committed.

    Args:
        output: The dataset's directory.
        name: Its name.
        splits: Splits that are committed.
    """
    storage = storage_for(output)
    for directory in DIRECTORIES:
        with contextlib.suppress(StorageError, InvalidDatasetError):
            check_no_link(layout.join(output, directory), directory)
            delete_unfinished(layout.join(output, directory))
    place = glob.escape(output)
    for split in splits:
        results = layout.join(place, layout.result_path(name, split, "?" * 16))
        with contextlib.suppress(StorageError):
            delete_all(storage.match(results))
        if not storage.remote:
            with contextlib.suppress(StorageError):
                delete_tree(layout.temporary_dir(output, name, split))


def tidy_split(output: str, manifest: Manifest, name: str) -> None:
    """Deletes all that commands left beside a split that is as they were to make it.

    That is what `delete_leftovers` deletes, parts that a `Writer` has made, and what
    was replaced. What cannot be deleted is found by the next command.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
    """
    split = manifest.splits[name]
    keys = [layout.write_key(name, part.write) for part in split.parts]
    delete_leftovers(output, manifest.name, {name, *keys})
    with contextlib.suppress(GristmillError):
        delete_garbage(output, manifest, name)


def find_leftovers(
    dataset: str,
    manifest: Manifest,
    listings: Listings,
    named: NamedFiles | None = None,
) -> Iterator[str]:
    """Yields files that no edition names, or that are being written.

    In no certain order: what `delete_leftovers` and a cleaning would delete, and the
    files of work that is not finished. Editions that are kept are not leftovers.

    What was to replace a split is found, too: who overwrites the split uses it again.

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
        # Where a table cannot be read, that is a finding, and nothing is deleted.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            for info in find_garbage(
                dataset, manifest, split, listings=listings, named=named
            ):
                yield info.path.removeprefix(own)
        for path, _ in unfinished_files(dataset, manifest, split, listings=listings):
            if not TEMPORARY.parse(f"{path}/"):
                yield path
    # What is in such directories, also of splits that nothing describes yet.
    prefix = layout.temporary_dir("", manifest.name, "")
    for info in storage.scan(dataset, deep=True, prefix=prefix):
        yield info.path.removeprefix(own)
