"""Files of editions that a dataset names no more: found, and deleted.

An edition is garbage when its number was given out (it is at most `last_edition`) and
`dataset.json` names it neither as current nor as replaced. Greater numbers are of work
that is not finished. The table of an edition is deleted last: as long as it is there,
whoever comes next finds what is left of the edition.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import itertools
import posixpath
from collections.abc import Iterable, Iterator, Sequence
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
    decode_name,
    encode_names,
    find_names,
)
from gristmill.dataset.commit.ownership import files_of_shards
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import ColumnTable, named_values
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.provenance import part_count
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.metadata.shard_report import INDEXED_JOB
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo, is_unfinished
from gristmill.dataset.storage.lookup import storage_for

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
        described: Files that describe editions which are not named, without tables.
        tables: Their tables.
        columns: Tables of columns that are not named.
        editions: The numbers of all these editions.
    """

    described: tuple[FileInfo, ...]
    tables: tuple[FileInfo, ...]
    columns: tuple[FileInfo, ...]
    editions: frozenset[int]


def garbage_editions(output: str, manifest: Manifest, name: str) -> Garbage:
    """Finds editions of a split that are not named, by the files that describe them.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
    """
    split = manifest.splits[name]
    named = NamedFiles.of(manifest, ()).described
    storage, place = storage_for(output), layout.join(output, "")
    found = storage.scan(
        layout.join(output, layout.INDEX_DIR), prefix=f"{manifest.name}-{name}."
    )
    described: list[FileInfo] = []
    tables: list[FileInfo] = []
    columns: dict[str, list[FileInfo]] = {}
    begun = set()
    editions = set()
    for info in found:
        path = info.path.removeprefix(place)
        if attached := layout.attachment_of(path, manifest.name, name):
            number, attachment = attached
            if not number:
                begun.add(attachment)
            elif number <= split.last_edition and path not in named:
                columns.setdefault(attachment, []).append(info)
            continue
        edition = layout.described_edition(path, manifest.name, name)
        if edition is None or edition > split.last_edition or path in named:
            continue
        (tables if path.endswith(".shards.npz") else described).append(info)
        if edition not in split.known:
            editions.add(edition)
    lost = [tables for one, tables in columns.items() if one not in begun]
    return Garbage(
        described=tuple(described),
        tables=tuple(tables),
        columns=tuple(itertools.chain(*lost)),
        editions=frozenset(editions),
    )


def find_garbage(output: str, manifest: Manifest, name: str) -> Iterator[FileInfo]:
    """Yields the files of a split that can be deleted, in the order to delete them.

    Files that were indexed and not written are left, whatever their names.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.

    Raises:
        InvalidDatasetError: The table of an edition that it names cannot be read: what
            belongs to that is not known.
        StorageError: The same, or files cannot be listed.
    """
    found = garbage_editions(output, manifest, name)
    yield from found.described
    yield from _column_files(output, manifest, name, found)
    yield from _shard_files(output, manifest, name, found)
    yield from found.columns
    yield from found.tables


def _column_files(
    output: str, manifest: Manifest, name: str, garbage: Garbage
) -> Iterator[FileInfo]:
    """Yields the files of values that only tables name which are not named."""
    if not garbage.columns:
        return
    named = named_values(output, manifest.splits[name])
    storage = storage_for(output)
    for info in garbage.columns:
        paths: Sequence[str] = ()
        # The files of a damaged one stay: nothing tells their names.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            data = storage.read(info.path)
            paths = ColumnTable.decode(data, where=info.path).paths
        lost = [layout.join(output, path) for path in paths if path not in named]
        yield from filter(None, storage.stat_all(lost))


def _shard_files(
    output: str, manifest: Manifest, name: str, garbage: Garbage
) -> Iterator[FileInfo]:
    split = manifest.splits[name]
    indexed = any("indexed" in edition.source for edition in split.known.values())
    # What is indexed has a table, and nothing else that describes it.
    written = {
        layout.described_edition(
            info.path.removeprefix(layout.join(output, "")), manifest.name, name
        )
        for info in garbage.described
    } & garbage.editions
    if indexed and not written - {1}:
        return
    tables = [read_table(output, edition) for edition in manifest.known.values()]
    named = NamedFiles.of(manifest, tables)
    lost: set[str] = set()
    for info in garbage.tables:
        # Shards of a damaged one are found if TFDS would name them so.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            data = storage_for(output).read(info.path)
            paths = ShardTable.decode(data, where=info.path).paths
            path = info.path.removeprefix(layout.join(output, ""))
            number = layout.described_edition(path, manifest.name, name) or 1
            own, others = _named_by(paths, number, manifest.name, name)
            lost.update(own)
            if not _are_indexed(output, others):
                lost.update(others)

    def is_lost(shard: str) -> bool:
        edition = layout.named_edition(shard, manifest.name, name)
        if indexed:
            return edition != 1 and edition in written
        if shard in lost:
            return True
        return (
            edition is not None
            and edition <= split.last_edition
            # Others may use the names of a first edition.
            and not (edition == 1 and edition in split.known)
        )

    for block in blocks(files_of_shards(output)):
        owned = [(info, shard) for info, shard in block if is_lost(shard)]
        kept = named.has_shards(shard for _, shard in owned)
        yield from (
            info for (info, _), keep in zip(owned, kept, strict=True) if not keep
        )


def _named_by(
    paths: Iterable[str], number: int, name: str, split: str
) -> tuple[list[str], list[str]]:
    """Returns the shards of a table that its edition alone can have named, and others.

    Others may use the names of a first edition.
    """
    own: list[str] = []
    others: list[str] = []
    for path in paths:
        named = layout.named_edition(path, name, split)
        (own if named == number > 1 else others).append(path)
    return own, others


def _are_indexed(output: str, shards: Iterable[str]) -> bool:
    """Returns whether shards of a garbage edition are files that were indexed.

    Shards that its command did not name are all indexed files, or none is.
    """
    storage, waiting = storage_for(output), iter(shards)
    # The first tells it, unless a deletion was killed that had come to the indexes.
    count = 1
    while some := list(itertools.islice(waiting, count)):
        count = _LOOKED_AT
        paths = [layout.join(output, layout.index_path(shard)) for shard in some]
        for path, content in zip(paths, storage.load_all(paths), strict=True):
            if content is not None:
                with contextlib.suppress(InvalidDatasetError):
                    report = parse_index(content.data, path=path).report()
                    return report.job == INDEXED_JOB
    return False


def delete_garbage(output: str, manifest: Manifest, name: str) -> None:
    """Deletes the files of editions of a split that a dataset does not name.

    Where no file describes such an edition, nothing is listed but those that do.

    Raises as `find_garbage` does.
    """
    found = garbage_editions(output, manifest, name)
    storage = storage_for(output)
    storage.delete_all(found.described)
    storage.delete_all(_column_files(output, manifest, name, found))
    storage.delete_all(found.columns)
    if found.editions:
        storage.delete_all(_shard_files(output, manifest, name, found))
        for edition in found.editions:
            key = layout.edition_key(name, edition)
            if not storage.remote:
                storage.delete_tree(layout.temporary_dir(output, manifest.name, key))
    storage.delete_all(found.tables)


def delete_strays(output: str, manifest: Manifest, key: str) -> None:
    """Deletes shards named like those of an edition that do not belong to it.

    Those who had claimed the edition before may have published one at the last moment.
    Nothing of a first edition is deleted, as others may use its names.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        key: The edition, which was committed just now.
    """
    name, number = layout.parse_edition_key(key)
    edition = manifest.splits[name].known.get(number)
    if number == 1 or edition is None:
        return
    shards = {*read_table(output, edition).paths}
    files = files_of_shards(output, layout.shard_prefix(manifest.name, key))
    storage_for(output).delete_all(i for i, shard in files if shard not in shards)


_WRITTEN_TO = ("", layout.INDEX_DIR, layout.QUARANTINE_DIR)


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
    for directory in _WRITTEN_TO:
        with contextlib.suppress(StorageError):
            storage.delete_unfinished(layout.join(output, directory))
    place = glob.escape(output)
    for split in splits:
        results = layout.join(place, layout.result_path(name, split, "?" * 16))
        with contextlib.suppress(StorageError):
            storage.delete_all(storage.match(results))
        if not storage.remote:
            with contextlib.suppress(StorageError):
                storage.delete_tree(layout.temporary_dir(output, name, split))


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
    keys = [layout.edition_key(name, edition) for edition in split.numbers]
    delete_leftovers(output, manifest.name, {name, *keys})
    with contextlib.suppress(GristmillError):
        for key, part in zip(keys, split.parts, strict=True):
            if part_count(part) is not None:
                place = layout.temporary_dir(output, manifest.name, key)
                storage_for(output).delete_tree(place)
        delete_garbage(output, manifest, name)


def find_leftovers(
    dataset: str, manifest: Manifest, listings: Listings
) -> Iterator[str]:
    """Yields files that no edition names, or that are being written.

    In no certain order: what `delete_leftovers` and a cleaning would delete, and the
    files of work that is not finished. Editions that are kept are not leftovers.

    What was to replace a split is found, too: who overwrites the split uses it again.

    Args:
        dataset: The dataset's directory.
        manifest: What it says of itself.
        listings: Listings of its files.
    """
    storage = storage_for(dataset)
    for directory in (layout.INDEX_DIR,) if storage.remote else _WRITTEN_TO:
        for name in listings.of(directory).with_prefix("."):
            file = decode_name(name)
            path = layout.join(directory, file)
            if is_unfinished(file) or path.startswith(layout.RESULT_PREFIX):
                yield path
    for split, committed in manifest.splits.items():
        yield from _not_named(dataset, manifest, split, listings)
        marked = f"{layout.shard_prefix(manifest.name, split)}e"
        for name in listings.of("").with_prefix(marked):
            file = decode_name(name)
            # Of a change that is not finished.
            if layout.edition_of(file, manifest.name, split) > committed.last_edition:
                yield file
    # Unfinished files, also of splits that are not there yet.
    prefix = layout.temporary_dir("", manifest.name, "")
    for info in storage.scan(dataset, deep=True, prefix=prefix):
        yield info.path.removeprefix(layout.join(dataset, ""))


def _not_named(
    dataset: str, manifest: Manifest, split: str, listings: Listings
) -> Iterator[str]:
    """Yields files of editions that were replaced and are not kept."""
    listing = listings.of(layout.INDEX_DIR)
    first = layout.split_paths(manifest.name, split)
    later = map(decode_name, listing.with_prefix(f"{manifest.name}-{split}.e"))
    described = {
        *(path for path in first if listing.has(posixpath.basename(path))),
        *(layout.join(layout.INDEX_DIR, file) for file in later),
    }
    attached = map(decode_name, listing.with_prefix(f"{manifest.name}-{split}."))
    columns = {
        path: found[0]
        for path in (layout.join(layout.INDEX_DIR, file) for file in attached)
        if (found := layout.attachment_of(path, manifest.name, split)) is not None
    }
    # The edition of those that are being attached is 0.
    yield from (path for path, edition in columns.items() if not edition)
    last = manifest.splits[split].last_edition
    named = NamedFiles.of(manifest, ()).described
    if any(
        (edition := layout.described_edition(path, manifest.name, split)) is not None
        and edition <= last
        for path in described - named
    ) or any(0 < columns[path] <= last for path in columns.keys() - named):
        # Where a table cannot be read, that is a finding, and nothing is deleted.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            for info in find_garbage(dataset, manifest, split):
                yield info.path.removeprefix(layout.join(dataset, ""))
