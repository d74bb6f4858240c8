"""Chunks of every compression: records or our errors, in bounded memory."""

from __future__ import annotations

import contextlib
import random
import re

import google_crc32c
import numpy as np
import pytest
import zstandard

from gristmill.dataset.arrayrecord.chunks import (
    EncodedChunks,
    chunk_table,
)
from gristmill.dataset.arrayrecord.compression import compressor, decompress_frame
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import CorruptShardError, TransposedChunkError
from tests.storage.chunks import chunk, varint
from tests.support.memory import limited_memory
from tests.support.records import AWKWARD_RECORDS, text_records

COMPRESSIONS = {"none": "\0", "zstd": "z", "brotli": "b", "snappy": "s"}
every_compression = pytest.mark.parametrize(
    "compression", COMPRESSIONS.values(), ids=COMPRESSIONS
)


def encoded(chunks: list[bytes], **columns) -> EncodedChunks:
    ends = np.cumsum([len(item) for item in chunks])
    table = chunk_table(np.append(0, ends[:-1]), ends, **columns)
    return EncodedChunks(b"".join(chunks), table, path="shard")


def decode(*chunks: bytes, **columns) -> list[bytes]:
    """Decodes chunks in all three ways and compares what they say."""
    some = encoded(list(chunks), **columns)
    records = some.decode()
    crcs, lengths = some.checksum()
    assert crcs.dtype == np.uint32
    assert crcs.tolist() == [google_crc32c.value(record) for record in records]
    assert lengths.tolist() == [len(record) for record in records]
    assert some.lengths().tolist() == lengths.tolist()
    assert all(type(record) is bytes for record in records)
    return records


class TestDecode:
    @every_compression
    @pytest.mark.parametrize("group_size", [1, 2, 3, 100])
    def test_awkward_records(self, compression: str, group_size: int):
        records = [*AWKWARD_RECORDS, *text_records(20)]
        groups = [
            records[i : i + group_size] for i in range(0, len(records), group_size)
        ]
        chunks = [chunk(group, compression=compression) for group in groups]
        assert decode(*chunks) == records

    @every_compression
    @pytest.mark.parametrize("counts", [(0,), (0, 2), (2, 0), (0, 0, 1), (0, 3, 0)])
    def test_chunks_without_records(self, compression: str, counts):
        # As many chunks as records does not mean one record in each.
        groups = [[b"x" * (i + 1) for i in range(count)] for count in counts]
        chunks = [chunk(group, compression=compression) for group in groups]
        assert decode(*chunks) == [record for group in groups for record in group]


class TestLies:
    """Fields that contradict each other, or claim more than there can be."""

    def check_refused(self, compression: str, lie: dict, says: str):
        good = chunk([b"abc", b"de"], compression=compression)
        bad = chunk([b"abc", b"de"], compression=compression, **lie)
        some = encoded([good, good, bad, good])
        for method in (some.decode, some.checksum):
            with (
                limited_memory(1 << 29),
                pytest.raises(CorruptShardError, match="shard, chunk 2") as caught,
            ):
                method()
            assert says in str(caught.value)

    @every_compression
    @pytest.mark.parametrize(
        ("lie", "says"),
        [
            ({"record_count": 3}, "sizes"),
            ({"record_count": 1 << 50}, "sizes"),
            ({"decoded_bytes": 4}, "instead of 4"),
            ({"decoded_bytes": 1 << 30}, "instead of 1,073,741,824"),
            ({"decoded_bytes": 1 << 40}, "limit"),
            ({"decoded_bytes": (1 << 64) - 1}, "limit"),
            ({"sizes": b"\x01\x05"}, "do not add up"),
            ({"sizes": b"\x05\x80"}, "cut short"),
            ({"sizes": b"\x85\x00"}, "as many sizes as records"),
            # Sizes whose sum is right only modulo 2**64.
            (
                {"sizes": varint(1 << 62) * 4 + b"\x05", "record_count": 5},
                "do not add up",
            ),
            ({"sizes_bytes": 1 << 20}, "reach past"),
            ({"sizes_bytes": (1 << 63) - 1}, "reach past"),
            ({"sizes_bytes": 1 << 63}, "varint"),
            ({"kind": "p"}, "not simple"),
            ({"kind": "\0"}, "not simple"),
        ],
    )
    def test_about_what_is_in_a_chunk(self, compression: str, lie: dict, says: str):
        self.check_refused(compression, lie, says)

    @pytest.mark.parametrize("compression", ["z", "b", "s"])
    @pytest.mark.parametrize(
        ("lie", "says"),
        [
            ({"values_claim": 1 << 40}, "1,099,511,627,776"),
            ({"values_claim": 6}, "6 bytes"),
            ({"values_claim": 4}, "4 bytes"),
            ({"values_claim": 6, "decoded_bytes": 6}, ""),
            ({"values_claim": 4, "decoded_bytes": 4}, ""),
            ({"sizes_claim": 1 << 40}, "1,099,511,627,776"),
            ({"sizes_claim": 1 << 40, "record_count": 1 << 40}, "1,099,511,627,776"),
            ({"sizes_claim": 3}, ""),
        ],
    )
    def test_about_what_parts_decode_to(self, compression: str, lie: dict, says: str):
        self.check_refused(compression, lie, says)

    def test_unknown_compression(self):
        bad = bytearray(chunk([b"abc"]))
        bad[40] = ord("x")
        with pytest.raises(CorruptShardError, match="0x78"):
            decode(bytes(bad))

    def test_transposed_is_told_apart_from_damage(self):
        good, transposed = chunk([b"abc"]), chunk([b"abc"], kind="t")
        with pytest.raises(TransposedChunkError, match="chunk 1"):
            decode(good, transposed)

    @every_compression
    def test_a_count_other_than_the_footer_says_is_refused(self, compression: str):
        # Without the footer's count, this one passes as a single record.
        joined = chunk([b"abc", b"de"], compression=compression, record_count=1)
        assert encoded([joined]).decode() == [b"abcde"]
        told = encoded([joined], records=2)
        for method in (told.decode, told.checksum, told.lengths):
            with pytest.raises(CorruptShardError, match="1 records instead of 2"):
                method()

    def test_a_chunk_may_not_reach_into_the_next(self):
        good = chunk([b"abc"])
        longer = bytearray(good)
        longer[8] += 1
        with pytest.raises(CorruptShardError, match="reaches past"):
            decode(bytes(longer), good, records=1)


class TestHashes:
    """Chunks that no index vouches for."""

    @pytest.mark.one_in(3)
    @every_compression
    @pytest.mark.parametrize("count", [1, 4])
    @pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.soak)])
    def test_every_flipped_byte_is_found(self, compression, step, count, decoding):
        good = chunk(text_records(count), compression=compression)
        other = chunk([b"other"] * count, compression=compression)
        for at in range(0, len(good), step):
            bad = bytearray(good)
            bad[at] ^= 1 << at % 8
            some = encoded([other, bytes(bad), other], hashed=True)
            for method in (some.decode, some.checksum, some.lengths):
                with pytest.raises(CorruptShardError, match="shard, chunk 1") as caught:
                    method()
                # A changed size may lead out of the data before a hash is compared.
                assert re.search("hash|past", str(caught.value)), at


def wide(data: bytes, window_log: int) -> bytes:
    """Returns a zstd frame that asks for a window of 2^window_log bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("window_log", [28, 31])
@pytest.mark.parametrize("size_bytes", [1, 100, 16 << 10, 700_000])
def test_a_wide_window_takes_the_memory_of_the_records(window_log, size_bytes):
    record = random.Random(window_log).randbytes(size_bytes // 3 + 1) * 3
    frame = wide(record, window_log)
    assert zstandard.get_frame_parameters(frame).window_size == 1 << window_log
    with limited_memory(48 << 20):
        assert decode(chunk([record], frame=frame), records=1) == [record]


@pytest.mark.parametrize("count", [1, 40])
def test_memory_that_is_lacking_is_no_damage(count: int, without_compiled_part):
    record = bytes(64 << 20) if count == 1 else bytes(8 << 10)
    frame = wide(record, 27)  # Zstd allocates the window to decode it.
    some = encoded([chunk([record], frame=frame)] * count, records=1)
    decoded: object = None
    with limited_memory(16 << 20), contextlib.suppress(MemoryError):
        decoded = some.decode()
    assert decoded is None if count == 1 else decoded in (None, [record] * count)
    assert some.decode() == [record] * count


def test_a_large_part_needs_no_larger_window_than_the_official_writer_uses():
    part = bytes(4 << 20)
    [frame] = map(bytes, compressor(WriterOptions(compression="zstd:19"))([part]))
    assert zstandard.get_frame_parameters(frame).window_size <= 1 << 20
    assert decompress_frame(frame, len(part)) == part
