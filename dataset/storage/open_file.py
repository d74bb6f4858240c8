"""Local files that are regular, opened and read by ranges.

Opening a FIFO waits for its writer, and a device can be endless. A file that stays open
is not memory-mapped: the kernel ends a process if the disk cannot read a mapped
page.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import BinaryIO, cast

from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageError,
    SystemLimitError,
)

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
