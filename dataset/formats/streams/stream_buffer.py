"""The bytes of a stream from a position on, as many as requested."""

from __future__ import annotations

from typing import BinaryIO

from gristmill.dataset.base.errors import CorruptStreamError
from gristmill.dataset.formats.streams.inflated_stream import Readable


class StreamBuffer:
    """Reads a stream forward in blocks; readers of formats derive from it.

    Args:
        stream: Bytes from `offset` on.
        offset: Offset in the (decompressed) file of the stream's first byte.
        block_bytes: How much to read at a time.
    """

    def __init__(self, stream: Readable | BinaryIO, *, offset: int, block_bytes: int):
        self._block_bytes = block_bytes
        self._buffer_offset = offset  # File offset of the buffer's first byte.
        self._position = 0  # Position in the buffer of the next byte to read.
        self.restart(stream)

    def restart(self, stream: Readable | BinaryIO) -> None:
        """Goes on with another stream of the same bytes, which begins at `offset`."""
        self._stream = stream
        self._buffer_offset, self._position = self.offset, 0
        self._buffer = b""
        self._exhausted = False
        self._stream_error: CorruptStreamError | None = None

    @property
    def offset(self) -> int:
        """File offset of the next byte to be returned."""
        return self._buffer_offset + self._position

    @offset.setter
    def offset(self, to: int) -> None:
        """Moves to an offset in the buffer, or at its end."""
        self._position = to - self._buffer_offset

    def _fill(self, wanted_bytes: int) -> bool:
        """Makes `wanted_bytes` bytes available from the position on, if they exist."""
        missing = wanted_bytes - (len(self._buffer) - self._position)
        if missing <= 0:
            return True
        pieces = [self._buffer[self._position :]]
        # Read in blocks, so that memory grows with the data and not with the claim.
        while missing > 0 and not self._exhausted:
            try:
                block = self._stream.read(self._block_bytes)
            except CorruptStreamError as error:
                # Raised once the data before the damage is used up.
                self._stream_error, block = error, b""
            self._exhausted = not block
            pieces.append(block)
            missing -= len(block)
        self._buffer_offset += self._position
        self._position = 0
        self._buffer = b"".join(pieces)
        return missing <= 0

    def at_end(self) -> bool:
        """Returns whether all bytes are used."""
        return not self._fill(1)

    def skip(self, to: int) -> None:
        """Moves forward to a file offset, or to the end of the file.

        Args:
            to: File offset, not before `offset`.
        """
        while self.offset < to and self._fill(1):
            self._pass(self._buffer[self._position :][: to - self.offset])

    def _pass(self, data: bytes) -> None:
        """Skips the next bytes, which are these."""
        self._position += len(data)
