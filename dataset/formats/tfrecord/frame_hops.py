"""Steps from frame to frame by their headers, without reading the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

import numpy as np

from gristmill.dataset.formats.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    U64,
    header_crc32cs,
    headers_at,
    mask,
)

BLOCK_BYTES = 1 << 20


class FrameHops:
    """Finds where frames begin, one after the other, from one that is known.

    Checksums of lengths are compared, some blocks at a time; those of records are not.
    Memory: one block.

    Args:
        open_at: Opens the file for reading forward from an offset.
        offset: Where a frame begins.
        far_bytes: The file is reopened after a record that extends more than this
            beyond the bytes read; a shorter one is read.
        block_bytes: How much is read at a time.

    Attributes:
        offset: Where the next frame begins. It can lie past the end of a file that was
            cut.
    """

    def __init__(
        self,
        open_at: Callable[[int], BinaryIO],
        offset: int,
        *,
        far_bytes: int = BLOCK_BYTES,
        block_bytes: int = BLOCK_BYTES,
    ):
        self.offset = offset
        self._open_at = open_at
        self._far_bytes = far_bytes
        self._block_bytes = block_bytes

    def until(self, end: int) -> Iterator[list[int]]:
        """Yields the offsets of the frames that begin before `end`, in groups.

        It stops where there is no valid header: `offset` is then that place, before
        `end`.
        """
        file = self._open_at(self.offset)
        try:
            buffer, base = b"", self.offset  # The offset of the buffer's first byte.
            while self.offset < end:
                if self.offset - base - len(buffer) > self._far_bytes:
                    file.close()
                    file = self._open_at(self.offset)
                    buffer, base = b"", self.offset
                while base + len(buffer) < self.offset + HEADER_BYTES:
                    left = max(base + len(buffer) - self.offset, 0)
                    base += len(buffer) - left
                    block = file.read(self._block_bytes)
                    if not block:
                        return
                    buffer = buffer[len(buffer) - left :] + block
                starts, intact = self._hop(buffer, base, end)
                if starts:
                    yield starts
                if not intact:
                    return
        finally:
            file.close()

    def _hop(self, buffer: bytes, base: int, end: int) -> tuple[list[int], bool]:
        """Moves over the frames whose headers are in the buffer.

        Returns:
            Their offsets, and whether all of the headers were valid.
        """
        stop = min(len(buffer) - HEADER_BYTES + 1, end - base)
        position, unpack = self.offset - base, U64.unpack_from
        borders = [position]
        while position < stop:
            position += unpack(buffer, position)[0] + FRAME_OVERHEAD_BYTES
            borders.append(position)
        headers = headers_at(buffer, borders[:-1])
        bad = np.flatnonzero(mask(header_crc32cs(headers)) != headers["masked_crc32c"])
        good = int(bad[0]) if len(bad) else len(headers)
        self.offset = base + borders[good]
        return [base + border for border in borders[:good]], good == len(headers)
