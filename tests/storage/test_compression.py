"""Decompressing: frames whose window is larger than zstd allocates by itself.

tests/storage/test_chunks.py has the rest: all compressions, and damage.
"""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import zstandard

from gristmill.dataset.arrayrecord import compression
from gristmill.dataset.arrayrecord.chunks import EncodedChunks, chunk_table
from gristmill.dataset.arrayrecord.compression import decompress_frame
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from tests.support.chunks import chunk
from tests.support.memory import limited_memory


def wide(data: bytes, window_log: int, *, size_known: bool = False) -> bytes:
    """Returns a zstd frame that asks for a window of 2^window_log bytes."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log, write_content_size=size_known
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj(
        len(data) if size_known else -1
    )
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("window_log", [28, 31])
@pytest.mark.parametrize("size_bytes", [1, 100, 16 << 10, 700_000])
def test_memory_is_that_of_the_records(window_log: int, size_bytes: int):
    chance = random.Random(window_log)
    record = chance.randbytes(size_bytes // 3 + 1) * 3
    frame = wide(record, window_log)
    size = zstandard.get_frame_parameters(frame).window_size
    assert size == 1 << window_log
    with limited_memory(48 << 20):
        assert decompress_frame(frame, len(record)) == record


@pytest.mark.parametrize("count", [1, 40])
def test_memory_that_is_lacking_is_no_damage(count: int):
    record = bytes(64 << 20) if count == 1 else bytes(8 << 10)
    frame = wide(record, 27)  # Zstd allocates the window to decode it.
    chunks = [chunk([record], frame=frame) for _ in range(count)]
    ends = np.cumsum([len(item) for item in chunks])
    table = chunk_table(np.append(0, ends[:-1]), ends, records=1)
    encoded = EncodedChunks(b"".join(chunks), table, path="shard")
    decoded: object = None
    with limited_memory(16 << 20), contextlib.suppress(MemoryError):
        decoded = encoded.decode()
    assert decoded is None if count == 1 else decoded in (None, [record] * count)
    assert encoded.decode() == [record] * count


def packed(parts: list[bytes], name: str) -> list[bytes]:
    compressor = compression.compressor(WriterOptions(compression=name))
    return list(map(bytes, compressor(parts)))


def test_a_large_part_needs_no_larger_window_than_the_official_writer_uses():
    part = bytes(4 << 20)
    [frame] = packed([part], "zstd:19")
    assert zstandard.get_frame_parameters(frame).window_size <= 1 << 20
    assert decompress_frame(frame, len(part)) == part
