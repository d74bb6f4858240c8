"""Files of our own writer, beside those of the official one.

The official writer and reader are the oracle. Where the codecs are the same, so are all
bytes.
"""

from __future__ import annotations

import functools
import pathlib
import random
import tempfile

import pytest
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord.chunks import BLOCK_BYTES
from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter
from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError
from tests.support.records import (
    AWKWARD_RECORDS,
    array_record_bytes,
    decode_file,
    official_options,
    text_records,
)

COMPRESSIONS = ["zstd:3", "zstd:-5", "brotli:6", "snappy", "uncompressed"]


def ours(
    records: list[bytes],
    options: WriterOptions,
    *,
    batch: int = 1 << 30,
) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ours"
        writer = ArrayRecordWriter(str(path), options)
        for begin in range(0, len(records), batch):
            writer.write(records[begin : begin + batch])
        writer.finish()
        data = path.read_bytes()
        if records:
            check_official(path, records)
    assert decode_file(data) == records
    return data


def check_official(path: pathlib.Path, records: list[bytes]) -> None:
    """Reads a file in every way that the official reader has."""
    for options in ("", "max_parallelism:0,readahead_buffer_size:0"):
        reader = ArrayRecordReader(str(path), options)
        try:
            assert reader.num_records() == len(records)
            assert reader.read_all() == records
            some = random.Random(0).choices(range(len(records)), k=5)
            assert reader.read(some) == [records[index] for index in some]
            begin, end = sorted(some[:2])
            assert reader.read(begin, end + 1) == records[begin : end + 1]
            reader.seek(some[2])
            assert reader.read() == records[some[2]]
        finally:
            reader.close()


def official(records: list[bytes], options: WriterOptions) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return array_record_bytes(
            records, options=official_options(options), folder=folder
        )


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("group_size", [1, 3, 16, 10_000])
@pytest.mark.parametrize(
    "records",
    [[], [b""], [b""] * 3000, list(AWKWARD_RECORDS), text_records(700)],
    ids=["none", "empty", "empties", "awkward", "text"],
)
def test_the_official_reader_and_ours_read_it(compression, group_size, records):
    options = WriterOptions(group_size=group_size, compression=compression)
    data, expected = ours(records, options), official(records, options)
    assert len(data) <= 1.01 * len(expected) + BLOCK_BYTES
    footers = [footer(data), footer(expected)]
    for name in ("chunk_records", "chunk_decoded_bytes"):
        mine, theirs = (getattr(each, name).tolist() for each in footers)
        assert mine == theirs
    if compression == "uncompressed":
        assert data == expected
    assert footers[0].writer_options == footers[1].writer_options
    sizes = [int(each.chunk_offsets[-1]) for each in footers]
    # The snappy of cramjam is of another make: up to 1.7 % larger for large chunks.
    assert sizes[0] <= (1.02 if compression == "snappy" else 1.01) * sizes[1]


def footer(data: bytes):
    return read_footer(lambda begin, end: data[begin:end], len(data), path="test")


@functools.cache
def at_offset(seed: int, first_bytes: int) -> bool:
    records = [random.Random(seed).randbytes(first_bytes), b"", b"abc", bytes(70_000)]
    options = WriterOptions(compression="uncompressed")
    return ours(records, options) == official(records, options)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_chunks_begin_and_end_anywhere_around_a_block_header(blocks, step):
    # The first chunk ends, and the second begins, from 100 bytes before a block header
    # to 100 bytes after it.
    for room in sorted({*range(-100, 100, step), *range(-26, 27)}):
        first_bytes = blocks * BLOCK_BYTES - 64 - 40 - 5 + room
        assert at_offset(0, first_bytes), first_bytes


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200) | st.integers(0, 140_000), max_size=60),
    group_size=st.integers(1, 70) | st.integers(1, 10_000),
    compression=st.sampled_from(COMPRESSIONS),
    batch=st.integers(1, 70),
)
@example([0] * 60, 60, "zstd:3", 1)
def test_any_records(sizes, group_size, compression, batch):
    chance = random.Random(len(sizes))
    records = [chance.randbytes(size // 2) + bytes(size - size // 2) for size in sizes]
    options = WriterOptions(group_size=group_size, compression=compression)
    data = ours(records, options, batch=batch)
    if compression == "uncompressed":
        assert data == official(records, options)


@pytest.mark.parametrize("past_block", [-1, 0, 1, 23, 24, 25, 26])
def test_zeros_after_a_chunk_end_where_a_chunk_may_begin(past_block: int):
    # The chunk begins after the signature: with as many numbers as records, it ends
    # around the block header.
    count = BLOCK_BYTES - 64 + past_block
    options = WriterOptions(group_size=count, compression="brotli:6")
    records = [b""] * count + [b"abc"]
    found = [footer(make(records, options)) for make in (official, ours)]
    expected, got = (each.chunk_offsets[:2].tolist() for each in found)
    assert got == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "compression", ["zstd:3", pytest.param("uncompressed", marks=pytest.mark.soak)]
)
def test_a_record_of_100_megabytes(compression: str):
    chance = random.Random(3)
    records = [b"before", chance.randbytes(50_000_000) + bytes(50_000_000), b"after"]
    options = WriterOptions(group_size=2, compression=compression)
    data = ours(records, options)
    assert len(data) <= 1.01 * len(official(records, options))


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("zstd", "zstd:3"),
        ("zstd:03", "zstd:3"),
        *(
            (same, same)
            for same in ("zstd:22", "zstd:-131072", "brotli:0", "brotli:11")
        ),
        ("brotli", "brotli:6"),
        ("snappy", "snappy"),
    ],
)
def test_a_compression_is_spelled_in_one_way(given: str, means: str):
    options = WriterOptions(compression=given)
    assert options.compression == means
    assert f",{means}" in footer(ours([b"record"], options)).writer_options


@pytest.mark.parametrize(
    "given",
    [
        *("zstd:23", "zstd:-131073", "zstd:", "zstd:x", "zstd:3.5", "brotli:12"),
        *("zstd:3,transpose:true", "brotli:-1", "snappy:1", "uncompressed:0"),
        *("gzip", "ZSTD:3", " zstd", ""),
    ],
)
def test_other_compressions_are_refused(given: str):
    with pytest.raises(InputError, match="`compression`") as caught:
        WriterOptions(compression=given)
    assert repr(given) in str(caught.value)


@pytest.mark.parametrize("group_size", [0, -1, (1 << 20) + 1])
def test_group_sizes_out_of_range_are_refused(group_size: int):
    with pytest.raises(InputError, match="group size"):
        WriterOptions(group_size=group_size)
