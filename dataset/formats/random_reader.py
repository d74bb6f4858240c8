"""One version of a file as a seekable Python file."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from typing import BinaryIO

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.base import explained
from gristmill.dataset.storage.lookup import storage_for

_KEPT_BYTES = 64 << 20
_AHEAD = 2
MAX_BLOCK_BYTES = 4 << 20
_MIN_BLOCK_BYTES = 256 << 10


class RandomReader(io.RawIOBase):
    """Reads any part of one version of a file.

    On remote storage, blocks of the file are requested and kept. If a block is read
    after the one before it, the next two are requested as well: several streams can be
    read forward at the same time. Memory: 64 MiB, or 1 MiB for each of very many
    streams.

    Raises:
        StorageError: A local file cannot be opened.
    """

    def __init__(self, path: str, size_bytes: int, version: str | None):
        self._path, self._size_bytes, self._version = path, size_bytes, version
        self._position = 0
        self._storage = storage_for(path)
        self._file = None if self._storage.remote else self._open(0, None)
        # Blocks by number, the most recently used last: bytes, or the file that returns
        # them.
        self._blocks: OrderedDict[int, bytes | BinaryIO] = OrderedDict()
        self._block_bytes = 0
        self.set_streams(1, run_bytes=_MIN_BLOCK_BYTES)  # Few read more than footers.

    def set_streams(self, streams: int, *, run_bytes: int = MAX_BLOCK_BYTES) -> None:
        """Sets the number of places where the file is read forward at the same time.

        Args:
            streams: How many.
            run_bytes: Approximate bytes read in each before it continues elsewhere.
        """
        kept = max(1, streams) * (2 + _AHEAD)
        share = min(_KEPT_BYTES // kept, run_bytes)
        share = min(max(share, _MIN_BLOCK_BYTES), MAX_BLOCK_BYTES)
        block_bytes = 1 << (share.bit_length() - 1)
        self._most_blocks = max(kept, _KEPT_BYTES // block_bytes)
        # A file of one block is read once.
        if block_bytes != self._block_bytes and self._size_bytes > self._block_bytes:
            self._blocks.clear()
            self._block_bytes = block_bytes

    def forget(self) -> None:
        """Drops all blocks, so that they are requested again."""
        self._blocks.clear()

    def _open(self, begin: int, end: int | None) -> BinaryIO:
        return self._storage.open(
            self._path, offset=begin, end=end, version=self._version, wait=False
        )

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
        self._blocks.clear()
        super().close()

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Moves to a byte offset; see `io.IOBase.seek`."""
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}
        self._position = bases.get(whence, self._size_bytes) + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns `size` bytes, by default all; fewer only at the end of the file."""
        left = max(0, self._size_bytes - self._position)
        wanted = left if size is None or size < 0 else min(size, left)
        pieces = []
        while wanted > 0:
            with explained("read the file", self._path):
                piece = self._read_some(wanted)
            if not piece:
                break
            pieces.append(piece)
            self._position += len(piece)
            wanted -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_some(self, wanted: int) -> bytes:
        if self._file is not None:
            self._file.seek(self._position)
            return self._file.read(wanted)
        number = (self._position - self._size_bytes) // self._block_bytes
        ahead = _AHEAD if number - 1 in self._blocks else 0
        for following in range(number, number + 1 + ahead):
            self._ask(following)
        block = self._blocks[number]
        if not isinstance(block, bytes):
            with block as file:
                block = self._blocks[number] = self._all_of(file, number)
        start = self._position - self._range_of(number)[0]
        return block[start : start + wanted]

    def _range_of(self, number: int) -> tuple[int, int]:
        # Blocks count from the end, so that a small footer is in one of them.
        begin = self._size_bytes + number * self._block_bytes
        return max(begin, 0), min(begin + self._block_bytes, self._size_bytes)

    def _ask(self, number: int) -> None:
        """Requests a block unless that was done; drops the least recently used."""
        begin, end = self._range_of(number)
        if begin >= end:
            return
        if number not in self._blocks:
            self._blocks[number] = self._open(begin, end)
        self._blocks.move_to_end(number)
        while len(self._blocks) > self._most_blocks:
            self._blocks.popitem(last=False)

    def _all_of(self, file: BinaryIO, number: int) -> bytes:
        begin, end = self._range_of(number)
        pieces: list[bytes] = []
        while begin < end and (piece := file.read(end - begin)):
            pieces.append(piece)
            begin += len(piece)
        if begin < end:
            raise StorageError(
                "file ends before the size that it was listed with",
                where=self._path,
                expected=f"{self._size_bytes:,} bytes",
                got=f"{begin:,}",
                cure="make sure that no process writes to it, then run again",
            )
        return b"".join(pieces)
