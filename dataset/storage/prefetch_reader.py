"""Reading an object forward in large ranges, the next ones fetched ahead."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from gristmill.dataset.daemon_call import daemon_call

BLOCK_BYTES = 4 << 20  # Large enough, several at a time, to hide what answers take.
_AHEAD = 3  # A connection alone is slower than what is read here can be used up.


class Piece(NamedTuple):
    """A range of an object, its length checked.

    Attributes:
        data: The bytes; fewer than asked for only at the end of the object.
        object_bytes: Size of the whole object.
        version: Its generation.
    """

    data: bytes
    object_bytes: int
    version: str


Fetch = Callable[[int, int, str | None], Piece]


class PrefetchReader(io.RawIOBase):
    """The bytes of one version of an object, forward.

    Memory: four blocks. Everything comes from the version that the first
    answer had.

    Args:
        fetch: Returns a half-open range of a version (None for any).
        offset: Where to begin.
        end: About where the reader will stop: read ahead up to there, and behind it
            only what is asked for. None for the end of the object.
        version: The version that is meant; None for any.
        wait: Whether to wait for the first range. If not, what is wrong with it is
            raised by the first read.
        block_bytes: Size of a range.

    Raises:
        StorageError: The first range cannot be read.
    """

    def __init__(
        self,
        fetch: Fetch,
        *,
        offset: int = 0,
        end: int | None = None,
        version: str | None = None,
        wait: bool = True,
        block_bytes: int = BLOCK_BYTES,
    ):
        self._fetch = fetch
        self._end = end
        self._block_bytes = block_bytes
        self._version = version
        self._object_bytes: int | None = None
        self._fetched = offset  # All before it was received or asked for.
        self._ahead: deque[Future[Piece]] = deque()
        self._block = memoryview(b"")
        if wait:
            # Here and now: a missing object is an error of opening it.
            self._block = self._next_block(1)
        else:
            self._fetch_ahead(*self._next_range(1))

    def readable(self) -> bool:
        """Returns True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Returns at most `size` bytes, none only at the end; all by default."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(self._block_bytes), b""))
        if not self._block and size:
            self._block = self._next_block(size)
        piece = bytes(self._block[:size])
        self._block = self._block[size:]
        return piece

    def _next_block(self, wanted_bytes: int) -> memoryview:
        if self._ahead:
            # In this order: after an error nothing is skipped.
            piece = self._ahead[0].result()
            self._ahead.popleft()
        else:
            begin, stop = self._next_range(wanted_bytes)
            if stop <= begin:
                return memoryview(b"")
            piece = self._fetch(begin, stop, self._version)
            self._fetched = stop
        self._object_bytes, self._version = piece.object_bytes, piece.version
        while len(self._ahead) < _AHEAD:
            begin, stop = self._next_range(0)
            if stop <= begin:
                break
            self._fetch_ahead(begin, stop)
        return memoryview(piece.data)

    def _fetch_ahead(self, begin: int, stop: int) -> None:
        version = self._version
        self._ahead.append(
            daemon_call(
                lambda: self._fetch(begin, stop, version),
                thread_name="gristmill-prefetch",
            )
        )
        self._fetched = stop

    def _next_range(self, wanted_bytes: int) -> tuple[int, int]:
        """Returns what to fetch next: up to the end, or just what is wanted."""
        begin = self._fetched
        stop = begin + self._block_bytes
        if self._end is not None:
            stop = min(stop, max(self._end, begin + wanted_bytes))
        if self._object_bytes is not None:
            stop = min(stop, self._object_bytes)
        return begin, stop
