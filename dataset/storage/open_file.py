"""An open local file, read by ranges.

It is not memory-mapped: the kernel ends a process if the disk cannot read a mapped
page.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gristmill.dataset.base.errors import (
    CorruptShardError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.storage.regular_file import open_regular


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
            data = os.pread(self.descriptor, end - begin, begin)
        except OSError as e:
            raise self._unreadable(e) from e
        if len(data) == end - begin:
            return data
        return self._read_on(data, begin, end)

    def _read_on(self, data: bytes, begin: int, end: int) -> bytes:
        """Reads what follows: a read ends after 2 GiB, and at the end of the file."""
        pieces = [data]
        begin += len(data)
        while begin < end:
            try:
                pieces.append(os.pread(self.descriptor, end - begin, begin))
            except OSError as e:
                raise self._unreadable(e) from e
            if not pieces[-1]:
                raise CorruptShardError(
                    "file was truncated while it was in use",
                    where=self.path,
                    expected=f"{self.size_bytes:,} bytes, as when it was opened",
                    got=f"{os.fstat(self.descriptor).st_size:,} bytes",
                    cure="restore it from a copy or convert it again; replace files by "
                    "renaming, never by writing into them",
                )
            begin += len(pieces[-1])
        return b"".join(pieces)

    def _unreadable(self, error: OSError) -> StorageError | SystemLimitError:
        return SystemLimitError.of(error) or StorageError(
            "the disk cannot read a file",
            where=self.path,
            got=error.strerror,
            cure="look for errors of the disk or the mount (dmesg), and restore the "
            "file from a copy",
        )
