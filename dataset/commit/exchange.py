"""The exchange: new files of a split take the place of the old ones.

The new files are finished, in `layout.aside_dir`. `dataset.json` is written three
times:

1. The old splits are taken out, and an `Exchange` says what replaces them. From here
   on readers of these splits get an error.
2. Files are deleted and moved. Then the new splits are put in: readers find them.
3. What is left of the directory is deleted, and the `Exchange` is taken out.

Whoever finds an `Exchange` can finish it, after a crash or beside the process that is
at it: each step does what is left to do.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Iterable, Sequence

from gristmill.dataset.commit.exchange_plan import (
    Files,
    Steps,
    moves_of,
    plan_split,
)
from gristmill.dataset.commit.split_check import check_split
from gristmill.dataset.commit.split_files import (
    committed_shards,
    delete_unfinished_editions,
    shards_of,
    withdraw_tfds_info,
)
from gristmill.dataset.commit.staged_parts import staged_shards
from gristmill.dataset.errors import (
    DataLossError,
    InvalidDatasetError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import read_table, read_versioned_manifest
from gristmill.dataset.metadata.splits import Exchange
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for, version_of

_TRIES = 10
_DIRECTORIES = ("", layout.INDEX_DIR, layout.QUARANTINE_DIR)


def finish_exchange(output: str, *, or_give_up: bool = False) -> frozenset[str]:
    """Finishes the exchange that a dataset is in, if it is in one.

    Requests in a bucket: four for each new shard (a copy of it and of its index, and
    two deletions), two more if it holds packed rows, four more if input was set aside
    for it, two or three for each old shard whose name is not used again, and a few
    listings.

    Args:
        output: The dataset's directory.
        or_give_up: Whether it is no error if new files are lost.

    Returns:
        The splits that were exchanged by now. Empty if there was nothing to do, or if
        there is no `dataset.json` that can be read.

    Raises:
        DataLossError: New files are lost. The exchange is ended: old splits that are
            whole are in the dataset again.
        StorageError: The storage failed. It can be tried again.
    """
    finished: set[str] = set()
    tries = 0
    while True:
        try:
            manifest, version = read_versioned_manifest(output)
        except InvalidDatasetError:
            return frozenset(finished)
        if manifest is None or manifest.exchange is None:
            return frozenset(finished)
        place = _place(output, manifest.name, manifest.exchange)
        try:
            if not manifest.exchange.splits:
                _sweep(output, manifest, manifest.exchange, version)
            else:
                with storage_for(output).exclusive(place):
                    _check_version(output, version)
                    _replace(output, manifest, manifest.exchange, version)
        except (DataLossError, StorageError) as error:
            # Another process may have finished it meanwhile. If only a file was
            # written again, by a worker that was given up or by the same command
            # beside this one, it is listed again: its old version is missing then.
            tries += 1
            same = _version(output) == version
            listed = isinstance(error, StorageChangedError | StorageMissingError)
            if tries == _TRIES or (same and not listed):
                if isinstance(error, DataLossError):
                    _give_up(output, manifest, manifest.exchange, version)
                    if or_give_up:
                        return frozenset(finished)
                raise
        finished.update(manifest.exchange.aside)


def begin_exchange(
    output: str,
    old: Manifest,
    new: Manifest,
    *,
    seen: str,
    aside: Sequence[str],
    files: Sequence[str],
) -> None:
    """Takes splits out of a dataset, for an exchange that puts in the new ones.

    From here on the exchange is finished, by this process or another one.

    Args:
        output: The dataset's directory.
        old: The dataset as it is.
        new: The dataset as it is to be.
        seen: The version of the `dataset.json` that says so, "" for none.
        aside: Splits whose new files are in directories of their own.
        files: Small files that are in the first of these directories.

    Raises:
        StorageChangedError: `dataset.json` was written meanwhile.
    """
    coming = {
        name: split
        for name, split in new.splits.items()
        if old.splits.get(name) != split or name in aside
    }
    exchange = Exchange(
        aside=tuple(aside),
        splits=coming,
        replaced={k: v for k, v in old.splits.items() if k in aside},
        features=new.features,
        files=tuple(files),
    )
    left = {k: v for k, v in old.splits.items() if k not in coming}
    pending = dataclasses.replace(
        new, splits=left, features=old.features, exchange=exchange
    )
    place = layout.join(output, layout.DATASET_JSON)
    storage_for(output).write(place, pending.encode(), replaces=seen)


def _place(output: str, name: str, exchange: Exchange) -> str:
    """Returns the directory that has the small files of an exchange."""
    return layout.aside_dir(output, name, exchange.aside[0])


def _version(output: str) -> str:
    return version_of(layout.join(output, layout.DATASET_JSON))


def _check_version(output: str, version: str) -> None:
    """Checks that `dataset.json` has a version."""
    if (found := _version(output)) != version:
        place = layout.join(output, layout.DATASET_JSON)
        raise changed_error(place, expected=version, got=found)


def _end(output: str, manifest: Manifest, version: str) -> None:
    """Writes a dataset without its exchange; one without splits is none."""
    storage, place = storage_for(output), layout.join(output, layout.DATASET_JSON)
    if manifest.splits:
        manifest = dataclasses.replace(manifest, exchange=None)
        storage.write(place, manifest.encode(), replaces=version)
    else:
        storage.delete(place, version=version)


def _give_up(output: str, manifest: Manifest, exchange: Exchange, version: str) -> None:
    """Ends an exchange whose new files are lost. Old splits that are whole come back.

    If they are not, the splits are not in the dataset any more.
    """
    old = exchange.replaced
    whole = {k: split for k, split in old.items() if not check_split(output, split)}
    splits = {**manifest.splits, **whole}
    _end(output, dataclasses.replace(manifest, splits=splits), version)


def _replace(output: str, manifest: Manifest, exchange: Exchange, version: str) -> None:
    """Moves all files to their places, and commits the new splits."""
    storage = storage_for(output)
    name = manifest.name
    there = _files(output)
    first = _files(_place(output, name, exchange), directories=("",))
    steps = [
        _plan(output, manifest, exchange, split, there) for split in exchange.aside
    ]
    missing = [path for step in steps for path in step.missing]
    if missing:
        raise DataLossError(
            "files that are to replace a split are not there",
            where=f"{output}, {missing[0]}"
            + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""),
            cure="convert again with --overwrite; what the dataset has now, gristmill "
            "inspect shows",
        )
    # Files were listed in versions of this exchange: a process that stalls here for an
    # hour does nothing to those of a later one.
    _check_version(output, version)
    if layout.TFDS_INFO_JSON not in exchange.files or layout.TFDS_INFO_JSON in first:
        withdraw_tfds_info(output, name, exchange.aside)
    for split in exchange.aside:
        delete_unfinished_editions(output, name, split, there)
    storage.delete_all(info for step in steps for info in step.deletes)
    for group in zip(*(step.moves for step in steps), strict=True):
        storage.move_all(move for moves in group for move in moves)
    for file in exchange.files:  # In their order: TFDS looks for the last one.
        found = storage.stat(layout.join(output, file))
        there = {} if found is None else {file: found}
        storage.move_all(moves_of(output, [file], first, there))
    for split in exchange.aside:
        findings = check_split(output, exchange.splits[split])
        if findings:
            raise DataLossError(
                "a file of a split is not there after it was moved",
                where=f"{output}, split {split}",
                got=str(findings.first[0]),
                cure="make sure that no other process writes to this output, then "
                "convert again with --overwrite",
            )
    done = dataclasses.replace(
        manifest,
        splits={**manifest.splits, **exchange.splits},
        features=exchange.features,
        exchange=Exchange(aside=exchange.aside),
    )
    storage.write(
        layout.join(output, layout.DATASET_JSON), done.encode(), replaces=version
    )


def _sweep(output: str, manifest: Manifest, exchange: Exchange, version: str) -> None:
    """Deletes what is left of the directories, and ends the exchange."""
    storage = storage_for(output)

    def check() -> None:
        _check_version(output, version)

    for split in exchange.aside:
        storage.delete_tree(layout.aside_dir(output, manifest.name, split), check=check)
    _end(output, manifest, version)


def _plan(
    output: str, manifest: Manifest, exchange: Exchange, split: str, there: Files
) -> Steps:
    name = manifest.name
    aside = layout.aside_dir(output, name, split)
    new = _files(aside)
    coming = exchange.splits[split]
    try:
        table = read_table(aside if coming.table in new else output, coming)
    except (InvalidDatasetError, StorageMissingError):
        return Steps([], [], [coming.table])
    new = {**new, **staged_shards(aside, coming, table)}
    regions = table.columns["quarantined_regions"].tolist()
    replaced = Manifest(name=name, splits=exchange.replaced)
    old = committed_shards(output, replaced, split)
    prefix = layout.shard_prefix(name, split)

    def is_own(path: str) -> bool:
        return any(s in old or s.startswith(prefix) for s in shards_of(path))

    return plan_split(
        output,
        name,
        split,
        shards=list(table.paths),
        damaged=[p for p, count in zip(table.paths, regions, strict=True) if count],
        packed=table.is_packed,
        is_own=is_own,
        new=new,
        there=there,
        remote=storage_for(output).remote,
    )


def _files(directory: str, directories: Iterable[str] = _DIRECTORIES) -> Files:
    """Returns the files of a dataset, by path relative to it."""
    storage = storage_for(directory)
    return {
        layout.join(inner, posixpath.basename(info.path)): info
        for inner in directories
        for info in storage.list(layout.join(directory, inner))
    }
