"""Decompressing: frames whose window is larger than zstd allocates by itself.

tests/dataset/arrayrecord/test_chunks.py has the rest: all compressions, and damage.
"""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import zstandard

from gristmill.dataset.arrayrecord.chunks import EncodedChunks
from gristmill.dataset.arrayrecord.compression import decompress_frame
from tests.support.chunks import chunk
from tests.support.memory import limited_memory
from tests.support.records import text_records


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
        part = decompress_frame(frame, len(record), begin=1, end=3)
    assert part == record[1:3]


def test_a_frame_whose_window_is_its_content():
    record = bytes((1 << 27) + 1)
    frame = wide(record, 28, size_known=True)
    assert zstandard.get_frame_parameters(frame).window_size == len(record)
    assert decompress_frame(frame, len(record)) == record


@pytest.mark.parametrize("count", [1, 40])
def test_memory_that_is_lacking_is_no_damage(count: int):
    record = bytes(64 << 20) if count == 1 else bytes(8 << 10)
    frame = wide(record, 27)  # Zstd allocates the window to decode it.
    chunks = [chunk([record], frame=frame) for _ in range(count)]
    starts = np.cumsum([0, *map(len, chunks[:-1])])
    encoded = EncodedChunks(b"".join(chunks), starts, path="shard")
    decoded: object = None
    with limited_memory(16 << 20), contextlib.suppress(MemoryError):
        decoded = encoded.decode()
    assert decoded is None if count == 1 else decoded in (None, [record] * count)
    assert encoded.decode() == [record] * count


def test_among_others_in_one_read():
    records = text_records(40)
    chunks = [
        chunk([record], frame=wide(record, 30) if number % 3 else None)
        for number, record in enumerate(records)
    ]
    starts = np.cumsum([0, *map(len, chunks[:-1])])
    encoded = EncodedChunks(b"".join(chunks), starts, path="shard", hashed=True)
    with limited_memory(64 << 20):
        assert encoded.decode() == records


def test_damage_in_such_a_frame():
    record = random.Random(1).randbytes(1000) * 3
    good = wide(record, 31)
    bad = bytearray(good)
    bad[6] |= 0x06  # A type of block that there is not.
    for frame, size in (
        (good, len(record) - 1),
        (good, len(record) + 1),
        (bytes(bad), len(record)),
        (good[:5], len(record)),
        (good[:500], len(record)),
    ):
        with (
            limited_memory(48 << 20),
            pytest.raises(ValueError, match="decompressed"),
        ):
            decompress_frame(frame, size)
