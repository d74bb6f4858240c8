"""`Storage`: the few operations on files that gristmill needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from gristmill.dataset.errors import StorageChangedError


class FileInfo(NamedTuple):
    """A file as a listing shows it.

    Attributes:
        path: Whole path.
        size_bytes: Its size.
        version: Changes when the file is written again: the time of its last change,
            or the generation of an object.
        crc32c: Checksum of the whole file, where the storage keeps one.
    """

    path: str
    size_bytes: int
    version: str = ""
    crc32c: int | None = None


class Content(NamedTuple):
    """A small file, read at once.

    Attributes:
        data: All its bytes.
        version: Of the file that had them; see `FileInfo`.
    """

    data: bytes
    version: str


class Storage(Protocol):
    """What a kind of storage must do. Paths are whole, scheme included.

    `replaces` guards a write against writers elsewhere: the version (see `version_of`)
    that was seen before, "" for none. Where another file is in place by then, nothing
    is written, unless it holds the same bytes already: then that is a success, so that
    a repeated write does no harm. None replaces whatever is there.

    Attributes:
        remote: Whether answers take a while, so that it pays to ask for things before
            they are needed.
    """

    remote: bool

    def match(self, pattern: str) -> list[FileInfo]:
        """Lists the files that a pattern (or a plain path) matches, sorted."""

    def list(self, directory: str) -> list[FileInfo]:
        """Lists the files directly in a directory, sorted; none if it is not there."""

    def stat(self, path: str) -> FileInfo | None:
        """Returns the file's size, or None if there is no such file."""

    def stat_all(self, paths: Sequence[str]) -> Sequence[FileInfo | None]:
        """Returns the same of several files, in their order, as if all at once."""

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
            end: About where the reader will stop, so that not much is read ahead in
                vain; None for the end of the file. Reading on is possible.
            version: The version that is meant; None for any.
            wait: Whether to wait for the first bytes, where they take a while. If not,
                errors are raised by the first read.

        Raises:
            StorageChangedError: The file is another one than `version`.
        """

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes of a half-open range; the whole file by default."""

    def load(self, path: str) -> Content | None:
        """Returns a whole file with its version, None if there is no such file."""

    def load_all(self, paths: Sequence[str]) -> Sequence[Content | None]:
        """Returns the same of several files, in their order, as if all at once."""

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        """Writes a small file at once: readers see the old one or the new one."""

    def temporary(self, directory: str) -> contextlib.AbstractContextManager[str]:
        """Gives a local file name nobody else has, on the way to `directory`."""

    def publish(
        self,
        local_path: str,
        path: str,
        *,
        replaces: str | None = None,
        crc32c: int | None = None,
    ) -> None:
        """Moves a finished local file from `temporary` to its place, at once.

        Args:
            local_path: The file.
            path: Its place.
            replaces: See the class.
            crc32c: Checksum of the file where it is known: what is compared with it
                need not be computed again.
        """

    def delete(self, path: str, *, version: str | None = None) -> None:
        """Deletes a file, if it is there.

        Args:
            path: The file.
            version: The version that is meant; None for any.

        Raises:
            StorageChangedError: Another version is there. It stays.
        """

    def delete_all(self, files: Iterable[FileInfo]) -> None:
        """Deletes files in the versions that were listed, as if all at once.

        Raises:
            StorageChangedError: Another version of one is there. It stays.
        """

    def delete_tree(self, directory: str) -> None:
        """Deletes a directory with all in it, if it is there."""


def changed_error(
    what: str, path: str, *, expected: str, got: str
) -> StorageChangedError:
    """Returns the error that says that somebody else wrote a file meanwhile."""
    return StorageChangedError(
        what,
        where=path,
        expected=f"version {expected}" if expected else "no file",
        got=f"version {got}" if got else "no file",
        cure="run one job at a time on these files, and this one again: finished "
        "shards are kept",
    )
