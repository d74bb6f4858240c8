"""A forward reader of an object, in large ranges that are fetched ahead."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.base import Content

BLOCK_BYTES = 4 << 20  # Several at a time hide the latency of requests.
_AHEAD = 3  # One connection is slower than its reader.
READER_BYTES = (1 + _AHEAD) * BLOCK_BYTES  # Bytes that a reader holds or has requested.


Fetch = Callable[[int, int, str | None], Content]


class PrefetchReader(io.RawIOBase):
    """Reads one version of an object forward, with the next blocks requested ahead.

    All blocks come from the version of the first response. Memory: four blocks.

    Args:
        fetch: Returns a half-open range of a version (None for any).
        offset: First byte to read.
        end: Roughly where the reader will stop; nothing after it is read ahead. None
            for the end of the object.
        version: The version to read; None for any.
        wait: Whether to wait for the first range. If not, its error is raised by the
            first read.
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
        self._fetched = offset  # Everything before was requested.
        self._ahead: deque[Future[Content]] = deque()
        self._block = memoryview(b"")
        self._fetch_ahead(*self._next_range(1))
        if end is not None and version is not None:
            # The first response is not needed for the next.
            self._fill_ahead(1 + _AHEAD)
        if wait:  # So that opening a missing object raises.
            self._block = self._next_block(1)

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
        if not self._ahead:
            begin, stop = self._next_range(wanted_bytes)
            if stop <= begin:
                return memoryview(b"")
            self._fetch_ahead(begin, stop)
        # Popped after `result`: after an error, the next read raises it again.
        piece = self._ahead[0].result()
        self._ahead.popleft()
        self._object_bytes, self._version = piece.size_bytes, piece.version
        self._fill_ahead(_AHEAD)
        return memoryview(piece.data)

    def _fill_ahead(self, requests: int) -> None:
        while len(self._ahead) < requests:
            begin, stop = self._next_range(0)
            if stop <= begin:
                break
            self._fetch_ahead(begin, stop)

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
        """Returns the range to fetch next, empty if there is none."""
        begin = self._fetched
        stop = begin + self._block_bytes
        if self._end is not None:
            stop = min(stop, max(self._end, begin + wanted_bytes))
        if self._object_bytes is not None:
            stop = min(stop, self._object_bytes)
        return begin, stop
