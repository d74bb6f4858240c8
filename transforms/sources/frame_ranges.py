"""Cutting an uncompressed TFRecord file at frames, by their headers alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from gristmill.dataset.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    is_header,
)

_LENGTH = struct.Struct("<Q")


def frame_ranges(
    read: Callable[[int, int], bytes],
    size_bytes: int,
    *,
    range_bytes: int,
    block_bytes: int = 8 << 20,
) -> Iterator[tuple[int, int]]:
    """Yields ranges of an uncompressed file that begin and end at frames.

    The cutting stops at a damaged header: the reader of the last range finds the same
    damage and reports it.

    Args:
        read: Returns the bytes [begin, end) of the file.
        size_bytes: The size of the file.
        range_bytes: Least bytes of a range, the last one aside.
        block_bytes: How much is read at once.

    Yields:
        Half-open ranges that cover the file exactly, in order.
    """
    begin = position = 0
    block, block_begin = b"", 0
    # With no more than one range left, there is nothing to cut.
    while size_bytes - begin > range_bytes and position < size_bytes:
        at = position - block_begin
        if at + HEADER_BYTES > len(block):
            end = min(position + block_bytes, size_bytes)
            block, block_begin, at = read(position, end), position, 0
        if not is_header(block[at : at + HEADER_BYTES]):
            break
        if position - begin >= range_bytes:
            yield begin, position
            begin = position
        position += _LENGTH.unpack_from(block, at)[0] + FRAME_OVERHEAD_BYTES
    yield begin, size_bytes
