"""The commit: tables and `dataset.json`, which make a directory a dataset.

Writers of any kind end with the same steps, in this order:

1. Publish every shard (`publish_shard`).
2. `write_table` for each split.
3. `commit_dataset`, which calls `check` and then writes `dataset.json`, last of all.

Every write names the version that it replaces: of two writers at once, one fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill import __version__
from gristmill.dataset.commit.exchange import begin_exchange, finish_exchange
from gristmill.dataset.commit.leftovers import delete_leftovers
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_other_splits,
    check_removal,
)
from gristmill.dataset.commit.split_check import check_split
from gristmill.dataset.commit.split_files import committed_shards
from gristmill.dataset.errors import (
    DataLossError,
    StorageChangedError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import (
    read_replaced_manifest,
    read_table,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

_TRIES = 5


class ExtraFiles(NamedTuple):
    """Small files that describe a dataset to other programs, such as TFDS.

    Attributes:
        names: [files], in the order in which they are written.
        make: Returns the content of each for the dataset that is committed.
    """

    names: Sequence[str]
    make: Callable[[Manifest], Sequence[bytes]]


def write_table(
    output: str,
    name: str,
    split: str,
    table: ShardTable,
    *,
    replaces: str,
    writer_options: str,
    source: Mapping[str, Any],
) -> Split:
    """Writes the table of a finished split, and returns what a commit says of it.

    Raises StorageChangedError if another writer has written the table.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
        table: All shards of the split.
        replaces: The version of the table that is there, "" for none. Read it before
            the last check that the output still belongs to the writer: then a
            writer that takes over the output afterwards is not written over.
        writer_options: How the shards are encoded.
        source: Where the records come from, as plain values.
    """
    encoded = table.encode()
    path = layout.table_path(name, split)
    storage_for(output).write(layout.join(output, path), encoded, replaces=replaces)
    return Split.of_table(
        table,
        encoded,
        path=path,
        writer_options=writer_options,
        source={**source, "gristmill_version": __version__},
    )


def check_files(output: str, splits: Mapping[str, Split]) -> None:
    """Checks that all files of splits are in the output, as their tables say.

    Raises DataLossError if one was deleted or replaced after it was written.
    """
    for name, split in splits.items():
        findings = check_split(output, split)
        if findings:
            raise DataLossError(
                "a file of a finished split is not there any more",
                where=f"{output}, split {name}",
                got=f"{findings.first[0]}"
                + (f", and {len(findings) - 1:,} more" if len(findings) > 1 else ""),
                cure="make sure that no other process writes to this output, then run "
                "the same command again: it makes the missing files",
            )


def commit_dataset(
    output: str,
    name: str,
    splits: Mapping[str, Split],
    *,
    keeps: Iterable[str] = (),
    features: Mapping[str, Any] | None = None,
    extra_files: ExtraFiles | None = None,
    aside: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Writes `dataset.json`, last of all. Splits that are there already stay.

    An exchange that an earlier run has begun is finished first.

    Args:
        output: The dataset's directory.
        name: Its name.
        splits: The finished splits and editions, by `layout.edition_key`.
        keeps: Those that are there already, as far as the caller knows.
        features: The schema, where known.
        extra_files: Small files to write before it.
        aside: Splits whose files are in `layout.aside_dir`: they are exchanged for the
            old ones.
        check: Called when nothing is left but to write: raises if the splits are not
            to be committed after all.

    Raises:
        InputError: The directory holds a dataset of another name, or another split
            has a file of these.
        DataLossError: A split of `keeps` is not there, or there is no split at all.
        StorageChangedError: Another process committed at the same moment.
    """
    for left in reversed(range(_TRIES if aside else 1)):
        try:
            manifest = _commit(
                output,
                name,
                splits,
                keeps=keeps,
                features=features,
                extra_files=extra_files,
                aside=sorted(aside),
                check=check,
            )
        except (StorageChangedError, StorageMissingError) as error:
            # The same command beside this one may have committed the same files.
            if aside and (done := _committed(output, splits)) is not None:
                manifest = done
                break
            if not left or isinstance(error, StorageMissingError):
                raise
            # Perhaps a split was added, which stays. Or another command has taken the
            # new files' directory: then this raises.
            check()
        else:
            break
    delete_leftovers(output, name, splits)
    return manifest


def _committed(output: str, splits: Mapping[str, Split]) -> Manifest | None:
    """Returns the dataset if it has exactly these splits."""
    finish_exchange(output)
    manifest, _ = read_versioned_manifest(output)
    if manifest is None or any(
        manifest.editions.get(name) != split for name, split in splits.items()
    ):
        return None
    return manifest


def _commit(
    output: str,
    name: str,
    splits: Mapping[str, Split],
    *,
    keeps: Iterable[str],
    features: Mapping[str, Any] | None,
    extra_files: ExtraFiles | None,
    aside: Sequence[str],
    check: Callable[[], None],
) -> Manifest:
    finish_exchange(output)
    storage = storage_for(output)
    places = {split: layout.aside_dir(output, name, split) for split in aside}
    # Versions come first: what another commit writes from here on is not replaced.
    names = () if extra_files is None else extra_files.names
    directory = places[aside[0]] if aside else output
    extra = storage.stat_all([layout.join(directory, file) for file in names])
    # New files aside replace a `dataset.json` of another program, too.
    read = read_replaced_manifest if aside else read_versioned_manifest
    old, seen = read(output)
    there = {} if old is None else old.splits
    gone = sorted({*keeps} - (there if old is None else old.editions).keys())
    if gone or not (splits or there):
        raise DataLossError(
            "a split that was there is gone" if gone else "no split to commit",
            where=f"{output}, split {some_of(gone)}" if gone else output,
            cure="run one job at a time into one output, then run this one again",
        )
    if old is not None and not splits and features in (None, old.features):
        return old
    if old is None:
        old = Manifest(name=name, splits={})
    check_dataset_name(output, old, name)
    made = old.with_splits(splits, anew=aside)
    if old.editions.keys() - splits.keys() or aside:
        tables = {
            split: read_table(places.get(split, output), found)
            for split, found in splits.items()
        }
        paths = {path for table in tables.values() for path in table.paths}
        check_other_splits(output, old, splits=splits, takes=paths.__contains__)
        for split in aside:
            taken = committed_shards(output, old, split) | {*tables[split].paths}
            check_removal(output, name, split, manifest=old, shards=taken)
    check()
    manifest = dataclasses.replace(
        old,
        splits=made,
        features=old.features if features is None else features,
        created_by=f"gristmill {__version__}",
    )
    content = [] if extra_files is None else extra_files.make(manifest)
    for file, data, info in zip(names, content, extra, strict=True):
        version = info.version if info else ""
        storage.write(layout.join(directory, file), data, replaces=version)
    if aside:
        begin_exchange(output, old, manifest, seen=seen, aside=aside, files=names)
        finish_exchange(output)
    else:
        place = layout.join(output, layout.DATASET_JSON)
        storage.write(place, manifest.encode(), replaces=seen)
    return manifest
