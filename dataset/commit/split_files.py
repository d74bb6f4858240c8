"""The files that a split has in its output, and their removal."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import posixpath
from collections.abc import Callable, Iterable, Iterator

from gristmill.dataset.errors import InvalidDatasetError, StorageMissingError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import read_table
from gristmill.dataset.storage.base import FileInfo, changed_error
from gristmill.dataset.storage.lookup import storage_for, version_of

_SUFFIXES = {
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
    for suffix in _SUFFIXES.get(directory, ()):
        if file.endswith(suffix):
            yield file.removesuffix(suffix)


def committed_shards(output: str, manifest: Manifest | None, split: str) -> set[str]:
    """Returns the shards of a split or an edition, as far as that can be read."""
    # A table that is damaged or lost must not prevent a fresh start.
    with contextlib.suppress(InvalidDatasetError, StorageMissingError):
        found = None if manifest is None else manifest.find(split)
        if found is not None:
            return set(read_table(output, found).paths)
    return set()


def list_shards(
    output: str,
    name: str,
    split: str,
    *,
    others: Iterable[str] = (),
    keep: Callable[[str], bool] | None = None,
) -> list[FileInfo]:
    """Lists the shards of a split, their indexes, and what was set aside for them.

    They are all that TFDS's names give to the split, and `others`, without those for
    which `keep` returns true.
    """
    prefix, others = layout.shard_prefix(name, split), set(others)
    return [
        info
        for info, shard in shard_files(output)
        if (shard in others or shard.startswith(prefix))
        and not (keep is not None and keep(shard))
    ]


def shard_files(output: str) -> Iterator[tuple[FileInfo, str]]:
    """Lists the files that can belong to shards of any split, each with its shard."""
    for directory in _SUFFIXES:
        for info in storage_for(output).list(layout.join(output, directory)):
            file = posixpath.basename(info.path)
            for shard in shards_of(layout.join(directory, file)):
                yield info, shard


def is_readable(
    output: str,
    name: str,
    split: str,
    *,
    manifest: Manifest | None,
    shards: Iterable[str],
) -> bool:
    """Tells whether anybody can read the files that a split is to replace.

    Nobody reads those of an unfinished job. Files that no job is known to have written
    may be the dataset of another program.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
        manifest: The dataset as it is, None if there is none that can be read.
        shards: Those to replace besides those that TFDS's names give to the split.
    """
    if manifest is not None and split in manifest.splits:
        return True
    paths = [layout.join(output, path) for path in layout.split_paths(name, split)]
    unfinished = any(storage_for(output).stat_all(paths))
    return not unfinished and bool(list_shards(output, name, split, others=shards))


def remove_split(
    output: str,
    name: str,
    split: str,
    *,
    manifest: Manifest | None,
    version: str,
    shards: Iterable[str],
) -> Manifest | None:
    """Removes all files of a split, and the split from `dataset.json`.

    Deletes only files that were there while `dataset.json` was as described, and only
    in the version that was there. A process that stalls here for an hour, while others
    write and commit the split, deletes none of their files. Call `check_removal`
    before: this function does not check who owns the files.

    Args:
        output: The dataset's directory.
        name: The dataset's name.
        split: The split.
        manifest: The dataset as it is, None if there is none that can be read.
        version: Of the `dataset.json` that says so.
        shards: Shards to remove besides those that TFDS's names give to the split.

    Returns:
        The dataset without the split, None if nothing is left.

    Raises:
        StorageChangedError: Another process has changed `dataset.json` meanwhile, or
            writes the split.
    """
    storage = storage_for(output)
    # The description is deleted before the shards: workers of an earlier job, still
    # running somewhere, read it before they publish.
    paths = [layout.join(output, path) for path in layout.split_paths(name, split)]
    to_clear = _of_editions(output, name, split)
    described = [*storage.stat_all(paths), *to_clear]
    to_delete = list_shards(output, name, split, others=shards)
    place = layout.join(output, layout.DATASET_JSON)
    now = version_of(place)
    if now != version:
        raise changed_error(
            place,
            expected=version or "no dataset",
            got=now or "no dataset",
            what="dataset was committed by another process while this command ran",
        )
    withdraw_tfds_info(output, name, [split])
    inside = (info.path.removeprefix(layout.join(output, "")) for info in to_clear)
    delete_unfinished_editions(output, name, split, inside)
    if manifest is None and version:
        storage.delete(place, version=version)
    if manifest is not None and split in manifest.splits:
        # First: from here on, readers do not find the split.
        left = {k: v for k, v in manifest.splits.items() if k != split}
        manifest = dataclasses.replace(manifest, splits=left) if left else None
        if manifest is not None:
            storage.write(place, manifest.encode(), replaces=version)
        else:
            storage.delete(place, version=version)
    for info in described:
        if info is not None:
            storage.delete(info.path, version=info.version)
    storage.delete_all(to_delete)
    return manifest


def _of_editions(output: str, name: str, split: str) -> list[FileInfo]:
    """Lists what describes the later editions of a split."""
    pattern = layout.edition_file(name, split)
    listed = storage_for(output).list(layout.join(output, layout.INDEX_DIR))
    return [
        info
        for info in listed
        if pattern.fullmatch(info.path.removeprefix(layout.join(output, "")))
    ]


def delete_unfinished_editions(
    output: str, name: str, split: str, files: Iterable[str]
) -> None:
    """Deletes what killed appends left of shards, if a split is to go with all of them.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
        files: Those of the dataset, relative to it.
    """
    storage = storage_for(output)
    found = map(layout.edition_file(name, split).fullmatch, files)
    for mark in {match[1] for match in found if match and not storage.remote}:
        storage.delete_tree(layout.temporary_dir(output, name, f"{split}.{mark}"))


def withdraw_tfds_info(output: str, name: str, splits: Iterable[str]) -> None:
    """Removes `dataset_info.json` if it describes splits that are about to be removed.

    TFDS treats a directory without it as unfinished, which is right then. A file that
    describes another dataset, or TFRecord files in the same directory, stays.
    """
    version = described_by_tfds(output, name, splits)
    if version is not None:
        path = layout.join(output, layout.TFDS_INFO_JSON)
        storage_for(output).delete(path, version=version)


def described_by_tfds(output: str, name: str, splits: Iterable[str]) -> str | None:
    """Returns the version of `dataset_info.json` if it describes one of some splits."""
    path = layout.join(output, layout.TFDS_INFO_JSON)
    content = storage_for(output).load(path)
    if content is None:
        return None
    try:
        info = json.loads(content.data)
        found = info["name"], info["fileFormat"]
        described = {each["name"] for each in info["splits"]}
    except (KeyError, TypeError, ValueError):
        return None
    own = found == (name, "array_record") and described & {*splits}
    return content.version if own else None
