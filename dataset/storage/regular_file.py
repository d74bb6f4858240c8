"""Local files of unknown origin, opened only if they are regular.

Opening a FIFO waits for its writer, and a device can be endless.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO, cast

from gristmill.dataset.base.errors import StorageError

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


def read_whole(file: BinaryIO, path: str, begin: int = 0) -> bytes:
    """Reads a regular file from an offset to its current end.

    Raises StorageError if it is too large to be read whole.
    """
    size_bytes = os.fstat(file.fileno()).st_size
    check_size(path, size_bytes - begin)
    file.seek(begin)
    return file.read(max(size_bytes - begin, 0))


def check_size(path: str, size_bytes: int) -> None:
    """Raises StorageError if a file is too large to be read whole."""
    if size_bytes > MAX_WHOLE_BYTES:
        raise StorageError(
            "file is larger than any that describes data",
            where=path,
            expected=f"at most {MAX_WHOLE_BYTES:,} bytes",
            got=f"{size_bytes:,} bytes",
            cure="restore it from a copy, or convert the data again",
        )
