"""The files that a split has in its output, and their removal."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator

from gristmill.dataset.base.errors import InvalidDatasetError, StorageMissingError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

# Of the files of a shard, by the directory that they are in.
SUFFIXES = {
    "": ("",),
    layout.INDEX_DIR: (".index", ".segments"),
    layout.QUARANTINE_DIR: (".jsonl", ".bin"),
}


def shards_of(path: str) -> Iterator[str]:
    """Yields the shards that a file can belong to, given its path in the dataset.

    >>> list(shards_of("index/a.index"))
    ['a']
    """
    directory, file = posixpath.split(path)
    for suffix in SUFFIXES.get(directory, ()):
        if file.endswith(suffix):
            yield file.removesuffix(suffix)


def files_of_shards(output: str, prefix: str = "") -> Iterator[tuple[FileInfo, str]]:
    """Yields the files of shards in a dataset, with the shard of each.

    Args:
        output: The dataset's directory.
        prefix: How the names of the files begin.
    """
    for directory in SUFFIXES:
        place = layout.join(output, directory)
        for info in storage_for(output).scan(place, prefix=prefix):
            file = layout.join(directory, posixpath.basename(info.path))
            for shard in shards_of(file):
                yield info, shard


def committed_shards(output: str, manifest: Manifest | None, split: str) -> set[str]:
    """Returns the shards of a split or an edition, as far as that can be read."""
    # A table that is damaged or lost must not prevent a fresh start.
    with contextlib.suppress(InvalidDatasetError, StorageMissingError):
        if manifest is None:
            return set()
        found = manifest.find(split) or manifest.known.get(split)
        if found is not None:
            return set(read_table(output, found).paths)
    return set()
