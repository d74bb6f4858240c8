"""The interface of a codec that reads records forward from a stream of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, ClassVar, Protocol

from gristmill.dataset.formats.streams.inflated_stream import Readable
from gristmill.dataset.formats.streams.record_batch import RecordBatch

# A place, or a function that returns it, or None as long as it is not yet known.
End = int | Callable[[], int | None] | None


class StreamReader(Protocol):
    """Reads records forward from a stream, and finds the next one after damage.

    Attributes:
        lookback_bytes: Bytes before a place that it needs to search for the first
            record at or after the place.
    """

    lookback_bytes: ClassVar[int]

    @property
    def offset(self) -> int:
        """Offset in the (decompressed) file of the next byte to be returned."""

    def restart(self, stream: Readable | BinaryIO) -> None:
        """Goes on with another stream of the same bytes, which begins at `offset`."""

    def at_end(self) -> bool:
        """Returns whether no byte is left."""

    def batches(self, end: End) -> Iterator[RecordBatch]:
        """Yields the records that begin before `end`, those of one block at a time.

        Raises:
            CorruptRecordError: At the first record that is damaged, after all before it
                were yielded. The reader stays at its first byte.
        """

    def begins_at(self, offset: int) -> bool:
        """Returns whether a record begins, or the file ends, at an offset ahead."""

    def skip(self, to: int) -> None:
        """Moves forward to an offset."""

    def resync(self, *, limit: int | None = None) -> bool:
        """Moves forward to where a record seems to begin, before `limit`.

        Returns:
            Whether one was found; if not, the reader is at `limit` or at the end.
        """


class OpenReader(Protocol):
    """Opens a reader of a stream."""

    def __call__(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        offset: int,
        size_bytes: int | None,
    ) -> StreamReader:
        """Returns a reader.

        Args:
            stream: Bytes from `offset` on.
            path: Path of the file, for messages.
            offset: Offset in the (decompressed) file of the stream's first byte.
            size_bytes: Size of the file; None for a compressed one.
        """
