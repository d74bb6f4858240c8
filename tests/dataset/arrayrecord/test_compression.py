"""Decompressing: frames whose window is larger than zstd allocates by itself.

tests/dataset/arrayrecord/test_chunks.py has the rest: all compressions, and damage.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord import compression
from gristmill.dataset.arrayrecord.chunks import EncodedChunks
from gristmill.dataset.arrayrecord.compression import (
    COMPRESSIONS,
    decompress_frame,
    decompress_parts,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
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


NAMES = ["uncompressed", "zstd:3", "zstd:-7", "zstd:19", "brotli:5", "snappy"]
_KINDS = dict(
    zip(("uncompressed", "zstd", "brotli", "snappy"), COMPRESSIONS, strict=True)
)


def packed(parts: list[bytes], name: str) -> list[bytes]:
    compressor = compression.compressor(WriterOptions(compression=name))
    return list(map(bytes, compressor(parts)))


def unpacked(packed_parts: list[bytes], parts: list[bytes], name: str) -> list[bytes]:
    ends = np.cumsum([len(part) for part in packed_parts])
    begins = ends - [len(part) for part in packed_parts]
    kinds = np.full(len(parts), _KINDS[name.partition(":")[0]], np.uint8)
    sizes = np.array([len(part) for part in parts], np.int64)
    joined = b"".join(packed_parts)
    return list(map(bytes, decompress_parts(joined, kinds, begins, ends, sizes)))


@pytest.mark.parametrize("name", NAMES)
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=12))
def test_round_trip(name: str, parts: list[bytes]):
    assert unpacked(packed(parts, name), parts, name) == parts


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most_bytes", [50, 1000])  # In a call, and in several.
def test_each_part_is_compressed_by_itself(name: str, most_bytes: int):
    chance = random.Random(0)
    parts = [
        chance.randbytes(chance.randrange(most_bytes)) * 9
        for _ in range(most_bytes // 2)
    ]
    together = packed(parts, name)
    assert together == [packed([part], name)[0] for part in parts]


@pytest.mark.parametrize("name", NAMES)
def test_nothing(name: str):
    assert packed([], name) == []
    empty = packed([b""], name)
    assert packed([b"", b""], name) == empty * 2
    assert packed([b"a", b""], name)[1:] == empty


def test_threads_give_the_same_bytes():
    chance = random.Random(1)
    parts = [chance.randbytes(2000) + bytes(2000) for _ in range(300)]
    expected = packed(parts, "zstd:3")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got in pool.map(packed, [parts] * 8, ["zstd:3"] * 8):
            assert got == expected


def test_a_large_part_needs_no_larger_window_than_the_official_writer_uses():
    import zstandard

    part = bytes(4 << 20)
    [frame] = packed([part], "zstd:19")
    assert zstandard.get_frame_parameters(frame).window_size <= 1 << 20
    assert unpacked([frame], [part], "zstd:19") == [part]


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("uncompressed", "uncompressed"),
        ("zstd:3", "zstd-1."),
        ("brotli:6", "brotli-1."),
        ("snappy", "cramjam-"),
    ],
)
def test_the_codec_is_named_with_its_version(name: str, begin: str):
    options = WriterOptions(compression=name)
    assert compression.codec_version(options).startswith(begin)
