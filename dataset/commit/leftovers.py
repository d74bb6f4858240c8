"""What commands that were killed left in a dataset: found, and deleted."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Iterable, Iterator

from gristmill.dataset.commit.listings import Listings, decode_name
from gristmill.dataset.errors import StorageError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
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


def find_leftovers(
    dataset: str, manifest: Manifest, listings: Listings
) -> Iterator[str]:
    """Yields files that `delete_leftovers` would delete, or that are being written.

    In no certain order.

    What was to replace a split is found, too: who overwrites the split uses it again.

    Args:
        dataset: The dataset's directory.
        manifest: What it says of itself.
        listings: Of its files.
    """
    described = (
        file.removeprefix(f"{manifest.name}-").removesuffix(suffix)
        for suffix in (".job.json", ".write.json")
        for file in listings.of(layout.INDEX_DIR).with_suffix(suffix)
    )
    splits = sorted({*manifest.splits, *described})  # Unfinished ones, too.
    temporary = [layout.temporary_dir("", manifest.name, split) for split in splits]
    remote = storage_for(dataset).remote  # Such have no temporary files.
    for directory in (layout.INDEX_DIR,) if remote else (*_WRITTEN_TO, *temporary):
        listing = listings.of(directory)
        whole = directory in temporary
        for name in listing.names if whole else listing.with_prefix("."):
            file = decode_name(name)
            path = layout.join(directory, file)
            if whole or is_unfinished(file) or path.startswith(layout.RESULT_PREFIX):
                yield path
    for split, committed in manifest.splits.items():
        marked = f"{layout.shard_prefix(manifest.name, split)}e"
        for name in listings.of("").with_prefix(marked):
            file = decode_name(name)
            # Of an append that is not finished.
            edition = layout.edition_of(file, manifest.name, split)
            if edition > len(committed.parts):
                yield file
    # New files, also of splits that are not there yet.
    new = f"{layout.ASIDE_PREFIX}{manifest.name}-"
    for info in storage_for(dataset).scan(dataset, deep=True, prefix=new):
        yield info.path.removeprefix(layout.join(dataset, ""))
