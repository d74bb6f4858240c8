"""The commit: tables and `dataset.json`, which make a directory a dataset.

Whatever changes a dataset ends with the same steps, in this order:

1. Publish every shard under a name that no other edition uses (`publish_shard`).
2. `write_table` for each new edition.
3. `commit`: one write of `dataset.json`, conditional on the version that the change was
   made for. Then files that it no longer names are deleted.

Readers see the dataset from before or after the write. A process killed before it
leaves the old dataset; one killed after it leaves the new one, and files that the next
command deletes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill import __version__
from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    InvalidDatasetError,
    StorageChangedError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.commit.editions import rolled_back, with_write
from gristmill.dataset.commit.garbage import SplitFiles, delete_leftovers
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.ownership import check_dataset_name, check_other_splits
from gristmill.dataset.commit.write import DAMAGED, Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import unlike_features
from gristmill.dataset.metadata.manifest import (
    Manifest,
    chosen_split,
    not_a_dataset,
    read_replaced_manifest,
    read_table,
    read_versioned_manifest,
    state_of,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import common_inputs, read_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.metadata.tfds import TfdsSplit, parse_info
from gristmill.dataset.storage.lookup import stat_all, storage_for, version_of

_TRIES = 5

Change = Callable[[Manifest], Manifest]


class ExtraFiles(NamedTuple):
    """Small files that describe a dataset to other programs, such as TFDS.

    Attributes:
        names: [files], in the order in which they are written.
        make: Returns the content of each for the dataset that is committed.
    """

    names: Sequence[str] = ()
    make: Callable[[Manifest], Sequence[bytes]] = lambda manifest: ()


def write_table(
    write: Write,
    table: ShardTable,
    *,
    writer_options: str,
    source: Mapping[str, Any],
    check_current: Callable[[], object] | None = None,
) -> Split:
    """Writes the table of a finished edition, and returns its entry for the commit.

    Raises StorageChangedError if another process writes it at this moment.

    Args:
        write: The write that made the edition.
        table: All shards of it.
        writer_options: How the shards are encoded.
        source: Where the records come from, as plain values.
        check_current: Raises if another command has the output by now; by default as
            `Write.check_current`.
    """
    encoded, path = table.encode(), layout.table_path(write.name, write.key)
    place = layout.join(write.output, path)
    # In this order: a later owner of the output is not overwritten.
    version = version_of(place)
    (check_current or write.check_current)()
    storage_for(write.output).write(place, encoded, replaces=version)
    source = {"job": write.id, **source, "gristmill_version": __version__}
    return Split.of_table(
        table,
        encoded,
        path=path,
        writer_options=writer_options,
        source=source,
        write=write.mark,
    )


def check_files(
    output: str,
    splits: Mapping[str, Split],
    *,
    check_current: Callable[[], object] = lambda: None,
) -> None:
    """Checks that all files of splits are in the output, as their tables say.

    Args:
        output: The dataset's directory.
        splits: The splits, by their names for messages.
        check_current: Raises if another command has the output by now. It is called
            first, and again if a file is missing, which that command may have deleted.

    Raises:
        DataLossError: One was deleted or replaced after it was written.
    """
    check_current()
    for name, split in splits.items():
        if findings := check_split(output, split):
            check_current()
            raise DataLossError(
                "a file of a finished split is not there any more",
                where=f"{output}, split {name}",
                got=findings.summary,
                cure="make sure that no other process writes to this output, then run "
                "the same command again: it makes the missing files",
            )


def commit(
    output: str,
    change: Change,
    *,
    name: str = "",
    or_replace: bool = False,
    extra_files: ExtraFiles | None = None,
    check: Callable[[], None] = lambda: None,
    delete: bool = True,
) -> Manifest:
    """Changes a dataset by one write of `dataset.json`.

    Args:
        output: The dataset's directory.
        change: Returns the new dataset, given the current one. It is called again if
            another command has changed the dataset meanwhile, and raises if it no
            longer applies.
        name: The dataset's name, if there may be no dataset yet.
        or_replace: Whether a `dataset.json` that cannot be read counts as none.
        extra_files: Small files to write before it.
        check: Called just before the write: raises if the change must not be made after
            all.
        delete: Whether to delete files that the dataset no longer names.

    Returns:
        The dataset as it is now.

    Raises:
        NotADatasetError: There is no dataset, and no name for one.
        StorageChangedError: Other commands commit all the time.
    """
    storage = storage_for(output)
    names, make = extra_files or ExtraFiles()
    for left in reversed(range(_TRIES)):
        # Versions come first: what another commit writes from here on stays.
        extra = stat_all([layout.join(output, file) for file in names])
        old, seen = read_to_change(output, name, or_replace=or_replace)
        try:
            manifest = with_spent(old, change(old))
        except StorageChangedError:
            check()  # If another command has the output, its error says so.
            raise
        if old == manifest and not names:
            break
        check()
        created_by = f"gristmill {__version__}"
        manifest = dataclasses.replace(manifest, created_by=created_by)
        try:
            for file, data, info in zip(names, make(manifest), extra, strict=True):
                version = info.version if info else ""
                storage.write(layout.join(output, file), data, replaces=version)
            place = layout.join(output, layout.DATASET_JSON)
            storage.write(place, manifest.encode(), replaces=seen)
        except StorageChangedError:
            # Perhaps only another split was changed: try again on that.
            if not left:
                raise
            check()
        else:
            break
    withdraw_tfds_info(output, manifest)
    for split in manifest.splits if delete else ():
        # The next command finds what cannot be deleted.
        with contextlib.suppress(GristmillError):
            SplitFiles(output, manifest, split).delete_garbage()
    return manifest


def read_to_change(
    output: str, name: str = "", *, or_replace: bool = False
) -> tuple[Manifest, str]:
    """Returns the dataset that is to be changed, and the version of its file.

    Raises NotADatasetError if there is none, and no name for one.
    """
    read = read_replaced_manifest if or_replace else read_versioned_manifest
    old, seen = read(output)
    if not (old.name or name):
        raise not_a_dataset(output)
    return dataclasses.replace(old, name=old.name or name), seen


def with_spent(old: Manifest, new: Manifest) -> Manifest:
    """Returns the new dataset, in which the writes that it lost are spent."""
    had, has = (
        {one for split in manifest.splits.values() for one in split.writes}
        for manifest in (old, new)
    )
    return dataclasses.replace(new, spent=new.spent | (had - has))


def commit_dataset(
    output: str,
    name: str,
    made: Mapping[Write, Split],
    *,
    keep_replaced: bool = False,
    keeps: Iterable[str] = (),
    features: Mapping[str, Any] | None = None,
    extra_files: ExtraFiles | None = None,
    check_current: Callable[[], object] | None = None,
) -> Manifest:
    """Commits finished editions, as `commit` does. Other splits stay.

    An edition replaces its split if its write does; otherwise it is appended.

    Args:
        output: The dataset's directory.
        name: Its name.
        made: The finished editions, whose files must all be there.
        keep_replaced: Whether to keep what they replace, for a rollback.
        keeps: Editions that must already be there.
        features: The schema, where known.
        extra_files: Small files to write before `dataset.json`.
        check_current: Raises if another command has the output by now; by default as
            `Write.check_current`.

    Raises:
        InputError: The directory holds a dataset of another name, or another split
            has a file of these.
        JobChangedError: One of the writes was given up.
        DataLossError: A split of `keeps` is not there, or there is no split at all; or
            a file of an edition is gone.
        StorageChangedError: Another process has changed one of the splits meanwhile.
    """
    editions = {write.key: split for write, split in made.items()}

    def change(old: Manifest) -> Manifest:
        gone = sorted({*keeps} - old.editions.keys())
        if gone or not (made or old.splits):
            raise DataLossError(
                "a split that was there is gone" if gone else "no split to commit",
                where=f"{output}, split {some_of(gone)}" if gone else output,
                cure="run one job at a time into one output, then run this one again",
            )
        check_dataset_name(output, old, name)
        if not old.splits and any(write.base == DAMAGED for write in made):
            # Work begun on the damaged dataset would number other records.
            begun = [SplitFiles(output, old, write.split) for write in made]
            spent = old.spent.union(*(files.unfinished_writes() for files in begun))
            spent -= {write.id for write in made}
            old = dataclasses.replace(old, spent=spent)
        splits = dict(old.splits)
        for write, split in made.items():
            before = splits.get(write.split)
            write.check_not_spent(old)
            splits[write.split] = with_write(before, split, write, keep=keep_replaced)
            if not write.replaces and before is not None:
                since = [part for part in before.parts if part.edition > write.base]
                _check_together(write, split, since)
        _check_free(output, old, made)
        features_now = old.features if features is None else features
        return dataclasses.replace(old, splits=splits, features=features_now)

    def still_current() -> None:
        if check_current is not None:
            check_current()
            return
        for write in made:
            write.check_current()

    manifest = commit(
        output,
        change,
        name=name,
        or_replace=any(write.replaces for write in made),
        extra_files=extra_files,
        check=lambda: check_files(output, editions, check_current=still_current),
    )
    delete_leftovers(output, name, {*editions, *(write.split for write in made)})
    for write in made:
        # If a split was replaced, its strays go with it.
        if keep_replaced or not write.replaces:
            with contextlib.suppress(GristmillError):
                SplitFiles(output, manifest, write.split).delete_strays(write.key)
    return manifest


def _check_free(output: str, old: Manifest, made: Mapping[Write, Split]) -> None:
    """Raises InputError if another split has a file of finished editions."""
    # Files that are indexed again belong to what is replaced, too.
    own = {write.key for write in made}
    own |= {write.split for write in made if write.replaces}
    if any({key, key.partition(".")[0]}.isdisjoint(own) for key in old.editions):
        tables = [read_table(output, split) for split in made.values()]
        paths = {path for table in tables for path in table.paths}
        check_other_splits(output, old, splits=own, takes=paths.__contains__)


def _check_together(write: Write, made: Split, others: Iterable[Split]) -> None:
    """Raises StorageChangedError if an append conflicts with later ones.

    They conflict if they share an input, or have incompatible features. Editions of the
    same write do not count.
    """
    for other in others:
        if other.source.get("job") == write.id:
            continue
        paths = [file.path for file in read_inputs(write.output, made) or ()]
        common = common_inputs(write.output, other, paths)
        unlike = unlike_features(other.features, made.features)
        if common or unlike:
            shared = f"of the same {some_of(common)}"
            raise StorageChangedError(
                "another command has changed the split while this one ran",
                where=write.where,
                expected="an append of other inputs, with the same features",
                got=f"edition {other.edition:,} "
                + (shared if common else f"with another feature {some_of(unlike)}"),
                cure="give the new files only, with the features of the split; "
                "gristmill clean --unfinished deletes what this command has made",
            )


def described_by_tfds(output: str, name: str) -> tuple[str, dict[str, TfdsSplit]]:
    """Returns the version of `dataset_info.json`, and the splits that it describes.

    Both are empty if it describes another dataset, or TFRecord files.
    """
    path = layout.join(output, layout.TFDS_INFO_JSON)
    content = storage_for(output).load(path)
    if content is not None:
        with contextlib.suppress(GristmillError):
            info, splits = parse_info(
                content.data, path, "array_record", InvalidDatasetError
            )
            if (info["name"], info.get("fileFormat")) == (name, "array_record"):
                return content.version, splits
    return "", {}


def withdraw_tfds_info(output: str, manifest: Manifest) -> None:
    """Removes `dataset_info.json` if its description of a split is outdated.

    TFDS then treats the directory as unfinished, as it should.
    """
    version, described = described_by_tfds(output, manifest.name)
    for name, found in described.items():
        split = manifest.splits.get(name)
        if split is None or any("indexed" in part.source for part in split.parts):
            continue  # Files that were indexed have the names that TFDS gave them.
        key = layout.write_key(name, split.write)
        first = layout.shard_name(manifest.name, key, 0, split.shards)
        if (
            split.editions
            or split.removed is not None
            or found.files[:1] != (first,)
            or sum(found.file_records) != split.records
        ):
            path = layout.join(output, layout.TFDS_INFO_JSON)
            storage_for(output).delete(path, version=version)
            return


def roll_back(output: str, split: str, edition: int) -> Manifest:
    """Takes a split back to the state in which an edition was the newest.

    Its present state is kept, for another rollback.

    Returns:
        The dataset as it is then.

    Raises:
        NotADatasetError: There is no dataset.
        InputError: It has no such split, or the edition is not known.
        StorageMissingError: A file of the edition is gone.
        StorageChangedError: Other commands commit all the time.
    """

    def change(old: Manifest) -> Manifest:
        there = old.splits[chosen_split(split, old.splits, output)]
        state_of(output, there, edition)  # Raises where there is none.
        new = rolled_back(there, edition)
        for part in new.parts if new != there else ():
            if findings := check_split(output, part):
                raise StorageMissingError(
                    "a file of the edition to go back to is not there any more",
                    where=f"{output}, split {split}",
                    got=findings.summary,
                    cure="restore it from a copy, or choose another edition that "
                    "`gristmill inspect` shows",
                )
        return dataclasses.replace(old, splits={**old.splits, split: new})

    manifest = commit(output, change)
    delete_leftovers(output, manifest.name, ())
    return manifest
