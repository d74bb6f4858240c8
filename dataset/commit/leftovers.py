"""The leftovers of killed commands in a dataset: found, and deleted."""

from __future__ import annotations

import contextlib
import glob
import posixpath
from collections.abc import Iterable, Iterator

from gristmill.dataset.base.errors import (
    GristmillError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.commit.garbage import NamedFiles, delete_garbage, find_garbage
from gristmill.dataset.commit.listings import Listings, decode_name
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.provenance import part_count
from gristmill.dataset.storage.base import is_unfinished
from gristmill.dataset.storage.lookup import storage_for

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
    last = manifest.splits[split].last_edition
    if any(
        (edition := layout.described_edition(path, manifest.name, split)) is not None
        and edition <= last
        for path in described - NamedFiles.of(manifest, ()).described
    ):
        # Where a table cannot be read, that is a finding, and nothing is deleted.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            for info in find_garbage(dataset, manifest, split):
                yield info.path.removeprefix(layout.join(dataset, ""))
