"""The index of a shard: small, right about every chunk, opened without reading it."""

from __future__ import annotations

import json
import pathlib
import pickle
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata.shard_index import (
    HEADER_BYTES,
    encode_index,
    index_of_footer,
    map_index,
    parse_index,
)
from gristmill.dataset.metadata.shard_report import ShardReport
from tests.support.memory import peak_memory
from tests.support.shards import footer_with, report


def index_of(counts, offsets=None, places=b"", **changes) -> bytes:
    footer = footer_with(counts, offsets)
    crcs = (np.arange(footer.records) * 2_654_435_761).astype(np.uint32)
    end = int(footer.chunk_offsets[-1])
    return encode_index(
        footer=footer,
        crc32cs=crcs,
        report=report(file_bytes=end + 131_072, **changes),
        places=places,
    )


def check_against(footer, index) -> None:
    """Compares all that an index says with the footer that it was made of."""
    chunks = len(footer.chunk_records)
    assert (index.chunks, index.records) == (chunks, footer.records)
    every = np.arange(chunks + 1)
    assert index.chunk_offsets(every).tolist() == footer.chunk_offsets.tolist()
    got = index.chunk_records(np.arange(chunks))
    assert got.tolist() == footer.chunk_records.tolist()
    expected = [
        (chunk, place)
        for chunk, count in enumerate(footer.chunk_records.tolist())
        for place in range(count)
    ]
    in_chunk, places = index.chunk_of(np.arange(footer.records))
    assert list(zip(in_chunk.tolist(), places.tolist(), strict=True)) == expected
    found = index.find_records(range(footer.records))
    assert [(chunk, place) for chunk, *_, place in found] == expected
    for chunk, begin, end, count, _ in found:
        assert [begin, end] == footer.chunk_offsets[chunk : chunk + 2].tolist()
        assert count == footer.chunk_records[chunk]
    assert index.max_chunk_decoded_bytes == footer.chunk_decoded_bytes.max(initial=0)


class TestContent:
    @pytest.mark.parametrize(
        ("counts", "group_size"),
        [
            ([], 1),
            ([1], 1),
            ([5], 5),
            ([1] * 200, 1),
            ([3] * 130 + [2], 3),
            ([16] * 64, 16),
            ([3, 3, 4], 0),
            ([3, 2, 3], 0),
            ([0], 0),
            ([0, 0, 2], 0),
            ([2, 0, 2, 0], 0),
        ],
    )
    def test_regular_and_irregular_groups(self, counts: list[int], group_size: int):
        data = index_of(counts)
        index = parse_index(data, path="x.index")
        index.check()
        assert index.group_size == group_size
        check_against(footer_with(counts), index)

    @given(
        st.lists(st.integers(0, 6), max_size=200),
        st.data(),
    )
    def test_any_footer(self, counts, data):
        gap = data.draw(st.sampled_from([50, 1 << 20, 1 << 27, 1 << 36]))
        gaps = data.draw(
            st.lists(st.integers(40, gap), min_size=len(counts), max_size=len(counts))
        )
        offsets = 64 + np.append(0, np.cumsum(gaps)).astype(np.int64)
        index = parse_index(index_of(counts, offsets), path="x")
        footer = footer_with(counts, offsets)
        check_against(footer, index)
        check_against(footer, index_of_footer(footer, path="x", file_bytes=1 << 50))

    def test_a_footer_alone_has_no_checksums(self):
        index = index_of_footer(footer_with([2, 1]), path="x", file_bytes=131_072)
        assert index.records == 3
        assert index.crc32cs.tolist() == []
        with pytest.raises(InvalidDatasetError, match="report in the shard index"):
            index.report()

    def test_report_comes_back(self):
        given_report = report(3, spans=5, file_bytes=1 << 40)
        data = encode_index(
            footer=footer_with([1]),
            crc32cs=np.array([7], np.uint32),
            report=given_report,
        )
        index = parse_index(data, path="x")
        assert index.report() == given_report
        assert index.file_crc32c == given_report.file_crc32c

    def test_checksums_must_fit_the_records(self):
        with pytest.raises(ValueError, match="2 checksums for 3 records"):
            encode_index(
                footer=footer_with([3]),
                crc32cs=np.zeros(2, np.uint32),
                report=report(),
            )

    def test_golden_bytes(self):
        # As docs/reference/format.md has it: written out by hand.
        data = encode_index(
            footer=footer_with([2, 2, 1], [64, 200, 330, 400]),
            crc32cs=np.array([1, 2, 3, 4, 5], np.uint32),
            report=report(file_bytes=131_072),
        )
        meta = report(file_bytes=131_072).to_json()
        body = struct.pack("<q3I5I", 64, 0, 136, 266, 1, 2, 3, 4, 5) + meta
        header = struct.pack(
            "<8sIIqqqqqIII",
            b"GMINDEX\n",
            1,  # Version.
            2,  # Records in a group.
            5,  # Records.
            3,  # Chunks.
            400,  # End of the last chunk.
            131_072,  # Size of the shard.
            20,  # Largest decoded chunk.
            64,  # Chunks that share a base.
            len(meta),
            google_crc32c.value(body),
        )
        crc = struct.pack("<I", google_crc32c.value(header))
        assert data == header + crc + bytes(8) + body


class TestSize:
    def test_at_most_8_and_a_half_bytes_a_record(self):
        # With a long name, a report of 20 spans and 2.2 KB records.
        records = 100_000
        offsets = 64 + 1200 * np.arange(records + 1)
        data = index_of(np.ones(records, np.int64), offsets, spans=20)
        assert len(data) <= 8.5 * records
        assert parse_index(data, path="x").records == records


class TestOpening:
    def test_reads_neither_body_nor_report(self, tmp_path: pathlib.Path):
        # A sparse file of 100 million records: reading it would take 800 MB.
        records = 100_000_000
        bases = -(-records // 64)
        body_bytes = 8 * bases + 8 * records + 4
        header = struct.pack(
            "<8sIIqqqqqIII",
            *(b"GMINDEX\n", 1, 1, records, records, 1 << 40, 1 << 41, 1000, 64, 4),
            *(0,),
        )
        path = tmp_path / "sparse.index"
        with open(path, "wb") as file:
            file.write(header + struct.pack("<I8x", google_crc32c.value(header)))
            file.truncate(80 + body_bytes)
        resident = _resident_bytes()
        with peak_memory() as peak:
            index = map_index(str(path))
            assert index.records == records
            assert index.chunk_offsets(np.array([records])).tolist() == [1 << 40]
        assert peak.bytes < 100_000
        assert _resident_bytes() - resident < 4 << 20
        # Not even the report is looked at before it is asked for.
        with pytest.raises(InvalidDatasetError, match="report in the shard index"):
            index.report()

    def test_places_come_last_and_are_not_mapped(self, tmp_path: pathlib.Path):
        places = Places(np.array([0, 0, 1]), np.array([0, 40, 7]))
        section, index = places.encode(), tmp_path / "i.index"
        data = index_of([1, 1, 1], places=section)
        index.write_bytes(data)
        whole, mapped = parse_index(data, path="i"), map_index(str(index))
        assert data.endswith(section)
        assert whole.index_bytes == mapped.index_bytes == len(data) - len(section)
        assert whole.report().index_bytes == whole.index_bytes
        assert list(map(np.ndarray.tolist, whole.places())) == [[0, 0, 1], [0, 40, 7]]
        assert len(mapped._body) + HEADER_BYTES == whole.index_bytes
        beginning = data[: whole.index_bytes]
        parse_index(beginning, path="i", whole=False).check()
        for part, size in ((beginning, "wrong size"), (data[:-1], "wrong size")):
            with pytest.raises(InvalidDatasetError, match=size):
                parse_index(part, path="i")
        damaged = data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(InvalidDatasetError, match="damaged places"):
            parse_index(damaged, path="i").places()

    @pytest.mark.parametrize("name", ["missing", "."])
    def test_what_cannot_be_opened_is_an_error_of_storage(self, tmp_path, name: str):
        with pytest.raises(StorageError, match="shard index") as caught:
            map_index(str(tmp_path / name))
        assert str(tmp_path) in str(caught.value)


def _resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def with_header(data: bytes, at: int, packing: str, *values: int) -> bytes:
    """Returns an index with other fields in its header, and the checksum they need."""
    header = bytearray(data[:80])
    struct.pack_into(packing, header, at, *values)
    struct.pack_into("<I", header, 68, google_crc32c.value(bytes(header[:68])))
    return bytes(header) + data[80:]


class TestDamage:
    def test_every_flipped_bit_of_the_header_is_refused(self):
        good = index_of([3, 3, 2])
        for bit in range(8 * 80):
            data = bytearray(good)
            data[bit // 8] ^= 1 << bit % 8
            with pytest.raises((InvalidDatasetError, FormatVersionError)) as caught:
                parse_index(bytes(data), path="x.index")
            assert "x.index" in str(caught.value)
            assert "to do:" in str(caught.value)

    def test_every_flipped_byte_of_the_body_is_found_by_check(self):
        good = index_of([1] * 70, spans=1)
        for position in range(80, len(good)):
            data = bytearray(good)
            data[position] ^= 0x20
            index = parse_index(bytes(data), path="x")
            with pytest.raises(InvalidDatasetError, match="damaged"):
                index.check()

    def test_truncation_at_every_length(self):
        good = index_of([2, 2, 1])
        for length in range(len(good)):
            with pytest.raises(InvalidDatasetError):
                parse_index(good[:length], path="x")
        with pytest.raises(InvalidDatasetError, match="wrong size"):
            parse_index(good + b"\0", path="x")

    def test_other_versions_are_refused_with_the_reason(self):
        data = with_header(index_of([1]), 8, "<I", 2)
        with pytest.raises(FormatVersionError, match="version") as caught:
            parse_index(data, path="x.index")
        assert "install" in str(caught.value)


class TestReport:
    def test_round_trip(self):
        given_report = report(5, spans=6, path="a/\udcff-00000-of-00001")
        data = given_report.to_json()
        assert ShardReport.from_json(data, where="x") == given_report
        assert pickle.loads(pickle.dumps(given_report)) == given_report

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"[]",
            b"null",
            b"[" * 100_000,
            report().to_json()[:-1],
            report().to_json().replace(b'"low"', b'"lower"'),
            report().to_json().replace(b'"begin_bytes"', b'"begin"'),
            json.dumps(json.loads(report().to_json()) | {"spans": [5]}).encode(),
        ],
        ids=range(8),
    )
    def test_what_is_none_is_refused(self, data: bytes):
        with pytest.raises(InvalidDatasetError, match="report in the shard index"):
            ShardReport.from_json(data, where="x.index")
