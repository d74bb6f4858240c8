"""Cleaning: editions that were replaced go, and files that no edition names."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator

from gristmill.dataset.base.errors import InputError, InvalidDatasetError, StorageError
from gristmill.dataset.commit.attachment import give_up_attachments
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import last_begun, without_replaced
from gristmill.dataset.commit.garbage import (
    delete_leftovers,
    find_garbage,
    garbage_editions,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import not_a_dataset, open_manifest
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

_TRIES = 5
_TABLE = layout.table_path("", "").rpartition("-")[2]  # How tables end.


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
            last = max(split.last_edition, last_begun(output, old.name, name))
            splits[name] = dataclasses.replace(split, last_edition=last)
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
                if unfinished:
                    own = give_up_attachments(output, after, name, delete=delete)
                    _ = [*noted(own)]
                files = noted(_all_files(output, after, name))
                _delete(output, after, name, files) if delete else [*files]
            break
        except (InvalidDatasetError, StorageError):
            # Another command may have replaced what was read.
            if not left or change(open_manifest(output)) == after:
                raise
    if delete:
        delete_leftovers(output, after.name, ())
    return Cleaned(
        editions=tuple(sorted(before.known.keys() - after.known.keys())),
        files=len(found),
        file_bytes=sum(found.values()),
    )


def _all_files(output: str, manifest: Manifest, name: str) -> Iterator[FileInfo]:
    trees = map(storage_for(output).list_tree, _trees(output, manifest, name))
    yield from itertools.chain(*trees, find_garbage(output, manifest, name))


def _delete(
    output: str, manifest: Manifest, name: str, files: Iterator[FileInfo]
) -> None:
    """Deletes the garbage of a split, the tables last: they tell what else there is."""
    storage = storage_for(output)
    tables = []

    def others() -> Iterator[FileInfo]:
        for info in files:
            if info.path.endswith(_TABLE):
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
    own = layout.temporary_dir("", manifest.name, "")
    keys = {
        info.path.removeprefix(layout.join(output, own)).partition("/")[0]
        for info in storage.scan(output, deep=True, prefix=f"{own}{name}")
    }
    keys |= {
        layout.edition_key(name, edition)
        for edition in garbage_editions(output, manifest, name).editions
    }
    trees = []
    for key in sorted(keys):
        with contextlib.suppress(InputError):  # It is a directory of another program.
            only, edition = layout.parse_edition_key(key)
            if only == name and edition <= last:
                trees.append(layout.temporary_dir(output, manifest.name, key))
    return [tree for tree in trees if not storage.is_in_use(tree)]
