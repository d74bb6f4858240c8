"""An array that grows on disk, in an unnamed temporary file."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import StorageError

_BUFFER_BYTES = 1 << 18

Int64 = npt.NDArray[np.int64]


class ArraySpool:
    """Takes values, and returns runs of them.

    The file is deleted when the process ends, however it ends.

    Args:
        directory: Directory of the file; None for that of temporary files.
        dtype: Type of the values.
        kept: A plural noun for the values, for messages.

    Raises:
        StorageError: The directory is missing or full. Raised by all methods but
            `close`.
    """

    def __init__(
        self, directory: str | None, dtype: npt.DTypeLike, *, kept: str = "tokens"
    ) -> None:
        self._is_default = directory is None
        self._directory = tempfile.gettempdir() if directory is None else directory
        self.dtype, self._kept = np.dtype(dtype), kept
        self._size = 0
        self._is_flushed = True
        try:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115
                buffering=_BUFFER_BYTES, dir=self._directory
            )
        except OSError as e:
            raise self._failed(e) from e

    def close(self) -> None:
        """Deletes the file."""
        # This writes buffered data, which fails on a full disk. That error was already
        # raised.
        with contextlib.suppress(OSError):
            self._file.close()

    def __len__(self) -> int:
        return self._size

    def append(self, values: npt.NDArray[Any]) -> None:
        """Adds values at the end."""
        try:
            self._file.write(np.ascontiguousarray(values, self.dtype).data)
        except OSError as e:
            raise self._failed(e) from e
        self._size += len(values)
        self._is_flushed = False

    def read(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Returns the values [begin, end)."""
        return self.gather(np.array([begin]), np.array([end]))

    def gather(self, begins: Int64, ends: Int64) -> npt.NDArray[Any]:
        """Returns runs of values, end to end.

        Args:
            begins: int64 [runs], start of each.
            ends: int64 [runs].
        """
        # Adjacent runs are read at once.
        is_new = begins[1:] != ends[:-1]
        begins = begins[np.append(True, is_new)[: len(begins)]]
        ends = ends[np.append(is_new, True)[: len(ends)]]
        return np.frombuffer(b"".join(self.runs(begins, ends)), self.dtype)

    def runs(self, begins: Int64, ends: Int64) -> list[bytes]:
        """Returns the bytes of runs of values, one read each.

        Args:
            begins: int64 [runs], start of each.
            ends: int64 [runs].
        """
        sizes = ((ends - begins) * self.dtype.itemsize).tolist()
        offsets = (begins * self.dtype.itemsize).tolist()
        descriptor, pread = self._flushed(), os.pread
        try:
            runs = [pread(descriptor, *run) for run in zip(sizes, offsets, strict=True)]
        except OSError as e:
            raise self._failed(e) from e
        if [*map(len, runs)] != sizes:
            # More than the system reads at once, or less than was written.
            runs = [self._read_all(*run) for run in zip(sizes, offsets, strict=True)]
        return runs

    def mapped(self) -> npt.NDArray[Any]:
        """Returns all values, mapped from disk: their memory can be reclaimed."""
        if not self._size:
            return np.zeros(0, self.dtype)
        try:
            data = mmap.mmap(self._flushed(), 0, access=mmap.ACCESS_READ)
        except OSError as e:
            raise self._failed(e) from e
        return np.frombuffer(data, self.dtype)

    def _flushed(self) -> int:
        """Returns the descriptor of the file, which has all values."""
        if not self._is_flushed:
            try:
                self._file.flush()
            except OSError as e:
                raise self._failed(e) from e
            self._is_flushed = True
        return self._file.fileno()

    def _read_all(self, size: int, offset: int) -> bytes:
        parts = []
        end = offset + size
        while offset < end:
            try:
                part = os.pread(self._file.fileno(), end - offset, offset)
            except OSError as e:
                raise self._failed(e) from e
            if not part:
                raise StorageError(
                    "a temporary file has lost its end",
                    where=self._directory,
                    expected=f"{end:,} bytes or more",
                    got=f"{offset:,}",
                    cure="check the disk of this machine, then run again",
                )
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _failed(self, error: OSError) -> StorageError:
        cure = (
            "free some space there, then run again: a shard needs disk for its "
            f"{self._kept} and for its own file"
        )
        if self._is_default:
            cure = "free space there, or set TMPDIR to a directory on a larger disk"
        elif error.errno in (errno.ENOENT, errno.ENOTDIR):
            cure = "keep that directory while the command runs, then run again"
        return StorageError(
            f"cannot keep {self._kept} on the way into a shard",
            where=self._directory,
            got=error.strerror or str(error),
            cure=cure,
        )
