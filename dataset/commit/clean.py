"""Cleaning: deletes replaced editions, and files that no edition names."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator

from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.commit.commit import commit, read_to_change, with_spent
from gristmill.dataset.commit.editions import without_replaced
from gristmill.dataset.commit.garbage import (
    SplitFiles,
    delete_leftovers,
    files_in,
    find_leftovers,
    splits_of,
    write_keys,
)
from gristmill.dataset.commit.listings import Listings, walk
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import JOB
from gristmill.dataset.metadata.manifest import Manifest, read_versioned_manifest
from gristmill.dataset.storage.base import FileInfo, is_unfinished
from gristmill.dataset.storage.directory_lock import delete_tree
from gristmill.dataset.storage.lookup import delete_all, storage_for

_TRIES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cleaned:
    """What a cleaning deletes.

    Attributes:
        editions: The editions no longer kept, each as its split and number.
        files: Number of files deleted.
        file_bytes: Their size.
    """

    editions: tuple[tuple[str, int], ...]
    files: int
    file_bytes: int


def clean(
    output: str,
    *,
    unfinished: bool = False,
    delete: bool = True,
    seen: Callable[[str, int], None] = lambda path, size_bytes: None,
) -> Cleaned:
    """Deletes the replaced editions of a dataset, and files that no edition names.

    Unfinished work stays: work that is described beside the dataset, and neither
    committed nor given up. So a command that writes meanwhile loses nothing.

    Args:
        output: The dataset's directory.
        unfinished: Whether to delete unfinished work too. The same write of
            `dataset.json`, which is created if missing, first gives it up: a command
            that still runs fails, and none uses these file names again.
        delete: Whether to delete, or only to find out what would be.
        seen: Called with each file, relative to the dataset, and its size.

    Raises:
        NotADatasetError: There is no dataset.
        InvalidDatasetError: The table of an edition that stays cannot be read, so its
            files are not known.
        StorageChangedError: Other commands keep committing.
    """

    def change(old: Manifest) -> Manifest:
        splits = {name: without_replaced(one) for name, one in old.splits.items()}
        spent = old.spent
        for name in splits_of(output, old) if unfinished else ():
            spent |= SplitFiles(output, old, name).unfinished_writes()
        return with_spent(old, dataclasses.replace(old, splits=splits, spent=spent))

    def noted(files: Iterable[FileInfo]) -> Iterator[FileInfo]:
        for info in files:
            path = info.path.removeprefix(layout.join(output, ""))
            if path not in found:
                seen(path, info.size_bytes)
            found[path] = info.size_bytes
            yield info

    (before, _), found = read_versioned_manifest(output), dict[str, int]()
    name = _described_name(output) if unfinished and not before.name else ""
    for left in reversed(range(_TRIES)):
        if delete:
            after = commit(output, change, name=name, delete=False)
        else:
            after = change(read_to_change(output, name)[0])
        try:
            for split in splits_of(output, after):
                _sweep(SplitFiles(output, after, split), noted, delete=delete)
            break
        except (InvalidDatasetError, StorageError):
            # Another command may have replaced what was read.
            if not left or change(read_to_change(output, name)[0]) == after:
                raise
    if delete:
        delete_leftovers(output, after.name, after.splits if unfinished else ())
    return Cleaned(
        editions=tuple(sorted(_numbers(before) - _numbers(after))),
        files=len(found),
        file_bytes=sum(found.values()),
    )


def _numbers(manifest: Manifest) -> set[tuple[str, int]]:
    splits = manifest.splits.items()
    return {(name, number) for name, split in splits for number in split.known}


def _described_name(output: str) -> str:
    """Returns the name of a dataset that only unfinished work describes, or ""."""
    for found in walk(output, (JOB,)):
        content = storage_for(output).load(found.info.path)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if content and (name := json.loads(content.data)["name"]):
                return str(name)
    return ""


def give_up(output: str, split: str) -> Manifest:
    """Gives up the work on a split that is not finished; its files become garbage.

    A command that still works on it fails.

    Returns:
        The dataset as it is then.
    """

    def change(old: Manifest) -> Manifest:
        given_up = SplitFiles(output, old, split).unfinished_writes()
        return dataclasses.replace(old, spent=old.spent | given_up)

    return commit(output, change, delete=False)


def give_up_write(write: Write) -> None:
    """Gives up one write, even if nothing is committed yet."""

    def change(old: Manifest) -> Manifest:
        return dataclasses.replace(old, spent=old.spent | {write.id})

    commit(write.output, change, name=write.name, delete=False)


def sweep(output: str, manifest: Manifest, name: str) -> tuple[str, ...]:
    """Deletes the files of a split that neither it nor unfinished work names.

    Returns:
        The files that it leaves because processes of this machine are writing them.
    """
    _sweep(SplitFiles(output, manifest, name), iter)
    delete_leftovers(output, manifest.name, write_keys(manifest, name))
    left = [path for path, _ in find_leftovers(output, manifest, Listings(output))]
    return tuple(sorted(path for path in left if is_unfinished(layout.base_name(path))))


def _sweep(
    files: SplitFiles,
    noted: Callable[[Iterable[FileInfo]], Iterator[FileInfo]],
    *,
    delete: bool = True,
) -> None:
    """Deletes the garbage of a split, and directories of unfinished files."""
    trees = files.idle_trees()
    inside = (info for tree in trees for info in files_in(tree))
    for step in (inside, *files.garbage()):
        if delete:
            delete_all(noted(step))
        else:
            collections.deque(noted(step), maxlen=0)
    for tree in trees if delete else ():  # What is left of them: directories.
        with contextlib.suppress(StorageError):  # A command makes files there.
            delete_tree(tree)
