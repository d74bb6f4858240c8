"""Cleaning: editions that were replaced go, and files that no edition names."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator

from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.commit.attachment import give_up_attachments
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import (
    files_by_edition,
    last_begun,
    part_trees,
    without_replaced,
)
from gristmill.dataset.commit.garbage import (
    delete_leftovers,
    find_garbage,
    find_leftovers,
    garbage_editions,
)
from gristmill.dataset.commit.listings import Listings, walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.kinds import ATTACHMENT, TABLE
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import not_a_dataset, open_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo, is_unfinished
from gristmill.dataset.storage.lookup import storage_for

_TRIES = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cleaned:
    """What a cleaning deletes.

    Attributes:
        editions: Editions that are kept no longer, by `layout.edition_key`.
        files: How many files go.
        file_bytes: Their size.
    """

    editions: tuple[str, ...]
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

    Work that is not finished stays, whose editions have greater numbers than any that
    was given out. So a command that writes to the dataset meanwhile loses nothing.

    Args:
        output: The dataset's directory.
        unfinished: Whether work that is not finished goes, too. Its numbers count as
            given out then: a command that still runs fails, and none writes files of
            these names again.
        delete: Whether to delete it. If not, it is only found.
        seen: Called with each file, relative to the dataset, and its size.

    Raises:
        NotADatasetError: There is no dataset.
        InvalidDatasetError: The table of an edition that stays cannot be read: what
            belongs to it is not known.
        StorageChangedError: Other commands commit all the time.
    """

    def change(old: Manifest | None) -> Manifest:
        if old is None:
            raise not_a_dataset(output)
        splits = {name: without_replaced(one) for name, one in old.splits.items()}
        for name, split in splits.items() if unfinished else ():
            splits[name] = _given_up(output, old.name, name, split)
        return dataclasses.replace(old, splits=splits)

    before = open_manifest(output)
    found: dict[str, int] = {}

    def noted(files: Iterator[FileInfo]) -> Iterator[FileInfo]:
        for info in files:
            path = info.path.removeprefix(layout.join(output, ""))
            if path not in found:
                seen(path, info.size_bytes)
            found[path] = info.size_bytes
            yield info

    for left in reversed(range(_TRIES)):
        if delete:
            after = commit(output, change, delete=False)
        else:
            after = change(open_manifest(output))
        try:
            for name in after.splits:
                if unfinished and delete:
                    _ = [*noted(give_up_attachments(output, after, name))]
                given_up = unfinished and not delete
                files = noted(_all_files(output, after, name, given_up=given_up))
                _delete(output, after, name, files) if delete else [*files]
            break
        except (InvalidDatasetError, StorageError):
            # Another command may have replaced what was read.
            if not left or change(open_manifest(output)) == after:
                raise
    if delete:
        delete_leftovers(output, after.name, after.splits if unfinished else ())
    return Cleaned(
        editions=tuple(sorted(before.known.keys() - after.known.keys())),
        files=len(found),
        file_bytes=sum(found.values()),
    )


def _given_up(output: str, name: str, key: str, split: Split) -> Split:
    last = max(split.last_edition, last_begun(output, name, key))
    return dataclasses.replace(split, last_edition=last)


def give_up(output: str, split: str) -> Manifest:
    """Gives up the work on a split that is not finished; its files become garbage.

    Who is at it still, fails.

    Returns:
        The dataset as it is then.
    """

    def change(old: Manifest | None) -> Manifest:
        if old is None:
            raise not_a_dataset(output)
        given_up = _given_up(output, old.name, split, old.splits[split])
        return dataclasses.replace(old, splits={**old.splits, split: given_up})

    manifest = commit(output, change, delete=False)
    _ = [*give_up_attachments(output, manifest, split)]
    return manifest


def unfinished_files(
    output: str, manifest: Manifest, name: str, *, own: Collection[int] = ()
) -> Iterator[str]:
    """Yields files of work on a split that is not finished, relative to the dataset.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        own: The editions that the caller makes, whose files are left out.
    """
    for one in walk(output, (ATTACHMENT,), layout.parts_of(manifest.name, name)):
        yield one.path
    last = manifest.splits[name].last_edition
    for edition, path in files_by_edition(output, manifest.name, name):
        if edition > last and edition not in own:
            yield path


def sweep(output: str, manifest: Manifest, name: str) -> tuple[str, ...]:
    """Deletes all that a split does not name, and that no unfinished work has made.

    Returns:
        What it leaves, as a process of this machine writes there.
    """
    known = manifest.splits[name].known
    keys = {layout.edition_key(name, edition) for edition in known}
    _delete(output, manifest, name, _all_files(output, manifest, name))
    delete_leftovers(output, manifest.name, {name, *keys})
    left = find_leftovers(output, manifest, Listings(output))
    return tuple(sorted(path for path in left if is_unfinished(layout.base_name(path))))


def _all_files(
    output: str, manifest: Manifest, name: str, *, given_up: bool = False
) -> Iterator[FileInfo]:
    trees = map(storage_for(output).list_tree, _trees(output, manifest, name))
    garbage = find_garbage(output, manifest, name, given_up=given_up)
    yield from itertools.chain(*trees, garbage)


def _delete(
    output: str, manifest: Manifest, name: str, files: Iterator[FileInfo]
) -> None:
    """Deletes the garbage of a split, the tables last: they tell what else there is."""
    storage = storage_for(output)
    tables = []

    def others() -> Iterator[FileInfo]:
        for info in files:
            if info.path.endswith(TABLE.suffix):
                tables.append(info)
            else:
                yield info

    trees = _trees(output, manifest, name)
    storage.delete_all(others())
    for tree in trees:  # What is left of them: directories.
        with contextlib.suppress(StorageError):  # A command makes files there.
            storage.delete_tree(tree)
    storage.delete_all(tables)


def _trees(output: str, manifest: Manifest, name: str) -> list[str]:
    """Returns the directories of unfinished files of editions that are not to come."""
    storage, last = storage_for(output), manifest.splits[name].last_edition
    trees = part_trees(output, manifest.name, name)
    for edition in garbage_editions(output, manifest, name).editions:
        key = layout.edition_key(name, edition)
        trees[edition] = layout.temporary_dir(output, manifest.name, key)
    return [
        tree
        for edition, tree in sorted(trees.items())
        if edition <= last and not storage.is_in_use(tree)
    ]
