"""The decompressed bytes of a gzip or zlib stream, read forward in bounded memory."""

from __future__ import annotations

import contextlib
import zlib
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from gristmill.dataset.errors import CorruptStreamError
from gristmill.dataset.tfrecord.frames import WINDOW_BITS, Compression

_BLOCK_BYTES = 1 << 20


class Readable(Protocol):
    """Bytes that are read forward."""

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes, none only at the end."""


class InflatedStream:
    """The decompressed bytes of a gzip or zlib stream, read forward.

    Concatenated gzip members are read as one, as TensorFlow does. Memory is bounded
    by the size of one read, whatever the compressed data claims. Data before damage is
    returned before the error is raised.

    Args:
        stream: The compressed bytes.
        path: For messages.
        compression: `gzip` or `zlib`.
        marks: Offsets in the compressed bytes, ascending and above 0: it is noted how
            many decompressed bytes those before each of them hold.
    """

    def __init__(
        self,
        stream: Readable,
        *,
        path: str,
        compression: Compression,
        marks: Iterable[int] = (),
    ):
        self._stream = stream
        self._path = path
        self._window_bits = WINDOW_BITS[compression]
        self._inflater = zlib.decompressobj(self._window_bits)
        self._pending = b""
        self._started = False
        self._error: CorruptStreamError | None = None
        self.compressed_bytes = 0
        self._inflated_bytes = 0
        self._ahead = deque(marks)
        self._passed: dict[int, int] = {0: 0}

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes; an empty result means the end.

        Raises CorruptStreamError if the stream is damaged here, or cut short.
        """
        while self._error is None:
            if not self._pending and self._at_mark():
                if data := self._drained(size):
                    return data
                continue
            if not self._pending:
                self._pending = self._stream.read(self._next_bytes())
                self.compressed_bytes += len(self._pending)
            if not self._pending:
                if self._started and not self._inflater.eof:
                    self._error = self._damaged("it ends in the middle of its stream")
                    break
                return b""
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(self._window_bits)
            data = self._inflate(size)
            self._inflated_bytes += len(data)
            if data:
                return data
        raise self._error

    def _next_bytes(self) -> int:
        """Returns how much to read: no further than to the next mark."""
        if not self._ahead:
            return _BLOCK_BYTES
        return min(_BLOCK_BYTES, self._ahead[0] - self.compressed_bytes)

    def _at_mark(self) -> bool:
        return bool(self._ahead) and self.compressed_bytes == self._ahead[0]

    def _drained(self, size: int) -> bytes:
        """Returns what the bytes before a mark still hold; notes the mark after that.

        What so many bytes of a stream hold follows from the format, not from how much
        was asked for at a time. The last of them can be damaged.
        """
        data: bytes = b""
        if self._started and not self._inflater.eof:
            data = self._inflate(size)
            self._inflated_bytes += len(data)
        if not data and self._error is None:
            self._passed[self._ahead.popleft()] = self._inflated_bytes
        return data

    def inflated_offset(self, mark: int) -> int | None:
        """Returns how many decompressed bytes are before a mark.

        None as long as no byte behind it was asked for: then it is behind all that were
        returned.
        """
        return self._passed.get(mark)

    def _inflate(self, size: int) -> bytes:
        before = self._inflater.copy()
        self._started = True
        try:
            data = self._inflater.decompress(self._pending, size)
        except zlib.error as e:
            if str(e).startswith("Error -4 "):  # Z_MEM_ERROR: no damage.
                raise MemoryError(f"zlib: {e}") from e
            data = self._salvage(before)
            self._error = self._damaged(str(e))
            return data
        done = self._inflater
        self._pending = done.unused_data if done.eof else done.unconsumed_tail
        return data

    def _salvage(self, inflater: Any) -> bytes:
        """Returns the data before the damaged byte, which zlib's error withholds."""
        pieces = []
        step = 1 << len(self._pending).bit_length()
        while step := step >> 1:
            tried = inflater.copy()
            with contextlib.suppress(zlib.error):
                pieces.append(tried.decompress(self._pending[:step]))
                self._pending = self._pending[step:]
                inflater = tried
        return b"".join(pieces)

    @property
    def compressed_offset(self) -> int:
        """Compressed bytes used up: after an error, about where the damage is."""
        return self.compressed_bytes - len(self._pending)

    def _damaged(self, got: str) -> CorruptStreamError:
        place = f"near compressed byte offset {self.compressed_offset:,}"
        error = CorruptStreamError(
            "compressed file cannot be decompressed",
            where=f"{self._path}, {place}",
            got=got,
            cure="write the file again from its source",
        )
        error.detail = f"one that cannot be decompressed {place}: {got}"
        return error
