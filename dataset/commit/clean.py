"""Cleaning: editions that were replaced go, and files that no edition names."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator

from gristmill.dataset.base.errors import InputError, StorageChangedError, StorageError
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.garbage import find_garbage, garbage_editions
from gristmill.dataset.commit.leftovers import delete_leftovers
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.edition_changes import without_replaced
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import not_a_dataset, open_manifest
from gristmill.dataset.metadata.read_manifest import read_versioned_manifest
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

_LAST_NUMBER = 10**9 - 1  # Of all that an edition can have.
_TRIES = 5
_CLAIMS = (".job.json", ".write.json")
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
    was committed. So a command that writes to the dataset meanwhile loses nothing.

    Args:
        output: The dataset's directory.
        unfinished: Whether work that is not finished goes, too. A command that still
            runs fails then.
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
        return dataclasses.replace(old, splits=splits)

    before = open_manifest(output)
    after = change(before)
    if delete:
        after = commit(output, change, delete=False)
    begun: dict[str, list[FileInfo]] = {}
    if delete and unfinished:
        after, begun = _end_claims(output, change)
    sizes: list[int] = []

    def found(name: str) -> Iterator[FileInfo]:
        files = begun.get(name)
        known = _as_known(after, name, unfinished)
        for info in _all_files(output, known, name) if files is None else files:
            sizes.append(info.size_bytes)
            seen(info.path.removeprefix(layout.join(output, "")), info.size_bytes)
            yield info

    for name in after.splits:
        if delete:
            _delete(output, _as_known(after, name, unfinished), name, found(name))
        else:
            collections.deque(found(name), maxlen=0)
    if delete:
        delete_leftovers(output, after.name, ())
    return Cleaned(
        editions=tuple(sorted(before.known.keys() - after.known.keys())),
        files=len(sizes),
        file_bytes=sum(sizes),
    )


def _all_files(output: str, manifest: Manifest, name: str) -> Iterator[FileInfo]:
    trees = map(storage_for(output).list_tree, _trees(output, manifest, name))
    yield from itertools.chain(*trees, find_garbage(output, manifest, name))


def _end_claims(
    output: str, change: Callable[[Manifest | None], Manifest]
) -> tuple[Manifest, dict[str, list[FileInfo]]]:
    """Takes from commands that are not finished what they need to commit.

    Returns the dataset and what can be deleted, by split. Whoever made these files has
    described its work before: no description, no commit. Who has looked for its own
    already finds another version of `dataset.json`.
    """
    storage, place = storage_for(output), layout.join(output, layout.DATASET_JSON)
    for left in reversed(range(_TRIES)):
        read, version = read_versioned_manifest(output)
        manifest = change(read)
        files, claims = {}, []
        for name in manifest.splits:
            known = _as_known(manifest, name, True)
            files[name] = list(_all_files(output, known, name))
            described = garbage_editions(output, known, name).described
            claims += [info for info in described if info.path.endswith(_CLAIMS)]
        storage.delete_all(claims)
        try:
            storage.write(place, manifest.encode(), replaces=version)
        except StorageChangedError:
            if not left:
                raise
        else:
            return manifest, files
    raise AssertionError


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
    if last == _LAST_NUMBER:  # An earlier release has begun to replace the split there.
        trees.append(layout.aside_dir(output, manifest.name, name))
    return [tree for tree in trees if not storage.is_in_use(tree)]


def _as_known(manifest: Manifest, name: str, unfinished: bool) -> Manifest:
    """Returns a dataset; with `unfinished`, as if all numbers were given out."""
    if not unfinished:
        return manifest
    split = dataclasses.replace(manifest.splits[name], last_edition=_LAST_NUMBER)
    return dataclasses.replace(manifest, splits={**manifest.splits, name: split})
