"""Streams that read as storage sometimes does."""

from __future__ import annotations


class DribblingStream:
    """Bytes that arrive a few at a time, whatever is asked for.

    Args:
        data: All bytes.
        most: Most bytes of one read.
    """

    def __init__(self, data: bytes, most: int):
        self._data = data
        self._most = most
        self._position = 0

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, none at the end."""
        piece = self._data[self._position :][: min(size, self._most)]
        self._position += len(piece)
        return piece
