"""Chunks (`simple_chunks`, `compression`): records or our errors."""

from __future__ import annotations

import dataclasses
import re

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord.chunks import (
    MAX_CHUNK_DECODED_BYTES,
    WANTED,
    EncodedChunks,
    chunk_table,
    cut,
    pick_records,
)
from gristmill.dataset.base.errors import CorruptShardError, TransposedChunkError
from tests.support.chunks import chunk, varint
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


def pick(
    chunks: list[bytes],
    counts: list[int],
    wanted: list[tuple[int, int]],
    *,
    limit: int = MAX_CHUNK_DECODED_BYTES,
) -> list[bytes]:
    """Decodes wanted (chunk, row) pairs, of the chunks that have any.

    Args:
        chunks: Their bytes.
        counts: How many records each has to hold.
        wanted: In order.
        limit: Most bytes that one may decode to.
    """
    numbers = np.unique([chunk for chunk, _ in wanted]).astype(np.int64)
    table = np.zeros(len(wanted), WANTED)
    table["chunk"] = np.searchsorted(numbers, [chunk for chunk, _ in wanted])
    table["row"], table["crc32c"] = [row for _, row in wanted], -1
    table["place"] = np.arange(len(wanted))
    counts = np.array(counts)[numbers]
    some = encoded([chunks[n] for n in numbers], records=counts, limit=limit)
    out: list[bytes | None] = [None] * len(wanted)
    files = np.empty(0, np.int64)
    left = set(pick_records(files, some.buffer, some.table, table, out))
    records = {n: cut(values, lengths) for n, lengths, values in some.each() if left}
    for place, (number, row) in enumerate(table[["chunk", "row"]].tolist()):
        if number in left:
            out[place] = records[number][row]
    return out


def decode(*chunks: bytes, **columns) -> list[bytes]:
    """Decodes chunks in all three ways and compares what they say."""
    some = encoded(list(chunks), **columns)
    records = some.decode()
    crcs, lengths = some.checksum()
    assert crcs.dtype == np.uint32
    assert crcs.tolist() == [google_crc32c.value(record) for record in records]
    assert lengths.tolist() == [len(record) for record in records]
    assert some.lengths().tolist() == lengths.tolist()
    assert some.join()[0] == b"".join(records)
    assert some.join()[1].tolist() == lengths.tolist()
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

    @every_compression
    @given(st.data())
    def test_wanted_records_of_chunks(self, compression: str, data):
        sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
        groups = [text_records(size, seed=i) for i, size in enumerate(sizes)]
        pairs = [(i, row) for i, size in enumerate(sizes) for row in range(size)]
        if not pairs:
            return
        wanted = sorted(data.draw(st.lists(st.sampled_from(pairs), min_size=1)))
        chunks = [chunk(group, compression=compression) for group in groups]
        got = pick(chunks, sizes, wanted)
        assert got == [groups[i][row] for i, row in wanted]
        assert all(type(record) is bytes for record in got)


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

    @every_compression
    @pytest.mark.parametrize("count", [1, 4])
    def test_every_flipped_byte_is_an_error_or_changes_no_more_than_bytes(
        self, compression: str, count: int
    ):
        records = text_records(count)
        good = chunk(records, compression=compression)
        neighbour = chunk([b"neighbour"] * count, compression=compression)
        wanted = [(0, count - 1), (1, 0), (2, count - 1)]
        errors = 0
        for at in range(len(good)):
            bad = bytearray(good)
            bad[at] ^= 0xFF if at % 2 else 1 << at // 2 % 8
            chunks = [neighbour, bytes(bad), neighbour]
            with limited_memory(1 << 29):
                try:
                    got = pick(chunks, [count] * 3, wanted)
                except (CorruptShardError, TransposedChunkError):
                    errors += 1
                    continue
            # What is intact is right, and the rest is for checksums to tell.
            assert got[0] == got[2] == b"neighbour"
            assert len(got[1]) <= len(b"".join(records))
        assert errors > 15

    def test_a_chunk_may_not_reach_into_the_next(self):
        good = chunk([b"abc"])
        longer = bytearray(good)
        longer[8] += 1
        with pytest.raises(CorruptShardError, match="reaches past"):
            pick([bytes(longer), good], [1, 1], [(0, 0), (1, 0)])

    @every_compression
    @given(st.data())
    def test_random_damage_is_an_error_or_keeps_the_shape(self, compression, data):
        records = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=6))
        cuts = data.draw(st.integers(1, len(records)))
        groups = [records[:cuts], records[cuts:]]
        some = encoded([chunk(g, compression=compression) for g in groups])
        damaged = bytearray(some.buffer)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(damaged) - 1))
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        with limited_memory(1 << 29):
            try:
                got = dataclasses.replace(some, buffer=bytes(damaged)).decode()
            except (CorruptShardError, TransposedChunkError):
                return
        # Only the contents can be wrong then: the checksums in the index tell.
        assert len(got) == sum(
            int.from_bytes(damaged[start + 25 : start + 32], "little")
            for start in some.table["begin"].tolist()
        )


class TestHashes:
    """Chunks that no index vouches for."""

    @pytest.mark.one_in(3)
    @every_compression
    @pytest.mark.parametrize("count", [1, 4])
    @pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.soak)])
    def test_every_flipped_byte_is_found(
        self, compression: str, step: int, count: int, decoding
    ):
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
