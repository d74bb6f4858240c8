"""Compressed parts: what the reader makes of them again."""

from __future__ import annotations

import concurrent.futures
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord import compress
from gristmill.dataset.arrayrecord.compression import COMPRESSIONS, decompress_parts
from gristmill.dataset.arrayrecord.writer_options import WriterOptions

NAMES = ["uncompressed", "zstd:3", "zstd:-7", "zstd:19", "brotli:5", "snappy"]
_KINDS = dict(
    zip(("uncompressed", "zstd", "brotli", "snappy"), COMPRESSIONS, strict=True)
)


def packed(parts: list[bytes], name: str) -> list[bytes]:
    compressor = compress.compressor(WriterOptions(compression=name))
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
def test_each_part_is_compressed_by_itself(name: str, monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(0)
    parts = [chance.randbytes(chance.randrange(50)) * 9 for _ in range(40)]
    together = packed(parts, name)
    assert together == [packed([part], name)[0] for part in parts]
    # However many go into a call.
    monkeypatch.setattr(compress, "_CALL_BYTES", 700)
    assert packed(parts, name) == together


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
    assert compress.codec_version(options).startswith(begin)
