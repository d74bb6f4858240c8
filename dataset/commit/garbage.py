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
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import numpy as np

from gristmill.dataset.base.errors import (
    GristmillError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.commit.editions import fingerprint_of
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
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import named_values
from gristmill.dataset.metadata.kinds import (
    ATTACHMENT,
    COLUMN,
    DESCRIBING,
    DIRECTORIES,
    JOB,
    RESULT,
    TABLE,
    VALUES,
    Kind,
)
from gristmill.dataset.metadata.manifest import Manifest, read_manifest, read_table
from gristmill.dataset.metadata.parts import part_count
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.metadata.shard_report import INDEXED_JOB
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
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
        written: The numbers of those that more than a table describes: what is indexed
            has nothing else.
    """

    described: tuple[FileInfo, ...]
    tables: tuple[FileInfo, ...]
    columns: tuple[FileInfo, ...]
    editions: frozenset[int]
    written: frozenset[int]


def garbage_editions(
    output: str,
    manifest: Manifest,
    name: str,
    *,
    listings: Listings | None = None,
    given_up: bool = False,
) -> Garbage:
    """Finds editions of a split that are not named, by the files that describe them.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        listings: As in `walk`.
        given_up: Whether columns count that are being attached.
    """
    split = manifest.splits[name]
    named = NamedFiles.of(manifest, ()).described
    described: list[FileInfo] = []
    tables: list[FileInfo] = []
    columns: dict[str, list[FileInfo]] = {}
    begun = set()
    editions, written = set(), set()
    kinds = (*DESCRIBING, COLUMN, ATTACHMENT)
    known = layout.parts_of(manifest.name, name)
    for info, path, kind, parts in walk(output, kinds, known, listings=listings):
        edition = layout.edition_in(parts)
        if kind is ATTACHMENT and given_up:
            described.append(info)
        elif kind is ATTACHMENT:
            begun.add(parts["KEY"])
        elif edition > split.last_edition or path in named:
            continue
        elif kind is COLUMN:
            columns.setdefault(parts["KEY"], []).append(info)
        else:
            (tables if kind is TABLE else described).append(info)
            if edition not in split.known:
                editions.add(edition)
                if kind is not TABLE:
                    written.add(edition)
    lost = [tables for one, tables in columns.items() if one not in begun]
    return Garbage(
        described=tuple(described),
        tables=tuple(tables),
        columns=tuple(itertools.chain(*lost)),
        editions=frozenset(editions),
        written=frozenset(written),
    )


def find_garbage(
    output: str,
    manifest: Manifest,
    name: str,
    *,
    listings: Listings | None = None,
    named: NamedFiles | None = None,
    given_up: bool = False,
) -> Iterator[FileInfo]:
    """Yields the files of a split that can be deleted, in the order to delete them.

    Files that were indexed and not written are left, whatever their names.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        listings: As in `walk`.
        named: All that the dataset names, where that was read.
        given_up: Whether columns count that are being attached.

    Raises:
        InvalidDatasetError: The table of an edition that it names cannot be read: what
            belongs to that is not known.
        StorageError: The same, or files cannot be listed.
    """
    found = garbage_editions(
        output, manifest, name, listings=listings, given_up=given_up
    )
    yield from found.described
    yield from _lost_values(output, manifest, listings, given_up=given_up)
    yield from _lost_shards(output, manifest, name, found, listings, named)
    yield from found.columns
    yield from found.tables


def _lost_values(
    output: str,
    manifest: Manifest,
    listings: Listings | None = None,
    *,
    given_up: bool = False,
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
    kinds = (JOB,) if given_up else (JOB, ATTACHMENT)
    begun = _begun(output, manifest, kinds, listings) if lost else set[str]()
    lost = [one for one in lost if one.parts["KEY"] not in begun]
    if lost and (now := read_manifest(output)) not in (None, manifest):
        named = _named_values(output, now)
    yield from (one.info for one in lost if one.path not in named)


def _named_values(output: str, manifest: Manifest) -> set[str]:
    splits = manifest.splits.values()
    return set[str]().union(*(named_values(output, split) for split in splits))


def _begun(
    output: str, manifest: Manifest, kinds: Sequence[Kind], listings: Listings | None
) -> set[str]:
    """Returns the keys of the values that unfinished work writes."""
    begun = set()
    for name, split in manifest.splits.items():
        known = layout.parts_of(manifest.name, name)
        for one in walk(output, kinds, known, listings=listings):
            if one.kind is ATTACHMENT:
                begun.add(one.parts["KEY"])
            elif layout.edition_in(one.parts) > split.last_edition:
                content = storage_for(output).load(one.info.path)
                begun.add((content and fingerprint_of(content.data)) or "")
    return begun


def _lost_shards(
    output: str,
    manifest: Manifest,
    name: str,
    garbage: Garbage,
    listings: Listings | None = None,
    named: NamedFiles | None = None,
) -> Iterator[FileInfo]:
    split = manifest.splits[name]
    if named is None:
        tables = [read_table(output, edition) for edition in manifest.known.values()]
        named = NamedFiles.of(manifest, tables)
    lost: set[str] = set()
    for info in () if _is_indexed(split) else garbage.tables:
        # Shards of a damaged one are found if TFDS would name them so.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            data = storage_for(output).read(info.path)
            paths = ShardTable.decode(data, where=info.path).paths
            path = info.path.removeprefix(layout.join(output, ""))
            number = layout.edition_in(TABLE.parse(path) or {})
            # Others may use the names of a first edition.
            others = [
                shard
                for shard in paths
                if number == 1
                or layout.named_edition(shard, manifest.name, name) != number
            ]
            indexed = next(_jobs(output, others), "") == INDEXED_JOB
            lost.update({*paths}.difference(others if indexed else ()))
    left: dict[str, bool] = {}
    prefix = layout.shard_prefix(manifest.name, name)
    prefix *= all(shard.startswith(prefix) for shard in lost)
    for block in blocks(files_of_shards(output, prefix, listings=listings)):
        kept = named.has_shards(shard for _, shard in block)
        for (info, shard), keep in zip(block, kept, strict=True):
            if keep:
                continue
            if shard not in left:
                edition = layout.named_edition(shard, manifest.name, name)
                left[shard] = shard in lost or (
                    edition is not None
                    and edition <= split.last_edition
                    and (
                        (edition > 1 and edition in garbage.written)
                        or is_left(output, split, shard, edition)
                    )
                )
            if left[shard]:
                yield info


def _is_indexed(split: Split) -> bool:
    return any("indexed" in edition.source for edition in split.known.values())


def is_left(output: str, split: Split, shard: str, edition: int) -> bool:
    """Returns whether a shard that no edition has is one that a job has left.

    Others may use the names of a first edition, and those of files that are indexed:
    there, the index of the shard tells it, which only jobs write.

    Args:
        output: The dataset's directory.
        split: The split.
        shard: The shard, which has the name of one of the split.
        edition: The edition that it is named by.
    """
    if not _is_indexed(split) and (edition > 1 or edition not in split.known):
        return True
    return next(_jobs(output, [shard]), INDEXED_JOB) != INDEXED_JOB


def _jobs(output: str, shards: Iterable[str]) -> Iterator[str]:
    """Yields the jobs of shards, as far as they have an index.

    Shards that their command did not name are all indexed files, or none is.
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
                    yield parse_index(content.data, path=path).report().job


def delete_garbage(output: str, manifest: Manifest, name: str) -> None:
    """Deletes the files of editions of a split that a dataset does not name.

    Where no file describes such an edition, nothing is listed but those that do.

    Raises as `find_garbage` does.
    """
    found = garbage_editions(output, manifest, name)
    storage = storage_for(output)
    storage.delete_all(found.described)
    if found.columns:
        storage.delete_all(_lost_values(output, manifest))
    storage.delete_all(found.columns)
    if found.editions:
        storage.delete_all(_lost_shards(output, manifest, name, found))
        for edition in found.editions:
            key = layout.edition_key(name, edition)
            if not storage.remote:
                storage.delete_tree(layout.temporary_dir(output, manifest.name, key))
    storage.delete_all(found.tables)


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
    for split, committed in manifest.splits.items():
        known = layout.parts_of(manifest.name, split)
        for one in walk(dataset, (ATTACHMENT,), known, listings=listings):
            yield one.path
        # Where a table cannot be read, that is a finding, and nothing is deleted.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            for info in find_garbage(
                dataset, manifest, split, listings=listings, named=named
            ):
                yield info.path.removeprefix(own)
        marked = f"{layout.shard_prefix(manifest.name, split)}e"
        for name in listings.of("").with_prefix(marked):
            file = decode_name(name)
            # Of a change that is not finished.
            if layout.edition_of(file, manifest.name, split) > committed.last_edition:
                yield file
    # Unfinished files, also of splits that are not there yet.
    prefix = layout.temporary_dir("", manifest.name, "")
    for info in storage.scan(dataset, deep=True, prefix=prefix):
        yield info.path.removeprefix(own)
