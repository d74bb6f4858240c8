"""The commit: tables and `dataset.json`, which make a directory a dataset.

Whatever changes a dataset ends with the same steps, in this order:

1. Publish every shard under a name that no other edition uses (`publish_shard`).
2. `write_table` for each new edition.
3. `commit`: one write of `dataset.json`, which is conditional on the version that the
   change was made for. Then what it names no more is deleted.

Readers see the dataset before the write or after it. A process that is killed before it
leaves the old dataset, after it the new one and files that the next command deletes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill import __version__
from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    StorageChangedError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.commit.editions import rolled_back, with_write
from gristmill.dataset.commit.garbage import SplitFiles, delete_leftovers
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.ownership import check_dataset_name, check_other_splits
from gristmill.dataset.commit.write import DAMAGED, check_not_spent
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
from gristmill.dataset.metadata.tfds import FILEPATH_TEMPLATE, path_template
from gristmill.dataset.storage.lookup import stat_all, storage_for, version_of

_TRIES = 5

Change = Callable[[Manifest | None], Manifest]


class ExtraFiles(NamedTuple):
    """Small files that describe a dataset to other programs, such as TFDS.

    Attributes:
        names: [files], in the order in which they are written.
        make: Returns the content of each for the dataset that is committed.
    """

    names: Sequence[str] = ()
    make: Callable[[Manifest], Sequence[bytes]] = lambda manifest: ()


def write_table(
    output: str,
    name: str,
    key: str,
    table: ShardTable,
    *,
    writer_options: str,
    source: Mapping[str, Any],
    check_current: Callable[[], object] | None = None,
) -> Split:
    """Writes the table of a finished edition, and returns its entry for the commit.

    Raises StorageChangedError if another writer has written the table.

    Args:
        output: The dataset's directory.
        name: Its name.
        key: The edition's `layout.write_key`.
        table: All shards of it.
        writer_options: How the shards are encoded.
        source: Where the records come from, as plain values.
        check_current: Raises if another command has the output by now. None if there
            must be no table.
    """
    encoded, replaces = table.encode(), ""
    path = layout.table_path(name, key)
    place = layout.join(output, path)
    if check_current is not None:
        # In this order: who takes over the output later is not written over.
        replaces = version_of(place)
        check_current()
    storage_for(output).write(place, encoded, replaces=replaces)
    return Split.of_table(
        table,
        encoded,
        path=path,
        writer_options=writer_options,
        source={**source, "gristmill_version": __version__},
        write=layout.parse_write_key(key)[1],
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
            before, and where a file is missing: the other one has deleted it then.

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
    or_replace: bool = False,
    extra_files: ExtraFiles | None = None,
    check: Callable[[], None] = lambda: None,
    delete: bool = True,
) -> Manifest:
    """Changes a dataset by one write of `dataset.json`.

    Args:
        output: The dataset's directory.
        change: Returns the dataset as it is to be, given what is there, None for no
            dataset. It is called again when another command has changed the dataset
            meanwhile, and raises if it cannot be applied to that.
        or_replace: Whether a `dataset.json` that cannot be read counts as none.
        extra_files: Small files to write before it.
        check: Called when nothing is left but to write: raises if the change is not to
            be made after all.
        delete: Whether to delete what the dataset does not name any more.

    Returns:
        The dataset as it is now.

    Raises:
        StorageChangedError: Other commands commit all the time.
    """
    storage = storage_for(output)
    read = read_replaced_manifest if or_replace else read_versioned_manifest
    names, make = extra_files or ExtraFiles()
    for left in reversed(range(_TRIES)):
        # Versions come first: what another commit writes from here on stays.
        extra = stat_all([layout.join(output, file) for file in names])
        old, seen = read(output)
        try:
            manifest = change(old)
        except StorageChangedError:
            check()  # If another command has the output, its error says so.
            raise
        manifest = with_spent(old, manifest)
        if old == manifest and not names:
            break
        check()
        try:
            for file, data, info in zip(names, make(manifest), extra, strict=True):
                version = info.version if info else ""
                storage.write(layout.join(output, file), data, replaces=version)
            place = layout.join(output, layout.DATASET_JSON)
            storage.write(place, manifest.encode(), replaces=seen)
        except StorageChangedError:
            # Perhaps another split was changed, which stays as it is then.
            if not left:
                raise
            check()
        else:
            break
    withdraw_tfds_info(output, manifest)
    for name in manifest.splits if delete else ():
        # What cannot be deleted is found by the next command.
        with contextlib.suppress(GristmillError):
            SplitFiles(output, manifest, name).delete_garbage()
    return manifest


def with_spent(old: Manifest | None, new: Manifest) -> Manifest:
    """Returns a dataset that remembers the writes that it has lost."""
    had, has = (
        {one for split in manifest.splits.values() for one in split.writes}
        for manifest in (old or new, new)
    )
    return dataclasses.replace(new, spent=new.spent | (had - has))


def commit_dataset(
    output: str,
    name: str,
    splits: Mapping[str, Split],
    *,
    based_on: Mapping[str, int],
    replaces: Collection[str] = (),
    keep_replaced: bool = False,
    keeps: Iterable[str] = (),
    features: Mapping[str, Any] | None = None,
    extra_files: ExtraFiles | None = None,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Commits finished editions, as `commit` does. Splits that are there already stay.

    Args:
        output: The dataset's directory.
        name: Its name.
        splits: The finished editions, by `layout.write_key`.
        based_on: The newest edition of the split of each when it began, as
            `Write.base`.
        replaces: Those that replace their split; others are appended to it.
        keep_replaced: Whether what they replace is kept, to go back to.
        keeps: Editions that are there already, as far as the caller knows.
        features: The schema, where known.
        extra_files: Small files to write before `dataset.json`.
        check: As in `commit`.

    Raises:
        InputError: The directory holds a dataset of another name, or another split
            has a file of these.
        JobChangedError: One of the writes was given up.
        DataLossError: A split of `keeps` is not there, or there is no split at all.
        StorageChangedError: Another process has changed one of the splits meanwhile.
    """
    names = {key: layout.parse_write_key(key)[0] for key in splits}

    def change(old: Manifest | None) -> Manifest:
        there = {} if old is None else old.editions
        gone = sorted({*keeps} - there.keys())
        if gone or not (splits or there):
            raise DataLossError(
                "a split that was there is gone" if gone else "no split to commit",
                where=f"{output}, split {some_of(gone)}" if gone else output,
                cure="run one job at a time into one output, then run this one again",
            )
        if old is None:
            old = Manifest(name=name, splits={})
            if DAMAGED in based_on.values():
                # The numbers of what was begun would be those of other records.
                for only in names.values():
                    begun = SplitFiles(output, old, only).unfinished_writes()
                    old = dataclasses.replace(old, spent=old.spent | begun)
                own = {split.source["job"] for split in splits.values()}
                old = dataclasses.replace(old, spent=old.spent - own)
        check_dataset_name(output, old, name)
        made = dict(old.splits)
        for key, split in splits.items():
            only, before = names[key], made.get(names[key])
            check_not_spent(output, old, {only: split.source["job"]})
            made[only] = with_write(
                before,
                split,
                base=based_on[key],
                where=f"{output}, split {only}",
                replaces=key in replaces,
                keep=keep_replaced,
            )
            if key not in replaces and before is not None:
                since = [part for part in before.parts if part.edition > based_on[key]]
                _check_together(output, only, split, since)
        # What they replace may have their own files, where these are indexed again.
        own = {*splits, *(names[key] for key in replaces)}
        if any({key, key.partition(".")[0]}.isdisjoint(own) for key in old.editions):
            tables = [read_table(output, split) for split in splits.values()]
            paths = {path for table in tables for path in table.paths}
            check_other_splits(output, old, splits=own, takes=paths.__contains__)
        return dataclasses.replace(
            old,
            splits=made,
            features=old.features if features is None else features,
            created_by=f"gristmill {__version__}",
        )

    manifest = commit(
        output,
        change,
        or_replace=bool(replaces),
        extra_files=extra_files,
        check=check,
    )
    delete_leftovers(output, name, {*splits, *names.values()})
    for key, only in names.items():
        # Where a split was replaced, they go with what was replaced.
        if keep_replaced or key not in replaces:
            with contextlib.suppress(GristmillError):
                SplitFiles(output, manifest, only).delete_strays(key)
    return manifest


def _check_together(
    output: str, name: str, made: Split, others: Iterable[Split]
) -> None:
    """Raises StorageChangedError if an append and later ones cannot both stand.

    They have an input in common, or features that do not go together. What was made by
    the same write does not count.
    """
    for other in others:
        if other.source.get("job") == made.source["job"]:
            continue
        paths = [file.path for file in read_inputs(output, made) or ()]
        common = common_inputs(output, other, paths)
        unlike = unlike_features(other.features, made.features)
        if common or unlike:
            shared = f"of the same {some_of(common)}"
            raise StorageChangedError(
                "another command has changed the split while this one ran",
                where=f"{output}, split {name}",
                expected="an append of other inputs, with the same features",
                got=f"edition {other.edition:,} "
                + (shared if common else f"with another feature {some_of(unlike)}"),
                cure="give the new files only, with the features of the split; "
                "gristmill clean --unfinished deletes what this command has made",
            )


def described_by_tfds(output: str, name: str, splits: Iterable[str]) -> str | None:
    """Returns the version of `dataset_info.json` if it describes one of some splits."""
    version, described = _load(output, name)
    return version if described.keys() & {*splits} else None


def withdraw_tfds_info(output: str, manifest: Manifest) -> None:
    """Removes `dataset_info.json` if it describes a split as it is no longer.

    TFDS treats a directory without it as unfinished, which is right then. A file that
    describes another dataset, or TFRecord files in the same directory, stays.
    """
    version, described = _load(output, manifest.name)
    for name, fields in described.items():
        split = manifest.splits.get(name)
        if split is None or any("indexed" in part.source for part in split.parts):
            continue  # Files that were indexed have the names that TFDS gave them.
        wanted = path_template(layout.write_key(name, split.write))
        template = fields.get("filepathTemplate") or FILEPATH_TEMPLATE
        lengths = fields["shardLengths"]
        if (
            split.editions
            or split.removed is not None
            or template != wanted
            or (len(lengths), sum(lengths)) != (split.shards, split.records)
        ):
            path = layout.join(output, layout.TFDS_INFO_JSON)
            storage_for(output).delete(path, version=version)
            return


def _load(output: str, name: str) -> tuple[str, dict[str, Any]]:
    """Returns the file's version and its splits by name; none of another dataset."""
    path = layout.join(output, layout.TFDS_INFO_JSON)
    content = storage_for(output).load(path)
    if content is None:
        return "", {}
    try:
        info = json.loads(content.data)
        splits = {each["name"]: each for each in info["splits"]}
        # Numbers, as protocol buffers write them.
        for each in splits.values():
            each["shardLengths"] = [int(n) for n in each.get("shardLengths", ())]
        own = (info["name"], info["fileFormat"]) == (name, "array_record")
    except (KeyError, TypeError, ValueError):
        return "", {}
    return (content.version, splits) if own else ("", {})


def roll_back(output: str, split: str, edition: int) -> Manifest:
    """Makes a split what it was when an edition was the newest.

    The state that it has now is kept, to go back to.

    Returns:
        The dataset as it is then.

    Raises:
        NotADatasetError: There is no dataset.
        InputError: It has no such split, or the edition is not known.
        StorageMissingError: A file of the edition is gone.
        StorageChangedError: Other commands commit all the time.
    """

    def change(old: Manifest | None) -> Manifest:
        if old is None:
            raise not_a_dataset(output)
        there = old.splits[chosen_split(output, old, split)]
        state_of(output, there, edition)  # Raises where there is none.
        new = rolled_back(there, edition)
        if new == there:
            return old
        for part in new.parts:
            if findings := check_split(output, part):
                raise StorageMissingError(
                    "a file of the edition to go back to is not there any more",
                    where=f"{output}, split {split}",
                    got=findings.summary,
                    cure="restore it from a copy, or choose another edition that "
                    "`gristmill inspect` shows",
                )
        made = {**old.splits, split: new}
        return dataclasses.replace(
            old, splits=made, created_by=f"gristmill {__version__}"
        )

    manifest = commit(output, change)
    delete_leftovers(output, manifest.name, ())
    return manifest
