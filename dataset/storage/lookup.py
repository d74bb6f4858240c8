"""The storage of a path: chosen by its scheme."""

from __future__ import annotations

import collections
import itertools
import posixpath
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gristmill.dataset.base.errors import StorageError, install_cure
from gristmill.dataset.storage import paths
from gristmill.dataset.storage.base import (
    Content,
    FileInfo,
    Storage,
    map_all,
)
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.paths import is_remote

T = TypeVar("T")
_AT_ONCE = 16
_CHANGES_AT_ONCE = 64


def storage_for(path: str) -> Storage:
    """Returns the storage that a path or pattern belongs to.

    Raises:
        InputError: Its scheme is unknown.
        StorageError: The client library or credentials are missing.
    """
    if not paths.has_bucket(path):
        return LocalStorage()
    # Imported here so that local paths do not need the client library.
    try:
        from gristmill.dataset.storage.gcs import gcs_storage
    except ImportError as e:
        raise StorageError(
            "the client library of Google Cloud Storage is not installed",
            expected="the package google-cloud-storage",
            got=str(e),
            cure=install_cure(".[gcs]"),
        ) from e
    return gcs_storage()


def version_of(path: str) -> str:
    """Returns the version of a file for `replaces`, "" if there is none."""
    found = storage_for(path).stat(path)
    return "" if found is None else found.version


def has_file(directory: str, name: str) -> bool:
    """Returns whether a directory, if it is one, has a file."""
    return storage_for(directory).stat(posixpath.join(directory, name)) is not None


def stat_all(paths: Sequence[str]) -> list[FileInfo | None]:
    """Returns `stat` of files, in their order; those of a bucket are asked at once."""
    return _all(lambda path: storage_for(path).stat(path), paths)


def load_all(paths: Sequence[str]) -> list[Content | None]:
    """Returns `load` of files, in their order; those of a bucket are asked at once."""
    return _all(lambda path: storage_for(path).load(path), paths)


def _all(call: Callable[[str], T], paths: Sequence[str]) -> list[T]:
    remote = len(paths) > 1 and storage_for(paths[0]).remote
    return [*(map_all(call, paths, at_once=_AT_ONCE) if remote else map(call, paths))]


def delete_all(files: Iterable[FileInfo]) -> None:
    """Deletes the listed versions of files, as `delete`; those of a bucket at once."""

    def delete(info: FileInfo) -> None:
        storage_for(info.path).delete(info.path, version=info.version)

    for remote, some in itertools.groupby(files, lambda info: is_remote(info.path)):
        if remote:
            collections.deque(map_all(delete, some, at_once=_CHANGES_AT_ONCE), 0)
        else:
            for info in some:
                delete(info)
