"""TFRecord (`frames`, `frame_reader`, `inflated_stream`): every corruption is found."""

from __future__ import annotations

import base64
import gzip
import io
import pathlib
import random
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import hypothesis
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptFrameError,
    CorruptInputError,
    CorruptStreamError,
)
from gristmill.dataset.formats.file_formats import compression_of
from gristmill.dataset.formats.streams import READ_BYTES, Compression, InflatedStream
from gristmill.dataset.formats.tfrecord_frames import (
    FrameReader,
    encode_frame,
    mask,
)
from tests.conversion.streams import DribblingStream
from tests.support.memory import peak_memory
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    read_tfrecords,
    small_records,
    text_records,
    write_with_tensorflow,
)

# What TensorFlow 2.21 writes:
#   with tf.io.TFRecordWriter(path, compression) as writer:
#       for record in (b"", b"a", b"hello, world", bytes(range(20))):
#           writer.write(record)
GOLDEN_RECORDS = [b"", b"a", b"hello, world", bytes(range(20))]
GOLDEN = base64.b64decode(
    "AAAAAAAAAAApA5gH2OqCogEAAAAAAAAAAXXeQWF4buQoDAAAAAAAAAD0yP4KaGVsbG8sIHdvcmxkC77B"
    "6hQAAAAAAAAAXj0pFQABAgMEBQYHCAkKCwwNDg8QERITy4NQeg=="
)
GOLDEN_GZIP = base64.b64decode(
    "H4sIAAAAAAAAA2NggABN5hnsN141LWKE8hlL7zkmVuQ90eCBCnw58Y8rIzUnJ19HoTy/KCeFe9/BVyJQ"
    "uThbTVEGRiZmFlY2dg5OLm4eXj5+AUEh4dPNAVUAma/v6mEAAAA="
)
GOLDEN_ZLIB = base64.b64decode(
    "eJxjYIAATeYZ7DdeNS1ihPIZS+85JlbkPdHggQp8OfGPKyM1JydfR6E8vygnhXvfwVciULk4W01RBkYm"
    "ZhZWNnYOTi5uHl4+fgFBIeHTzQFVADdqFSo="
)
GOLDEN_OFFSETS = [0, 16, 33, 61]
GOLDEN_ENDS = [16, 33, 61, 97]


def open_frames(
    data: bytes,
    *,
    offset: int = 0,
    sized: bool = True,
    most: int = 1 << 30,
    block_bytes: int = READ_BYTES,
) -> FrameReader:
    return FrameReader(
        DribblingStream(data[offset:], most),
        path="in.tfrecord",
        offset=offset,
        size_bytes=len(data) if sized else None,
        block_bytes=block_bytes,
    )


def open_inflated(data: bytes, compression: Compression) -> FrameReader:
    stream = InflatedStream(io.BytesIO(data), path="in.gz", compression=compression)
    return FrameReader(stream, path="in.gz")


class Frame(NamedTuple):
    offset: int
    record: bytes
    crc32c: int


def frames_in(reader: FrameReader) -> Iterator[Frame]:
    for batch in reader.batches():
        yield from map(Frame, batch.places, batch.records, batch.crc32cs)


def records_of(reader: FrameReader) -> list[bytes]:
    return [frame.record for frame in frames_in(reader)]


def read_to_error(reader: FrameReader) -> tuple[list[Frame], CorruptInputError | None]:
    frames: list[Frame] = []
    try:
        for frame in frames_in(reader):
            frames.append(frame)
    except CorruptInputError as error:
        return frames, error
    return frames, None


def recover(reader: FrameReader) -> tuple[list[Frame], list[tuple[int, int]]]:
    """Reads all that can be read, as a conversion that leaves out damage does.

    Returns:
        The good frames, and the begin and end of each damaged region.
    """
    frames: list[Frame] = []
    regions: list[tuple[int, int]] = []
    while True:
        good, error = read_to_error(reader)
        frames += good
        if error is None:
            return frames, regions
        assert isinstance(error, CorruptFrameError)
        assert error.offset == reader.offset
        if error.end is not None and reader.begins_at(error.end):
            reader.skip(error.end)
        else:
            reader.skip(error.offset + 1)
            reader.resync()
        regions.append((error.offset, reader.offset))


def brute_force_frames(data: bytes) -> list[int]:
    """Returns every offset at which a whole frame begins, nested ones included."""

    def fits(begin: int, end: int) -> bool:
        stored = data[end : end + 4]
        crc = mask(google_crc32c.value(data[begin:end]))
        return len(stored) == 4 and crc == int.from_bytes(stored, "little")

    found = []
    for offset in range(len(data) - 15):
        (length,) = struct.unpack_from("<Q", data, offset)
        if fits(offset, offset + 8) and fits(offset + 12, offset + 12 + length):
            found.append(offset)
    return found


PACK = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": zstandard.compress,
}


class TestGolden:
    def test_encodes_what_tensorflow_writes(self):
        assert frames_of(GOLDEN_RECORDS) == GOLDEN

    @pytest.mark.parametrize(
        ("data", "compression"),
        [(GOLDEN_GZIP, "gzip"), (GOLDEN_ZLIB, "zlib")],
    )
    def test_inflates_what_tensorflow_compresses(self, data, compression):
        assert compression_of(data[:12]) == compression
        assert records_of(open_inflated(data, compression)) == GOLDEN_RECORDS


class TestTensorFlow:
    @pytest.mark.parametrize(
        ("official", "compression"), [("", "none"), ("GZIP", "gzip"), ("ZLIB", "zlib")]
    )
    def test_reads_what_it_writes(
        self, tmp_path: pathlib.Path, official: str, compression
    ):
        records = [*AWKWARD_RECORDS, *text_records(300)]
        path = tmp_path / "written.gz"  # The name says nothing.
        write_with_tensorflow(path, records, compression=official)
        data = path.read_bytes()
        assert compression_of(data[:12]) == compression
        if compression == "none":
            assert records_of(open_frames(data)) == records
        else:
            assert records_of(open_inflated(data, compression)) == records

    def test_it_reads_and_writes_what_is_encoded(self, tmp_path: pathlib.Path):
        records = [*AWKWARD_RECORDS, *text_records(300)]
        path, theirs = tmp_path / "encoded", tmp_path / "theirs"
        path.write_bytes(frames_of(records))
        assert read_tfrecords(path) == records
        write_with_tensorflow(theirs, records)
        assert theirs.read_bytes() == path.read_bytes()


class TestCorruption:
    @pytest.mark.parametrize("position", range(len(GOLDEN)))
    def test_every_flipped_bit_is_found_and_costs_one_record(self, position: int):
        hit = max(i for i, offset in enumerate(GOLDEN_OFFSETS) if offset <= position)
        in_header = position < GOLDEN_OFFSETS[hit] + 12
        for bit in range(8):
            data = bytearray(GOLDEN)
            data[position] ^= 1 << bit
            frames, error = read_to_error(open_frames(bytes(data)))
            assert [frame.record for frame in frames] == GOLDEN_RECORDS[:hit]
            assert isinstance(error, CorruptFrameError)
            assert error.offset == GOLDEN_OFFSETS[hit]
            assert error.reason == ("length" if in_header else "data")
            assert error.end == (None if in_header else GOLDEN_ENDS[hit])
            assert f"in.tfrecord, byte offset {error.offset:,}" in str(error)
            assert "expected:" in str(error)
            assert "got:" in str(error)

            for reader in (
                open_frames(bytes(data)),
                open_frames(bytes(data), sized=False, most=5),
            ):
                frames, regions = recover(reader)
                assert [frame.record for frame in frames] == [
                    record for i, record in enumerate(GOLDEN_RECORDS) if i != hit
                ]
                (region,) = regions
                assert region == (GOLDEN_OFFSETS[hit], GOLDEN_ENDS[hit])

    @pytest.mark.parametrize("sized", [True, False])
    def test_truncation_at_every_length(self, sized: bool):
        for length in range(len(GOLDEN)):
            whole = sum(end <= length for end in GOLDEN_ENDS)
            for most in (4, 1 << 20):
                reader = open_frames(GOLDEN[:length], sized=sized, most=most)
                frames, error = read_to_error(reader)
                assert [frame.record for frame in frames] == GOLDEN_RECORDS[:whole]
                if length in (0, *GOLDEN_ENDS):
                    assert error is None
                    continue
                assert isinstance(error, CorruptFrameError)
                assert error.reason == "truncated"
                assert error.offset == GOLDEN_OFFSETS[whole]
                frames, regions = recover(
                    open_frames(GOLDEN[:length], sized=sized, most=most)
                )
                assert len(frames) == whole
                assert regions == [(GOLDEN_OFFSETS[whole], length)]

    @pytest.mark.parametrize(
        "data",
        [
            pytest.param(b"{}\n" * 10, id="text"),
            pytest.param(b"\0" * 4096, id="zeros"),
            pytest.param(b"\xff" * 4096, id="ones"),
            pytest.param(b"\x89PNG\r\n\x1a\n" + b"\0" * 64, id="png"),
            pytest.param(random.Random(3).randbytes(10_000), id="random"),
        ],
    )
    def test_garbage_is_no_tfrecord_file(self, data: bytes):
        frames, error = read_to_error(open_frames(data))
        assert frames == []
        assert "not a TFRecord file" in str(error)
        frames, regions = recover(open_frames(data))
        assert frames == []
        assert regions == [(0, len(data))]

    @pytest.mark.parametrize("length", [1 << 31, 1 << 60, (1 << 64) - 1])
    @pytest.mark.parametrize("sized", [True, False])
    def test_absurd_length_with_a_right_checksum_allocates_nothing(
        self, length: int, sized: bool
    ):
        field = struct.pack("<Q", length)
        header = field + struct.pack("<I", mask(google_crc32c.value(field)))
        rest = b"some bytes that follow" + GOLDEN
        data = GOLDEN + header + rest
        with peak_memory() as peak:
            frames, error = read_to_error(open_frames(data, sized=sized))
            recovered, regions = recover(open_frames(data, sized=sized))
        assert peak.bytes < 1 << 20
        assert [frame.record for frame in frames] == GOLDEN_RECORDS
        assert isinstance(error, CorruptFrameError)
        assert error.offset == len(GOLDEN)
        assert f"{length + 16:,} bytes" in str(error)
        assert [frame.record for frame in recovered] == GOLDEN_RECORDS * 2
        assert regions == [(len(GOLDEN), len(GOLDEN) + 12 + 22)]

    def test_a_length_is_believed_only_as_far_as_the_file_goes(self):
        # A gibibyte is claimed of a file of which 1 GiB exists by its size alone.
        field = struct.pack("<Q", 1 << 30)
        header = field + struct.pack("<I", mask(google_crc32c.value(field)))
        reader = FrameReader(
            io.BytesIO(header + b"x" * 100), path="sparse", size_bytes=2 << 30
        )
        with peak_memory() as peak, pytest.raises(CorruptFrameError, match="middle"):
            next(frames_in(reader))
        assert peak.bytes < 1 << 20


class TestCompressed:
    @pytest.mark.parametrize(
        ("head", "compression"),
        [
            pytest.param(GOLDEN[:12], "none", id="frame"),
            pytest.param(GOLDEN_GZIP[:12], "gzip", id="gzip"),
            pytest.param(GOLDEN_ZLIB[:12], "zlib", id="zlib"),
            pytest.param(zlib.compress(GOLDEN, 1)[:12], "zlib", id="zlib-1"),
            pytest.param(zlib.compress(GOLDEN, 9)[:12], "zlib", id="zlib-9"),
            pytest.param(zlib.compress(GOLDEN, 0)[:12], "zlib", id="zlib-0"),
            pytest.param(zlib.compress(b"")[:12], "zlib", id="zlib-empty"),
            pytest.param(gzip.compress(b"")[:12], "gzip", id="gzip-empty"),
            pytest.param(b"", "none", id="empty"),
            pytest.param(b"\x1f", "none", id="one-byte"),
            pytest.param(b"\x78\x9c", "zlib", id="two-bytes"),
            pytest.param(b"%PDF-1.7\n%..", "none", id="other"),
            # Frames whose length begins like the magic numbers of zlib and gzip.
            pytest.param(encode_frame(bytes(0x9C78))[:12], "none", id="length-zlib"),
            pytest.param(encode_frame(bytes(0x8B1F))[:12], "none", id="length-gzip"),
            # The same with a damaged checksum: still no compressed files.
            pytest.param(
                struct.pack("<QI", 0x9C78, 0), "none", id="bad-length-like-zlib"
            ),
            pytest.param(
                struct.pack("<QI", 0x0178, 0), "none", id="bad-length-like-zlib-1"
            ),
            pytest.param(
                struct.pack("<QI", 0x8B1F, 0), "none", id="bad-length-like-gzip"
            ),
        ],
    )
    def test_detection(self, head: bytes, compression: str):
        assert compression_of(head) == compression

    @pytest.mark.parametrize("compression", ["gzip", "zlib", "zstd"])
    def test_concatenated_streams_are_read_as_one(self, compression):
        pack = PACK[compression]
        # Cut in the middle of a frame, with an empty member between.
        data = pack(GOLDEN[:20]) + pack(b"") + pack(GOLDEN[20:]) + pack(GOLDEN)
        for most in (1, 7, 1 << 20):
            stream = InflatedStream(
                DribblingStream(data, most), path="in", compression=compression
            )
            reader = FrameReader(stream, path="in")
            assert records_of(reader) == GOLDEN_RECORDS * 2
            assert stream.compressed_bytes == len(data)

    def test_every_cut_of_a_zstd_stream_is_found(self):
        pieces = [b"word %d " % (n % 9) + bytes(n % 400) for n in range(60)]
        whole = b"".join(pieces)
        data = zstandard.ZstdCompressor(write_checksum=True).compress(whole)
        for cut in range(1, len(data)):
            stream = InflatedStream(
                io.BytesIO(data[:cut]), path="in", compression="zstd"
            )
            with pytest.raises(CorruptStreamError, match="middle of its stream"):
                list(iter(lambda s=stream: s.read(100), b""))

    @pytest.mark.parametrize(
        ("data", "compression"), [(GOLDEN_GZIP, "gzip"), (GOLDEN_ZLIB, "zlib")]
    )
    def test_truncation_at_every_length(self, data: bytes, compression):
        for length in range(1, len(data)):
            frames, error = read_to_error(open_inflated(data[:length], compression))
            count = len(frames)
            assert [frame.record for frame in frames] == GOLDEN_RECORDS[:count]
            assert "ends in the middle of its stream" in str(error), length
            assert f"{length:,}" in str(error)

    def test_junk_after_the_stream_is_an_error(self):
        padded = GOLDEN_GZIP + bytes(70_000)
        assert read_to_error(open_inflated(padded, "gzip"))[1] is None
        frames, error = read_to_error(open_inflated(padded + b"junk", "gzip"))
        assert [frame.record for frame in frames] == GOLDEN_RECORDS
        assert "cannot be decompressed" in str(error)

    def test_what_came_before_the_damage_can_still_be_read(self):
        # Incompressible and longer than a read, so that the damage comes late.
        records = [random.Random(i).randbytes(300_000) for i in range(12)]
        data = bytearray(zlib.compress(frames_of(records)))
        data[-3] ^= 1  # The checksum of the whole stream.
        frames, regions = recover(open_inflated(bytes(data), "zlib"))
        assert [frame.record for frame in frames] == records
        end = len(frames_of(records))
        assert regions == [(end, end)]

        half = len(data) * 11 // 20
        frames, error = read_to_error(open_inflated(bytes(data[:half]), "zlib"))
        whole = len(frames)
        assert whole >= 5
        assert [frame.record for frame in frames] == records[:whole]
        assert isinstance(error, CorruptFrameError)
        assert error.reason == "compressed"
        assert "\n" not in error.detail

        frames, regions = recover(open_inflated(bytes(data[:half]), "zlib"))
        assert len(frames) == whole
        ((begin, end),) = regions
        assert begin == error.offset == len(frames_of(records[:whole]))
        assert 100_000 < end - begin < len(encode_frame(records[whole]))

    def test_a_bomb_is_read_in_bounded_memory(self):
        data = zlib.compress(bytes(256 << 20), 1)
        stream = InflatedStream(io.BytesIO(data), path="bomb", compression="zlib")
        with peak_memory() as peak:
            total = 0
            while piece := stream.read(4 << 20):
                total += len(piece)
        assert total == 256 << 20
        assert peak.bytes < 16 << 20


class TestResync:
    @hypothesis.settings(max_examples=40)
    @given(small_records(max_records=4), st.binary(max_size=40), st.integers(1, 50))
    def test_finds_what_brute_force_finds_from_every_offset(self, records, tail, most):
        data = frames_of(records) + tail
        frames = [*brute_force_frames(data), None]
        for begin in range(len(data) + 1):
            expected = next(f for f in frames if f is None or f >= begin)
            for sized in (True, False):
                reader = open_frames(data, offset=begin, sized=sized, most=most)
                assert reader.resync() == (expected is not None)
                assert reader.offset == (len(data) if expected is None else expected)

    def test_a_payload_of_frames_fools_the_search_but_not_the_reader(self):
        inner = frames_of([b"inner"] * 3)
        data = frames_of([b"first", inner, b"last"])
        outer = 16 + 5
        reader = open_frames(data, offset=outer + 1)
        assert reader.resync()
        assert reader.offset == outer + 12  # Inside the payload.
        assert records_of(open_frames(data)) == [b"first", inner, b"last"]
        # From a true boundary, the nested frames are not seen.
        reader = open_frames(data, offset=outer)
        assert reader.resync()
        assert records_of(reader) == [inner, b"last"]
