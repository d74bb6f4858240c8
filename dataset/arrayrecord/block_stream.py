"""Chunks written to a file, with a block header at every multiple of 65,536 bytes.

A block header of 24 bytes has its hash, and the distances from the start of the block
to the start and the end of the chunk that it interrupts. Source:
riegeli/doc/riegeli_records_file_format.md.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from gristmill.dataset.arrayrecord.chunk_encoder import (
    PADDING,
    Chunks,
    encode_special,
)
from gristmill.dataset.arrayrecord.chunk_hash import hash_spans
from gristmill.dataset.arrayrecord.footer import BLOCK_BYTES, BLOCK_HEADER_BYTES
from gristmill.dataset.arrayrecord.simple_chunks import (
    CHUNK_HEADER_BYTES,
    HASH_BYTES,
    IntArray,
)

_USABLE_BYTES = BLOCK_BYTES - BLOCK_HEADER_BYTES


class BlockStream:
    """Writes chunks one after the other to a file that starts empty.

    Attributes:
        position: Physical offset where the next chunk begins.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self.position = 0

    def append(self, chunks: Chunks) -> IntArray:
        """Writes chunks; returns int64 [chunks], the physical offset of each.

        Raises OSError if the file cannot be written.
        """
        ends = _physical(_logical(self.position) + np.cumsum(chunks.encoded_bytes))
        if (chunks.records <= chunks.encoded_bytes).all():
            begins = np.append(self.position, ends[:-1])
            self._write(chunks.data, begins, ends)
            return begins
        return self._append_sparse(chunks)

    def pad_to_block(self) -> None:
        """Fills the rest of the block with a chunk of padding."""
        used = self.position % BLOCK_BYTES
        if not used:
            return
        room = BLOCK_BYTES - used
        if room < CHUNK_HEADER_BYTES:
            room += _USABLE_BYTES
        self.append(encode_special(PADDING, bytes(room - CHUNK_HEADER_BYTES)))

    def _append_sparse(self, chunks: Chunks) -> IntArray:
        """Writes chunks, some of which have more records than bytes.

        Riegeli numbers a record by the start of its chunk plus its place in the chunk,
        and numbers must be distinct: such a chunk is padded with zeros.
        """
        begins, ends, data = [], [], bytearray()
        begin, taken = self.position, 0
        for size, records in zip(
            chunks.encoded_bytes.tolist(), chunks.records.tolist(), strict=True
        ):
            last = begin + records
            # A chunk begins before a block header, or after a byte that follows it:
            # readers do not accept a chunk at the very end of the header.
            if 0 < last % BLOCK_BYTES <= BLOCK_HEADER_BYTES:
                last += BLOCK_HEADER_BYTES + 1 - last % BLOCK_BYTES
            end = max(int(_physical(_logical(begin) + size)), last)
            data += chunks.data[taken : taken + size]
            data += bytes(int(_logical(end) - _logical(begin)) - size)
            begins.append(begin)
            ends.append(end)
            begin, taken = end, taken + size
        self._write(data, np.array(begins), np.array(ends))
        return np.array(begins)

    def _write(
        self, data: bytes | bytearray | memoryview, begins: IntArray, ends: IntArray
    ) -> None:
        """Yields the bytes of chunks within [begin, end) of each."""
        begin, end = int(begins[0]), int(ends[-1])
        blocks = np.arange(-(-begin // BLOCK_BYTES), -(-end // BLOCK_BYTES))
        blocks *= BLOCK_BYTES
        interrupted = np.searchsorted(ends, blocks, side="right")
        fields = np.zeros((len(blocks), 3), "<u8")
        fields[:, 1] = blocks - begins[interrupted]
        fields[:, 2] = ends[interrupted] - blocks
        headers = fields.view(np.uint8).ravel()
        at = np.arange(len(blocks)) * BLOCK_HEADER_BYTES
        fields[:, 0] = hash_spans(headers, at + HASH_BYTES, at + BLOCK_HEADER_BYTES)
        view, taken, cursor = memoryview(data), 0, begin
        pieces: list[bytes | memoryview] = []
        for block, header in zip(blocks.tolist(), fields, strict=True):
            pieces.append(view[taken : taken + block - cursor])
            pieces.append(header.tobytes())
            taken += block - cursor
            cursor = block + BLOCK_HEADER_BYTES
        pieces.append(view[taken:])
        self._file.writelines(pieces)
        self.position = end


def _logical(position: int) -> int:
    """Returns the number of bytes other than block headers before a physical offset."""
    blocks, within = divmod(position, BLOCK_BYTES)
    return blocks * _USABLE_BYTES + max(0, within - BLOCK_HEADER_BYTES)


def _physical(logical: IntArray | int) -> IntArray:
    """Returns the physical offset after some bytes, before a block header there."""
    blocks, within = np.divmod(logical, _USABLE_BYTES)
    return np.asarray(
        blocks * BLOCK_BYTES + np.where(within, within + BLOCK_HEADER_BYTES, 0)
    )
