"""ArrayRecord files: those of the official writer and ours, and every damage."""

import contextlib
import os
import pathlib
import random
import subprocess
import sys
import sysconfig
import tempfile

import google_crc32c
import numpy as np
import pytest
import zstandard
from array_record.python.array_record_module import ArrayRecordReader
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gristmill.dataset import (
    CorruptShardError,
    GristmillError,
    InputError,
    TransposedChunkError,
    WriterOptions,
)
from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunk_hash import hash_bytes, hash_spans
from gristmill.dataset.arrayrecord.chunks import BLOCK_BYTES, EncodedChunks, chunk_table
from gristmill.dataset.arrayrecord.compression import compressor, decompress_frame
from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter
from tests.storage.chunks import (
    FIRST_CHUNK,
    MAGIC,
    array_record_file,
    chunk,
    footer_entry,
    footer_metadata,
    message,
    varint,
)
from tests.support.distributions import CAN_COMPILE, ROOT
from tests.support.memory import limited_memory
from tests.support.records import (
    AWKWARD_RECORDS,
    array_record_bytes,
    decode_file,
    footer_of,
    official_options,
    text_records,
)
from tests.support.told import told

CODECS = ["zstd:3", "zstd:-5", "brotli:6", "snappy", "uncompressed"]
RECORD_SETS = {
    "none": [],
    "empty": [b""],
    "empties": [b""] * 3000,
    "awkward": list(AWKWARD_RECORDS),
    "text": text_records(400),
    "mixed": [b"", *text_records(10), b"", b"x" * 70_000, b"", b""],
}
UNCOMPRESSED = WriterOptions(compression="uncompressed")


def official(records, options):
    if isinstance(options, WriterOptions):
        options = official_options(options)
    with tempfile.TemporaryDirectory() as folder:
        return array_record_bytes(records, options=options, folder=folder)


def ours(records, options, *, batch=1 << 30):
    """Writes a file, and reads it in every way that the official reader has."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "ours"
        writer = ArrayRecordWriter(str(path), options)
        for begin in range(0, len(records), batch):
            writer.write(records[begin : begin + batch])
        writer.finish()
        for how in ("", "max_parallelism:0,readahead_buffer_size:0"):
            if records:
                reader = ArrayRecordReader(str(path), how)
                assert reader.num_records() == len(records)
                assert reader.read_all() == records
                some = random.Random(0).choices(range(len(records)), k=5)
                assert reader.read(some) == [records[index] for index in some]
                reader.close()
        data = path.read_bytes()
    assert decode_file(data) == records
    return data


# Against array_record's own writer and reader.


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("group_size", [1, 3, 10_000])
@pytest.mark.parametrize("records", RECORD_SETS.values(), ids=RECORD_SETS)
def test_each_reads_what_the_other_wrote(codec, group_size, records):
    options = WriterOptions(group_size=group_size, compression=codec)
    data, expected = ours(records, options), official(records, options)
    assert decode_file(expected) == decode_file(expected, range_bytes=1) == records
    mine, theirs = map(footer_of, (data, expected))
    for name in ("chunk_records", "chunk_decoded_bytes"):
        assert getattr(mine, name).tolist() == getattr(theirs, name).tolist()
    assert mine.records == len(records)
    assert mine.writer_options == theirs.writer_options
    if codec == "uncompressed":
        assert data == expected
    # The snappy of cramjam is of another make: up to 1.7 % larger for large chunks.
    most = 1.02 if codec == "snappy" else 1.01
    assert mine.chunk_offsets[-1] <= most * theirs.chunk_offsets[-1]
    assert len(data) <= 1.01 * len(expected) + BLOCK_BYTES


@pytest.mark.parametrize(
    "options",
    [
        "group_size:7,zstd:19",
        "group_size:1,zstd:3,window_log:13",
        "group_size:1,pad_to_block_boundary:true",
        "group_size:3,pad_to_block_boundary:true,uncompressed",
        "group_size:4,transpose:true",
    ],
)
def test_files_with_options_that_our_writer_has_not(options):
    assert decode_file(official([], options)) == []
    for records in (RECORD_SETS["mixed"], RECORD_SETS["text"]):
        data = official(records, options)
        if "transpose" not in options:
            assert decode_file(data) == records
            continue
        with told(TransposedChunkError, "ArrayRecordReader"):
            decode_file(data)


@pytest.mark.parametrize("way", ["avx2", "any processor", "numpy"])
def test_hashes_are_those_of_the_official_writer_by_every_way(way, request):
    if way == "numpy":
        request.getfixturevalue("without_compiled_part")
    elif not compiled.is_compiled():
        pytest.skip("installed without a C compiler")
    elif compiled.part.use_avx2(way == "avx2") != (way == "avx2"):
        pytest.skip("this processor has no AVX2")
    else:
        request.addfinalizer(lambda: compiled.part.use_avx2(True))
    # Of every length modulo a packet of 32 bytes, and of many packets.
    sizes = [*range(100), 1000, 4096, 65_512, 65_513, 200_000]
    records = [random.Random(size).randbytes(size) for size in sizes]
    assert ours(records, UNCOMPRESSED) == official(records, UNCOMPRESSED)
    assert hash_bytes(b"") == 0x72C3B1E9C0139FE1
    for span in ((-1, 4), (3, 2), (0, 11), (11, 12), (1 << 62, 5)):
        with pytest.raises(IndexError):
            hash_spans(bytes(10), *np.array([[0, 5], span]).T)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_chunks_begin_and_end_anywhere_around_a_block_header(blocks, step):
    for room in sorted({*range(-100, 100, step), *range(-26, 27)}):
        first = random.Random(0).randbytes(blocks * BLOCK_BYTES - 64 - 40 - 5 + room)
        records = [first, b"", b"abc", bytes(70_000)]
        assert ours(records, UNCOMPRESSED) == official(records, UNCOMPRESSED), room


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200) | st.integers(0, 140_000), max_size=60),
    group_size=st.integers(1, 70) | st.integers(1, 10_000),
    compression=st.sampled_from(CODECS),
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
def test_zeros_after_a_chunk_end_where_a_chunk_may_begin(past_block):
    # With as many numbers as records, the first chunk ends around the block header.
    count = BLOCK_BYTES - 64 + past_block
    options = WriterOptions(group_size=count, compression="brotli:6")
    records = [b""] * count + [b"abc"]
    mine, theirs = (footer_of(make(records, options)) for make in (ours, official))
    assert mine.chunk_offsets[:2].tolist() == theirs.chunk_offsets[:2].tolist()


@pytest.mark.slow
def test_a_record_of_100_megabytes():
    record = random.Random(3).randbytes(50_000_000) + bytes(50_000_000)
    options = WriterOptions(group_size=2)
    records = [b"before", record, b"after"]
    assert len(ours(records, options)) <= 1.01 * len(official(records, options))


REFUSED = (
    "zstd:23 zstd:-131073 zstd: zstd:3.5 brotli:12 brotli:-1 snappy:1 gzip ZSTD:3 "
    "zstd:3,transpose:true"
)


def test_an_option_is_spelled_in_one_way():
    for means in ("zstd:22", "zstd:-131072", "brotli:0", "snappy"):
        spelled = {"zstd:22": "zstd:022"}.get(means, means)
        data = ours([b"record"], WriterOptions(compression=spelled))
        assert f",{means}" in footer_of(data).writer_options
    for text, means in (("zstd", "zstd:3"), ("brotli", "brotli:6")):
        options = WriterOptions(compression=text)
        assert options == WriterOptions(compression=means)
    for text in (*REFUSED.split(), "", " zstd"):
        with told(InputError, "`compression`", repr(text)):
            WriterOptions(compression=text)
    for group_size in (0, -1, (1 << 20) + 1):
        with told(InputError, "group size"):
            WriterOptions(group_size=group_size)


# Chunks made by hand.

every_compression = pytest.mark.parametrize(
    "compression", "\0zbs", ids=["none", "zstd", "brotli", "snappy"]
)


def encoded(chunks, **columns):
    ends = np.cumsum([len(item) for item in chunks])
    table = chunk_table(np.append(0, ends[:-1]), ends, **columns)
    return EncodedChunks(b"".join(chunks), table, path="shard")


def decode(*chunks, **columns):
    """Decodes chunks in all three ways and compares what they say."""
    some = encoded(list(chunks), **columns)
    records = some.decode()
    crcs, lengths = some.checksum()
    assert crcs.tolist() == [google_crc32c.value(record) for record in records]
    assert lengths.tolist() == some.lengths().tolist() == [*map(len, records)]
    return records


LIES = [
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
    ({"sizes": varint(1 << 62) * 4 + b"\x05", "record_count": 5}, "do not add up"),
    ({"sizes_bytes": 1 << 20}, "reach past"),
    ({"sizes_bytes": (1 << 63) - 1}, "reach past"),
    ({"sizes_bytes": 1 << 63}, "varint"),
    ({"kind": "p"}, "not simple"),
    ({"kind": "\0"}, "not simple"),
    ({"kind": "t"}, ""),
    # Of what parts decode to, which only compressed ones say.
    ({"values_claim": 1 << 40}, "1,099,511,627,776"),
    ({"values_claim": 6}, "6 bytes"),
    ({"values_claim": 4}, "4 bytes"),
    ({"values_claim": 6, "decoded_bytes": 6}, ""),
    ({"values_claim": 4, "decoded_bytes": 4}, ""),
    ({"sizes_claim": 1 << 40}, "1,099,511,627,776"),
    ({"sizes_claim": 1 << 40, "record_count": 1 << 40}, "1,099,511,627,776"),
    ({"sizes_claim": 3}, ""),
    # The byte of the compression, and the low one of the size.
    ({40: ord("x")}, "0x78"),
    ({8: 0xFF}, "reaches past"),
]


@every_compression
@pytest.mark.parametrize(("lie", "says"), LIES)
def test_fields_that_contradict_each_other(compression, lie, says):
    if compression == "\0" and {"values_claim", "sizes_claim"} & lie.keys():
        return
    good = chunk([b"abc", b"de"], compression=compression)
    bad = bytearray(good)
    if {8, 40} & lie.keys():
        bad[next(iter(lie))] = next(iter(lie.values()))
    else:
        bad[:] = chunk([b"abc", b"de"], compression=compression, **lie)
    some = encoded([good, good, bytes(bad), good])
    error = TransposedChunkError if lie == {"kind": "t"} else CorruptShardError
    for method in (some.decode, some.checksum):
        with limited_memory(1 << 29), told(error, "shard, chunk 2", says):
            method()


@every_compression
def test_chunks_have_as_many_records_as_the_footer_says(compression):
    # As many chunks as records does not mean one record in each.
    for counts in ((0,), (0, 2), (2, 0), (0, 0, 1), (0, 3, 0)):
        groups = [[b"x" * (i + 1) for i in range(count)] for count in counts]
        chunks = [chunk(group, compression=compression) for group in groups]
        assert decode(*chunks) == [record for group in groups for record in group]
    # Without the footer's count, this one passes as a single record.
    joined = chunk([b"abc", b"de"], compression=compression, record_count=1)
    assert encoded([joined]).decode() == [b"abcde"]
    counted = encoded([joined], records=2)
    for method in (counted.decode, counted.checksum, counted.lengths):
        with told(CorruptShardError, "1 records instead of 2"):
            method()


def wide(data, window_log):
    """Returns a zstd frame that asks for a window of 2^window_log bytes."""
    parameters = zstandard.ZstdCompressionParameters(window_log=window_log)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("window_log", [28, 31])
@pytest.mark.parametrize("size_bytes", [1, 100, 16 << 10, 700_000])
def test_a_wide_window_takes_the_memory_of_the_records(window_log, size_bytes):
    record = random.Random(window_log).randbytes(size_bytes // 3 + 1) * 3
    frame = wide(record, window_log)
    with limited_memory(48 << 20):
        assert decode(chunk([record], frame=frame), records=1) == [record]


def test_no_wide_window_is_written():
    part = bytes(4 << 20)
    [frame] = map(bytes, compressor(WriterOptions(compression="zstd:19"))([part]))
    assert zstandard.get_frame_parameters(frame).window_size <= 1 << 20
    assert decompress_frame(frame, len(part)) == part


@pytest.mark.parametrize("count", [1, 40])
def test_memory_that_is_lacking_is_no_damage(count, without_compiled_part):
    record = bytes(64 << 20) if count == 1 else bytes(8 << 10)
    frame = wide(record, 27)  # Zstd allocates the window to decode it.
    some = encoded([chunk([record], frame=frame)] * count, records=1)
    decoded = None
    with limited_memory(16 << 20), contextlib.suppress(MemoryError):
        decoded = some.decode()
    assert decoded is None if count == 1 else decoded in (None, [record] * count)
    assert some.decode() == [record] * count


# Footers made by hand.

FOOTER = [footer_metadata(2, 5), footer_entry(64, 9, 3), footer_entry(200, 7, 2)]
CHUNKS = [bytes(136), bytes(64)]  # So that the footer begins at 264.


@pytest.mark.parametrize(
    ("place", "record", "says"),
    [
        (0, b"", "counts 0 chunks"),
        (0, footer_metadata(3, 5), "counts 3"),
        (0, footer_metadata(2, 6), "and 6"),
        (0, footer_metadata(2, 5, b"\xff\xfe"), "utf-8"),
        (1, footer_entry(200, 7, 3), "out of order"),
        (2, footer_entry(1 << 62, 7, 2), "out of order"),
        (2, footer_entry(1 << 63, 7, 2), "varint"),
        (2, b"\x08" + b"\xff" * 12, ""),
        (2, footer_entry(200, 1 << 40, 2), "decodes to 1,099,5"),
        (2, footer_entry(200, 7, 1 << 40), "impossible number"),
        (2, b"\x0b", "wire type 3"),
        (2, b"\x0a\x7f", "reaches past"),
        (2, b"\x09\x01", "reaches past"),
        # Of the end of the file, which says where the footer is.
        (3, message([(1, 10), (2, MAGIC)]), "outside of the file"),
        (3, message([(1, 264), (2, 5)]), "wrong magic"),
    ],
)
def test_footers_that_contradict_the_file(place, record, says):
    good = footer_of(array_record_file(CHUNKS, FOOTER))
    assert good.chunk_offsets.tolist() == [64, 200, 264]
    *footer, postscript = [*FOOTER, b""]
    if place < 3:
        footer[place] = record
    else:
        postscript = record
    bad = array_record_file(CHUNKS, footer, postscript=postscript or None)
    for data, part in ((array_record_file(CHUNKS, []), ""), (bad, says)):
        with told(CorruptShardError, "footer cannot be read", part, where="x"):
            footer_of(data, path="x")


def test_a_footer_that_claims_gibibytes_allocates_nothing():
    claims = 1 << 31
    lying = chunk(FOOTER, compression="z", decoded_bytes=claims, values_claim=claims)
    data = array_record_file(CHUNKS, FOOTER, footer_chunk=lying)
    with limited_memory(1 << 28), told(CorruptShardError, "limit"):
        footer_of(data)


# Damaged files: right data, data whose checksums differ, or an error of ours.


@pytest.mark.one_in(3)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("group_size", [1, 3])
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
def test_a_flip_in_every_byte(step, group_size, codec):
    data = official(text_records(5), f"group_size:{group_size},{codec}")
    chance, found = random.Random(group_size), 0
    # All that is not padding.
    places = [
        at for at in range(FIRST_CHUNK, len(data)) if any(data[at - 40 : at + 40])
    ]
    for position in places[::step]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        with limited_memory(1 << 29):
            try:
                records = decode_file(bytes(damaged))
            except GristmillError:
                found += 1
            else:
                assert len(records) == 5
    assert found > 100 // step


def test_truncation_at_any_length():
    records = [*text_records(8), random.Random(6).randbytes(150_000)]
    data = official(records, "group_size:3")
    for length in {*range(0, len(data), 977), *range(0, len(data), BLOCK_BYTES)}:
        with pytest.raises(CorruptShardError):
            decode_file(data[:length])


# The compiled part.


@pytest.mark.skipif(not CAN_COMPILE, reason="no C compiler here")
def test_the_compiled_part_is_there_where_it_can_be_and_is_not_needed():
    assert compiled.decoder() is not None, "install gristmill again: it is compiled"
    program = """
import sys
sys.modules["gristmill.dataset.arrayrecord._compiled"] = None
from gristmill.dataset.arrayrecord import chunk_hash, compiled
assert not compiled.is_compiled()
assert chunk_hash.hash_bytes(b"") == 0x72C3B1E9C0139FE1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory):
    """Returns the arguments of Python for the fuzzer with an address sanitizer."""
    made = str(tmp_path_factory.mktemp("sanitized") / "_compiled.so")
    source = str(ROOT / "dataset" / "arrayrecord" / "_compiled.c")
    include = f"-I{sysconfig.get_paths()['include']}"
    flags = "-g -O1 -fsanitize=address -shared -fPIC -DPy_LIMITED_API=0x030B0000"
    command = ["gcc", *flags.split(), include, source, "-o", made]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no gcc with a sanitizer here")
    return ["-m", "tests.storage.fuzz_chunks", made]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "cases"),
    [
        (1, 10_000),
        *(pytest.param(n, 100_000, marks=pytest.mark.soak) for n in range(2, 12)),
    ],
)
def test_damaged_chunks_are_left_or_decoded_as_by_python(sanitized, seed, cases):
    library = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True)
    asan = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, *sanitized, str(seed), str(cases)],
        cwd=ROOT,
        env={**os.environ, **asan, "LD_PRELOAD": library.strip()},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    left = int(done.stdout.split()[0])
    assert 0.2 * cases < left < 0.9 * cases
