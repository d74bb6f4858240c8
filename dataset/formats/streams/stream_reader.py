"""Reading records forward from a stream of bytes, whatever their format."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import BinaryIO, ClassVar

from gristmill.dataset.base.errors import CorruptStreamError
from gristmill.dataset.formats.streams.inflated_stream import Readable
from gristmill.dataset.formats.streams.record_batch import RecordBatch

# A place, or a function that returns it, or None as long as it is not yet known.
End = int | Callable[[], int | None] | None


class StreamReader(abc.ABC):
    """Reads records forward from a stream, and finds the next one after damage.

    Args:
        stream: Bytes from `offset` on.
        offset: Offset in the (decompressed) file of the stream's first byte.
        block_bytes: How much to read at a time.

    Attributes:
        lookback_bytes: Bytes before a place that it needs to search for the first
            record at or after the place.
    """

    lookback_bytes: ClassVar[int] = 0

    @abc.abstractmethod
    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        """Yields the records that begin before `end`, those of one block at a time.

        Args:
            end: File offset, exclusive; None for the end of the file. The last record
                may reach past it.

        Raises:
            CorruptRecordError: At the first record that is damaged, after all before it
                were yielded. The reader stays at its first byte, for `skip` or
                `resync`.
        """

    @abc.abstractmethod
    def begins_at(self, offset: int) -> bool:
        """Returns whether a record begins, or the file ends, at an offset ahead."""

    @abc.abstractmethod
    def resync(self, *, limit: int | None = None) -> bool:
        """Moves forward to where a record seems to begin, before `limit`.

        Returns:
            Whether one was found; if not, the reader is at `limit` or at the end.
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

    def _taken_error(self) -> CorruptStreamError | None:
        """Returns why the stream ended early, once: whoever accepts it goes on."""
        error, self._stream_error = self._stream_error, None
        return error

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
