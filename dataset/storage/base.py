"""`Storage`: the operations on files that gristmill needs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
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
    """A file in a listing.

    Attributes:
        path: Whole path.
        size_bytes: Its size.
        version: A mark that changes when the file is written again: the time of its
            last change, or the generation of an object.
        crc32c: Checksum of the whole file, if the storage keeps one.
        noted_ns: When the system recorded a change of the file, its permissions or its
            links (ctime), in nanoseconds since 1970; 0 if not known.
    """

    path: str
    size_bytes: int
    version: str = ""
    crc32c: int | None = None
    noted_ns: int = 0


class Content(NamedTuple):
    """A file, or a range of it, read at once.

    Attributes:
        data: The bytes; fewer than requested only at the end of the file.
        version: Version of the file, see `FileInfo`.
        size_bytes: Size of the whole file.
    """

    data: bytes
    version: str
    size_bytes: int


class Storage(Protocol):
    """The interface of a kind of storage. Paths are whole, scheme included.

    `replaces` makes a write conditional: it is the version that the writer saw, or ""
    for no file. If another version is in place, nothing is written and
    StorageChangedError is raised, unless that file holds the same bytes: then the write
    succeeds, so that it can be repeated. None replaces any version.

    Attributes:
        remote: Whether each request takes milliseconds, so that reading ahead and
            concurrent requests pay off.
    """

    remote: bool

    def match(self, pattern: str) -> list[FileInfo]:
        """Lists the files that a pattern (or a plain path) matches, sorted."""

    def list(self, directory: str) -> list[FileInfo]:
        """Lists the files directly in a directory, sorted; empty if it is missing."""
        return sorted(self.scan(directory))

    def scan(
        self,
        directory: str,
        *,
        deep: bool = False,
        prefix: str = "",
        suffixes: tuple[str, ...] = ("",),
    ) -> Iterator[FileInfo]:
        """Yields the same files in any order, in little memory.

        Args:
            directory: The directory.
            deep: Whether to include the directories below it.
            prefix: Prefix of names in the directory, of files and, if `deep`, of
                directories: others are left out. It finds a few of a million faster.
            suffixes: Ends of the names of files: others are left out, and not looked
                at.
        """

    def stat(self, path: str) -> FileInfo | None:
        """Returns a file's size and version, or None if it does not exist."""

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
            offset: First byte to read.
            end: Roughly where the reader will stop: nothing after it is read ahead,
                though it can be read. None for the end of the file.
            version: The version to open; None for any.
            wait: Whether to wait for the first bytes. If not, errors are raised by the
                first read.

        Raises:
            StorageChangedError: The file has another version.
        """

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes of a half-open range; the whole file by default."""

    def load(self, path: str, begin: int = 0, end: int | None = None) -> Content | None:
        """Returns the same with version and size, None if the file does not exist."""

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        """Writes a small file atomically: readers see the old one or the new one."""

    def temporary(self, directory: str) -> contextlib.AbstractContextManager[str]:
        """Provides a unique local path for a file to be published.

        Args:
            directory: Directory for such files only: nothing is published to it.
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
            crc32c: Checksum of the file, if already known.
        """

    def delete(self, path: str, *, version: str | None = None) -> None:
        """Deletes a file if it exists, in this version or, by default, any.

        Raises StorageChangedError if the file has another version. The file stays.
        """


def map_all(call: Callable[[T], R], items: Iterable[T], *, at_once: int) -> Iterator[R]:
    """Yields the results of a function for items, called concurrently, in order.

    Memory does not grow with the number of items.
    """
    waiting = iter(items)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        while batch := list(itertools.islice(waiting, 64 * at_once)):
            yield from pool.map(call, batch)


def is_unfinished(name: str) -> bool:
    """Returns whether a name is that of a file to be renamed when complete.

    >>> is_unfinished(".0123456789abcdef.tmp")
    True
    """
    # All but a few of a million names begin differently.
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
        expected: The version seen before, or "" for no file.
        got: The version found, or "" for no file.
        what: What happened.
        kept: A sentence about work already done; "" when reading.
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
            errno.ENAMETOOLONG: "give a shorter name: file systems take 255 bytes",
            errno.ELOOP: "check the path: its links lead in a circle",
        }
        missing = isinstance(e, FileNotFoundError)
        raise (StorageMissingError if missing else StorageError)(
            f"cannot {action}",
            where=path,
            got=os.strerror(e.errno) if e.errno else str(e),
            cure=cures.get(e.errno or 0),
        ) from e
