"""Storage: the few operations on files that gristmill needs, by kind of path."""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol, cast

from gristmill.dataset.errors import (
    InputError,
    StorageChangedError,
)
from gristmill.dataset.storage.local_patterns import matching, status_of_match
from gristmill.dataset.storage.os_errors import explained

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


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


def storage_for(path: str) -> Storage:
    """Returns the storage that a path or pattern belongs to.

    Raises:
        InputError: There is none for its scheme.
    """
    scheme = _SCHEME.match(path)
    if scheme is None:
        return LocalStorage()
    if scheme.group(1) == "gs":
        # Imported here so that local paths do not need the client library.
        from gristmill.dataset.storage.gcs import gcs_storage

        return gcs_storage()
    raise InputError(
        f"no storage for {scheme.group(1)}:// paths",
        where=path,
        expected="a local path or gs://BUCKET/NAME",
        cure="copy the data to a local disk or a mounted bucket",
    )


def version_of(path: str) -> str:
    """Returns the version of a file, "" if there is none: what `replaces` takes."""
    found = storage_for(path).stat(path)
    return "" if found is None else found.version


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


def _info_of(path: str, status: os.stat_result) -> FileInfo:
    return FileInfo(path, status.st_size, str(status.st_mtime_ns))


def _info(path: str) -> FileInfo:
    return _info_of(path, os.stat(path))


def _give_name(local_path: str, path: str, *, new: bool) -> bool:
    """Gives a file its name at once; a new one only if nobody else has it by then.

    Returns:
        Whether it has it now.
    """
    if new:
        try:
            os.link(local_path, path)
        except FileExistsError:
            return False
        except OSError as e:
            # Some file systems have no links: one moment stays in which two can come.
            if e.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS):
                raise
        else:
            return True
    os.replace(local_path, path)
    return True


def _sync_directory(directory: str) -> None:
    """Makes the names in a directory last through a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Some network file systems have no such thing as a directory to write out.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _infos(paths: Iterable[str]) -> list[FileInfo]:
    found = []
    for path in paths:
        # Others may delete files, such as temporary ones, since they were listed.
        with contextlib.suppress(FileNotFoundError):
            found.append(_info(path))
    return found


class LocalStorage:
    """Files of this machine, mounts included."""

    remote = False

    def match(self, pattern: str) -> list[FileInfo]:
        found = []
        with explained("list files", pattern):
            for path in sorted(set(matching(pattern))):
                status = status_of_match(path)
                if stat.S_ISREG(status.st_mode):
                    found.append(_info_of(path, status))
        return found

    def list(self, directory: str) -> list[FileInfo]:
        with explained("list the directory", directory):
            try:
                with os.scandir(directory) as entries:
                    paths = [entry.path for entry in entries if entry.is_file()]
            except FileNotFoundError:
                return []
            return _infos(sorted(paths))

    def stat(self, path: str) -> FileInfo | None:
        with explained("look at the file", path):
            try:
                if os.path.isdir(path):
                    return None
                return _info(path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def stat_all(self, paths: Sequence[str]) -> Sequence[FileInfo | None]:
        return [self.stat(path) for path in paths]

    def open(
        self,
        path: str,
        *,
        offset: int = 0,
        end: int | None = None,
        version: str | None = None,
        wait: bool = True,
    ) -> BinaryIO:
        del wait
        with explained("open the file", path):
            # Readers ask for blocks of megabytes: a buffer would copy them again.
            file = open(path, "rb", buffering=0)  # noqa: SIM115
            found = str(os.fstat(file.fileno()).st_mtime_ns)
            if version is not None and version != found:
                file.close()
                raise changed_error(
                    "file was written again after it was listed",
                    path,
                    expected=version,
                    got=found,
                )
            file.seek(offset)
        return cast(BinaryIO, file)

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        with explained("read the file", path), open(path, "rb") as file:
            file.seek(begin)
            return file.read() if end is None else file.read(max(end - begin, 0))

    def load(self, path: str) -> Content | None:
        with explained("read the file", path):
            try:
                with open(path, "rb") as file:
                    version = str(os.fstat(file.fileno()).st_mtime_ns)
                    return Content(file.read(), version)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def load_all(self, paths: Sequence[str]) -> Sequence[Content | None]:
        return [self.load(path) for path in paths]

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        with self.temporary(os.path.dirname(path)) as temporary:
            with explained("write the file", path), open(temporary, "wb") as file:
                file.write(data)
            self.publish(temporary, path, replaces=replaces)

    @contextlib.contextmanager
    def temporary(self, directory: str) -> Iterator[str]:
        with explained("create the directory", directory):
            os.makedirs(directory or ".", exist_ok=True)
        path = os.path.join(directory, f".{secrets.token_hex(8)}.tmp")
        try:
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def publish(
        self,
        local_path: str,
        path: str,
        *,
        replaces: str | None = None,
        crc32c: int | None = None,
    ) -> None:
        del crc32c  # The file moves: nothing copies it.
        with explained("finish the file", path):
            directory = os.path.dirname(path) or "."
            os.makedirs(directory, exist_ok=True)
            # Without it, a power failure can leave the name on an empty file.
            with open(local_path, "rb") as file:
                os.fsync(file.fileno())
            found = None if replaces is None else version_of(path)
            if found == replaces and _give_name(local_path, path, new=found == ""):
                _sync_directory(directory)
            elif not (
                os.path.exists(path) and filecmp.cmp(local_path, path, shallow=False)
            ):
                raise changed_error(
                    "file was written by somebody else meanwhile",
                    path,
                    expected=replaces or "",
                    got=version_of(path),
                )

    def delete(self, path: str, *, version: str | None = None) -> None:
        with (
            explained("delete the file", path),
            contextlib.suppress(FileNotFoundError),
        ):
            if version is not None and version != (found := _info(path).version):
                raise changed_error(
                    "file was written by somebody else meanwhile",
                    path,
                    expected=version,
                    got=found,
                )
            os.unlink(path)

    def delete_all(self, files: Iterable[FileInfo]) -> None:
        for info in files:
            self.delete(info.path, version=info.version)

    def delete_tree(self, directory: str) -> None:
        with (
            explained("delete the directory", directory),
            contextlib.suppress(FileNotFoundError),
        ):
            shutil.rmtree(directory)
