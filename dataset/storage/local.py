"""Local files, mounts included: `Storage` for local paths.

Only regular files are opened: opening a FIFO waits for its writer, and a device can be
endless. A file that stays open is not memory-mapped: the kernel ends a process if the
disk cannot read a mapped page.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import os
import pathlib
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, cast

from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.storage.base import (
    Content,
    FileInfo,
    Storage,
    changed_error,
    explained,
)
from gristmill.dataset.storage.directory_lock import (
    in_use,
    locked,
    new_file,
)
from gristmill.dataset.storage.paths import matching, status_of_match

MAX_WHOLE_BYTES = 4 << 30  # Enough for a table of ten million shards.

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_regular(path: str, mode: str = "rb", *, buffering: int = -1) -> BinaryIO:
    """Opens a local file as `open` does, if it is regular or does not exist.

    Raises StorageError at once for a FIFO, a socket, a device, or a link to one.
    """
    return cast(BinaryIO, open(path, mode, buffering, opener=_open))


def _open(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    except BlockingIOError:  # A file server recalls its lease of the file.
        check_regular(path, os.stat(path))
        descriptor = os.open(path, flags)
    except OSError as e:
        if e.errno == errno.ENXIO:  # A socket, or a FIFO that nobody reads.
            check_regular(path, os.stat(path))
        raise
    try:
        check_regular(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: str, status: os.stat_result) -> None:
    """Raises StorageError unless a status is that of a file or a directory."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        raise StorageError(
            "not a regular file",
            where=path,
            expected="a file",
            got=kind,
            cure="put the file in its place, or leave it out; copy what comes through "
            "a FIFO into a file first",
        )


def read_part(file: BinaryIO, path: str, begin: int, end: int | None) -> bytes:
    """Reads a range of a regular file, by default to its current end.

    Raises StorageError if that is too large to be read at once.
    """
    size_bytes = os.fstat(file.fileno()).st_size - begin
    if end is not None:  # No more memory than a shorter file needs.
        size_bytes = min(size_bytes, end - begin)
    elif size_bytes > MAX_WHOLE_BYTES:
        raise StorageError(
            "file is larger than any that describes data",
            where=path,
            expected=f"at most {MAX_WHOLE_BYTES:,} bytes",
            got=f"{size_bytes:,} bytes",
            cure="restore it from a copy, or convert the data again",
        )
    file.seek(begin)
    return file.read(max(size_bytes, 0))


def read_range(descriptor: int, begin: int, end: int) -> bytes:
    """Returns bytes of an open file; fewer where it ends before."""
    pieces = [os.pread(descriptor, end - begin, begin)]
    # A read ends after 2 GiB; a mounted bucket may return fewer bytes than requested.
    while pieces[-1] and (begin := begin + len(pieces[-1])) < end:
        pieces.append(os.pread(descriptor, end - begin, begin))
    return b"".join(pieces)


class OpenFile:
    """The bytes of a local file. Safe to share by threads and forked processes.

    It is closed when it is no longer used.

    Args:
        path: The file; opening it raises as `open_regular` does.

    Attributes:
        path: The file.
        descriptor: Its number.
        size_bytes: Its size when it was opened.
        stamp: A mark that changes when the file is written again.
    """

    __slots__ = ("descriptor", "path", "size_bytes", "stamp")

    def __init__(self, path: str):
        self.path = path
        with open_regular(path, buffering=0) as file:
            self.descriptor = os.dup(file.fileno())
        about = os.fstat(self.descriptor)
        self.size_bytes = about.st_size
        self.stamp = f"{about.st_mtime_ns} {about.st_ctime_ns}"

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A parameter, as module names are gone when the interpreter ends.
        if hasattr(self, "descriptor"):
            close(self.descriptor)

    def __getitem__(self, range_bytes: slice) -> bytes:
        """Returns the bytes [start, stop), which lie within the file.

        Raises:
            CorruptShardError: The file has become shorter.
            StorageError: The disk cannot read it.
        """
        begin, end = range_bytes.start, range_bytes.stop
        try:
            data = read_range(self.descriptor, begin, end)
        except OSError as e:
            raise SystemLimitError.of(e) or StorageError(
                "the disk cannot read a file",
                where=self.path,
                got=e.strerror,
                cure="look for errors of the disk or the mount (dmesg), and restore "
                "the file from a copy",
            ) from e
        if len(data) < end - begin:
            raise CorruptShardError(
                "file was truncated while it was in use",
                where=self.path,
                expected=f"{self.size_bytes:,} bytes, as when it was opened",
                got=f"{os.fstat(self.descriptor).st_size:,} bytes",
                cure="restore it from a copy or convert it again; replace files by "
                "renaming, never by writing into them",
            )
        return data


_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}


def _info_of(path: str, status: os.stat_result) -> FileInfo:
    return FileInfo(
        path,
        status.st_size,
        str(status.st_mtime_ns),
        noted_ns=status.st_ctime_ns,
    )


def _info(path: str) -> FileInfo:
    status = os.stat(path)
    check_regular(path, status)
    return _info_of(path, status)


def _infos(paths: Iterable[str]) -> Iterator[FileInfo]:
    for path in paths:
        try:
            found = _info(path)
        except FileNotFoundError:
            # Temporary files, for example, may be deleted after they were listed.
            continue
        yield found


@contextlib.contextmanager
def _unfinished(directory: str) -> Iterator[str]:
    """Creates a file to be renamed; deletes it at the end."""
    with explained("create the directory", directory):
        os.makedirs(directory or ".", exist_ok=True)
    with contextlib.ExitStack() as stack:
        there = False
        while not there:
            stack.close()
            path = _temporary_name(directory)
            with explained("create a file in the directory", directory):
                there = stack.enter_context(new_file(path))
        stack.callback(_delete_if_there, path)
        yield path


def _temporary_name(directory: str) -> str:
    return os.path.join(directory, f".{secrets.token_hex(8)}.tmp")


def _delete_if_there(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _give_name(local_path: str, path: str, *, found: str, new: bool) -> bool:
    """Renames a file atomically, and returns whether that succeeded.

    It fails if the name must be `new` but another file has it. `found` is the version
    of the file that it replaces.
    """
    if new:
        try:
            os.link(local_path, path)
        except FileExistsError:
            return False
        except OSError as e:
            # Without hard links, writers on two machines can both find the name free.
            if e.errno not in _NO_LINKS:
                raise
        else:
            return True
    if found:
        _make_later(local_path, int(found))
    os.replace(local_path, path)
    return True


def _make_later(path: str, than_ns: int) -> None:
    """Sets a file's time of change later than that of the file it replaces.

    Clocks of file systems tick every few milliseconds: two files in succession could
    have the same version.
    """
    for step_ns in (1, 2_000_000_000):  # Some file systems keep whole seconds.
        status = os.stat(path)
        if status.st_mtime_ns > than_ns:
            return
        os.utime(path, ns=(status.st_atime_ns, than_ns + step_ns))


def _sync_directory(directory: str) -> None:
    """Makes new names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        # Some network file systems cannot sync directories.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


class LocalStorage(Storage):
    """Local files, mounts included."""

    remote = False

    def match(self, pattern: str) -> list[FileInfo]:
        found = []
        with explained("list files", pattern):
            for path in sorted(set(matching(pattern))):
                status = status_of_match(path)
                check_regular(path, status)
                if not stat.S_ISDIR(status.st_mode):
                    found.append(_info_of(path, status))
        return found

    def scan(
        self,
        directory: str,
        *,
        deep: bool = False,
        prefix: str = "",
        suffixes: tuple[str, ...] = ("",),
    ) -> Iterator[FileInfo]:
        with explained("list the directory", directory):
            if deep:
                for folder, folders, files in os.walk(directory):
                    if folder == directory:
                        folders[:] = [f for f in folders if f.startswith(prefix)]
                        files = [f for f in files if f.startswith(prefix)]
                    yield from _infos(
                        os.path.join(folder, file)
                        for file in files
                        if file.endswith(suffixes)
                    )
                return
            with contextlib.suppress(FileNotFoundError), os.scandir(directory) as found:
                yield from _infos(
                    entry.path
                    for entry in found
                    if entry.name.startswith(prefix)
                    and entry.name.endswith(suffixes)
                    and entry.is_file()
                )

    def stat(self, path: str) -> FileInfo | None:
        with explained("inspect the file", path):
            try:
                if os.path.isdir(path):
                    return None
                return _info(path)
            except (FileNotFoundError, NotADirectoryError):
                return None

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
            # Readers read blocks of megabytes: a buffer would copy them again.
            file = open_regular(path, buffering=0)
            found = str(os.fstat(file.fileno()).st_mtime_ns)
            if version is not None and version != found:
                file.close()
                raise changed_error(
                    path,
                    expected=version,
                    got=found,
                    what="file was written again after it was listed",
                    kept="",
                )
            file.seek(offset)
        return file

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        with explained("read the file", path), open_regular(path) as file:
            return read_part(file, path, begin, end)

    def load(self, path: str, begin: int = 0, end: int | None = None) -> Content | None:
        with explained("read the file", path):
            try:
                with open_regular(path) as file:
                    about = os.fstat(file.fileno())
                    data = read_part(file, path, begin, end)
                    return Content(data, str(about.st_mtime_ns), about.st_size)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        with _unfinished(os.path.dirname(path)) as temporary:
            with explained("write the file", path):
                pathlib.Path(temporary).write_bytes(data)
            self.publish(temporary, path, replaces=replaces)

    @contextlib.contextmanager
    def temporary(self, directory: str) -> Iterator[str]:
        with contextlib.ExitStack() as stack:
            with explained("create the directory", directory):
                stack.enter_context(in_use(directory))
            path = _temporary_name(directory)
            stack.callback(_delete_if_there, path)
            yield path

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
            # Without it, a power failure can leave an empty file under this name.
            with open(local_path, "rb") as file:
                os.fsync(file.fileno())
            # No other writer comes between the check and the rename.
            with locked(directory):
                found = self._version(path)
                placed = replaces in (None, found) and _give_name(
                    local_path, path, found=found, new=replaces == ""
                )
            if placed:
                _sync_directory(directory)
            elif not (
                os.path.exists(path) and filecmp.cmp(local_path, path, shallow=False)
            ):
                raise changed_error(
                    path, expected=replaces or "", got=self._version(path)
                )

    def delete(self, path: str, *, version: str | None = None) -> None:
        with (
            explained("delete the file", path),
            contextlib.suppress(FileNotFoundError),
        ):
            if version is None:
                os.unlink(path)
                return
            with locked(os.path.dirname(path) or "."):
                if version != (found := _info(path).version):
                    raise changed_error(path, expected=version, got=found)
                os.unlink(path)

    def _version(self, path: str) -> str:
        found = self.stat(path)
        return "" if found is None else found.version
