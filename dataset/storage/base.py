"""`Storage`: the few operations on files that gristmill needs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from gristmill.dataset.base.errors import (
    GristmillError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
    SystemLimitError,
)

T = TypeVar("T")
R = TypeVar("R")


class FileInfo(NamedTuple):
    """A file as a listing shows it.

    Attributes:
        path: Whole path.
        size_bytes: Its size.
        version: Changes when the file is written again: the time of its last change,
            or the generation of an object.
        crc32c: Checksum of the whole file, where the storage keeps one.
        noted_ns: When the system noted a change of the file, of its permissions or of
            its links (ctime), in nanoseconds since 1970; 0 where it does not tell.
    """

    path: str
    size_bytes: int
    version: str = ""
    crc32c: int | None = None
    noted_ns: int = 0


class Content(NamedTuple):
    """A small file, read whole.

    Attributes:
        data: All its bytes.
        version: Version of the file, see `FileInfo`.
    """

    data: bytes
    version: str


class Link(NamedTuple):
    """A second name for a file, in the same storage.

    Attributes:
        source: The file.
        path: The name.
        replaces: The version of the file that has this path, "" for none.
    """

    source: FileInfo
    path: str
    replaces: str


class Storage(Protocol):
    """What a kind of storage must do. Paths are whole, scheme included.

    `replaces` makes a write conditional: it is the version that the writer saw before,
    or "" for no file. If another version is in place, nothing is written and
    StorageChangedError is raised, unless that file holds the same bytes: then the write
    succeeds, so that it can be repeated. None replaces any version.

    Attributes:
        remote: Whether each request takes milliseconds, so that it pays to read ahead
            and to send many at a time.
    """

    remote: bool

    def match(self, pattern: str) -> list[FileInfo]:
        """Lists the files that a pattern (or a plain path) matches, sorted."""

    def list(self, directory: str) -> list[FileInfo]:
        """Lists the files directly in a directory, sorted; none if there is none."""

    def scan(
        self, directory: str, *, deep: bool = False, prefix: str = ""
    ) -> Iterator[FileInfo]:
        """Yields the same files in no certain order, in little memory.

        Args:
            directory: The directory.
            deep: Whether to yield also those in the directories below it.
            prefix: How names in the directory begin, of files and, where `deep`, of
                directories: others are left out. A few of a million are found faster
                so.
        """

    def stat(self, path: str) -> FileInfo | None:
        """Returns a file's size and version, or None if there is no such file."""

    def stat_all(self, paths: Sequence[str]) -> Sequence[FileInfo | None]:
        """Does the same for several files concurrently; returns them in their order."""

    def open(
        self,
        path: str,
        *,
        offset: int = 0,
        end: int | None = None,
        version: str | None = None,
        wait: bool = True,
    ) -> BinaryIO:
        """Opens a file for reading forward from a byte offset.

        Args:
            path: The file.
            offset: Where to begin.
            end: About where the reader will stop: nothing behind it is read ahead.
                None for the end of the file. Reading past it is possible.
            version: The version to open; None for any.
            wait: Whether to wait for the first bytes. If not, errors are raised by the
                first read.

        Raises:
            StorageChangedError: The file has another version.
        """

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes of a half-open range; the whole file by default."""

    def peek(self, path: str, begin: int, end: int) -> tuple[FileInfo, bytes] | None:
        """Returns a range that is not empty, and what `stat` says of the file then.

        None if there is no such file. In a bucket it is one request; the range says
        size and version of its object, not the checksum.
        """

    def load(self, path: str) -> Content | None:
        """Returns a whole file with its version, None if there is no such file."""

    def load_all(self, paths: Sequence[str]) -> Sequence[Content | None]:
        """Does the same for several files concurrently; returns them in their order."""

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        """Writes a small file atomically: readers see the old one or the new one."""

    def temporary(self, directory: str) -> contextlib.AbstractContextManager[str]:
        """Gives a unique local path for a file that is to be published.

        Args:
            directory: For such files alone: nothing is published to it.
        """

    def publish(
        self,
        local_path: str,
        path: str,
        *,
        replaces: str | None = None,
        crc32c: int | None = None,
    ) -> None:
        """Moves a finished local file from `temporary` to its path, atomically.

        Args:
            local_path: The file.
            path: Its final path.
            replaces: See the class.
            crc32c: Checksum of the file, if known: it is not computed again.
        """

    def delete(self, path: str, *, version: str | None = None) -> None:
        """Deletes a file, if it exists, in this version or, by default, in any.

        Raises StorageChangedError if the file has another version. It stays.
        """

    def delete_all(self, files: Iterable[FileInfo]) -> None:
        """Deletes the listed versions of files, concurrently, as `delete` does."""

    def delete_unfinished(self, directory: str) -> None:
        """Deletes what killed processes left directly in a directory in a `write`.

        A `write` by a process that lives succeeds all the same.
        """

    def is_in_use(self, directory: str) -> bool:
        """Tells whether a process of this machine has `temporary` files there."""

    def delete_tree(self, directory: str) -> None:
        """Deletes a directory with all its files, unless it `is_in_use`."""

    def list_tree(self, directory: str) -> Sequence[FileInfo]:
        """Lists the files in a directory and below it; none if there is none."""

    def link_all(self, links: Iterable[Link]) -> None:
        """Gives files second names, concurrently. None of them is read here.

        A bucket copies its objects, and so does a disk without hard links. If another
        version has the new path, that file stays, and StorageChangedError is raised.
        """

    def free_bytes(self, directory: str) -> int | None:
        """Returns the space that is free in a directory, None where that is unknown."""


def map_all(call: Callable[[T], R], items: Iterable[T], *, at_once: int) -> Iterator[R]:
    """Yields what a function returns for items, called concurrently, in their order.

    Memory does not grow with the number of items.
    """
    waiting = iter(items)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        while batch := list(itertools.islice(waiting, 64 * at_once)):
            yield from pool.map(call, batch)


def for_all(call: Callable[[T], object], items: Iterable[T], *, at_once: int) -> None:
    """Calls a function for items, concurrently; raises the first error."""
    for _ in map_all(call, items, at_once=at_once):
        pass


def is_unfinished(name: str) -> bool:
    """Tells whether a file was, by its name, to be renamed when it was complete.

    >>> is_unfinished(".0123456789abcdef.tmp")
    True
    """
    # Of a million names, all but a few begin otherwise.
    return name.startswith(".") and bool(re.fullmatch(r"\.[0-9a-f]{16}\.tmp", name))


def changed_error(
    path: str,
    *,
    expected: str,
    got: str,
    what: str = "file changed while this command ran",
    kept: str = ": finished shards are kept",
) -> StorageChangedError:
    """Returns the error for a file that another writer changed.

    Args:
        path: The file.
        expected: The version that was seen before, "" for no file.
        got: The version that is there, "" for no file.
        what: What happened.
        kept: What to say of work that is done; "" for a file that is read.
    """
    return StorageChangedError(
        what,
        where=path,
        expected=f"version {expected}" if expected else "no file",
        got=f"version {got}" if got else "no file",
        cure=f"run one job at a time on these files, and this one again{kept}",
    )


@contextlib.contextmanager
def explained(action: str, path: str) -> Iterator[None]:
    """Turns an OSError of a local file into a `StorageError`: "cannot ACTION"."""
    try:
        yield
    except GristmillError:
        raise
    except OSError as e:
        cures = SystemLimitError.CURES | {
            errno.ENOSPC: "free some space, then run the same command again: "
            "finished shards are kept",
            errno.EDQUOT: "raise the quota, then run the same command again",
            errno.EACCES: "check the permissions of the file and its directories",
            errno.EPERM: "check the permissions of the file and its directories",
            errno.EROFS: "choose a place that is not mounted read-only",
            errno.EISDIR: "check the path: this is a directory",
            errno.ENOENT: "check the path",
            errno.ENOTDIR: "check the path: a part of it is a file",
        }
        missing = isinstance(e, FileNotFoundError)
        raise (StorageMissingError if missing else StorageError)(
            f"cannot {action}",
            where=path,
            got=os.strerror(e.errno) if e.errno else str(e),
            cure=cures.get(e.errno or 0),
        ) from e
