"""TFRecord: every record once wherever a file is cut, and every corruption found."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import pathlib
import random
import struct
import tempfile
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import google_crc32c
import hypothesis
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptFrameError
from gristmill.dataset.formats.file_formats import compression_of
from gristmill.dataset.formats.streams import InflatedStream
from gristmill.dataset.formats.tfrecord_frames import FrameReader, encode_frame, mask
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import TFRECORD
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import KeptPass, SkippedRegions, source_of
from gristmill.transforms.sources.tfrecord import join_walks, walk_frames
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import nested_records
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
BEGINS, ENDS = [0, 16, 33, 61], [16, 33, 61, 97]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}


class Read(NamedTuple):
    """What reading gave: records, what was left out, and the range that was read."""

    records: list[bytes]
    regions: list[tuple[int, int]]
    span: SourceSpan
    reasons: list[str]


@pytest.fixture(scope="module")
def path():
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder, "in.tfrecord")


def read_range(
    path: pathlib.Path,
    begin: int = 0,
    end: int = -1,
    *,
    keep: bool = True,
    compression: str = "none",
    cut: bool = False,
    from_start: bool = False,
    **options: Any,
) -> Read:
    """Reads a range of a file; leaves out damage if `keep`."""
    size = path.stat().st_size
    if compression == "none" and end < 0 and not from_start:
        end = size
    source = SourceRange(
        file_index=0, begin_bytes=begin, end_bytes=end, cut=cut, from_start=from_start
    )
    skipped = SkippedRegions()
    reader = source_of(TFRECORD).read(
        InputFile(str(path), size, compression=compression),
        source,
        skipped=skipped if keep else None,
        **options,
    )
    records = [record for batch in reader.batches() for record in batch.records]
    regions = [(line["begin_bytes"], line["end_bytes"]) for line in skipped.found]
    reasons = [line["reason"] for line in skipped.found]
    return Read(records, regions, reader.span, reasons)


def damage_of(path: pathlib.Path, **options: Any) -> CorruptFrameError:
    with pytest.raises(CorruptFrameError) as caught:
        read_range(path, keep=False, **options)
    assert "expected:" in str(caught.value)
    assert "got:" in str(caught.value)
    return caught.value


def begins_of(records: list[bytes]) -> list[int]:
    return list(itertools.accumulate((16 + len(r) for r in records), initial=0))


class TestTensorFlow:
    def test_the_bytes_that_it_writes(self, path):
        assert frames_of(GOLDEN_RECORDS) == GOLDEN
        for data, kind in ((GOLDEN_GZIP, "gzip"), (GOLDEN_ZLIB, "zlib")):
            assert compression_of(data[:12]) == kind
            path.write_bytes(data)
            assert read_range(path, compression=kind).records == GOLDEN_RECORDS

    @pytest.mark.parametrize(
        ("official", "kind"), [("", "none"), ("GZIP", "gzip"), ("ZLIB", "zlib")]
    )
    def test_each_reads_what_the_other_writes(self, tmp_path, official, kind):
        records = [*AWKWARD_RECORDS, *text_records(300)]
        theirs, ours = tmp_path / "theirs.gz", tmp_path / "ours"  # A name says nothing.
        write_with_tensorflow(theirs, records, compression=official)
        assert compression_of(theirs.read_bytes()[:12]) == kind
        assert read_range(theirs, compression=kind).records == records
        ours.write_bytes(PACK[kind](frames_of(records)))
        assert read_tfrecords(ours, compression=official) == records
        assert kind != "none" or ours.read_bytes() == theirs.read_bytes()


def header(length: int) -> bytes:
    field = struct.pack("<Q", length)
    return field + struct.pack("<I", mask(google_crc32c.value(field)))


class TestCorruption:
    @pytest.mark.parametrize("position", range(len(GOLDEN)))
    def test_every_flipped_bit_is_found_and_costs_one_record(self, path, position):
        hit = max(i for i, begin in enumerate(BEGINS) if begin <= position)
        in_header = position < BEGINS[hit] + 12
        left = [record for i, record in enumerate(GOLDEN_RECORDS) if i != hit]
        for bit in range(8):
            data = bytearray(GOLDEN)
            data[position] ^= 1 << bit
            path.write_bytes(data)
            error = damage_of(path)
            assert (error.offset, error.reason) == (
                BEGINS[hit],
                "length" if in_header else "data",
            )
            assert error.end == (None if in_header else ENDS[hit])
            assert error.where == f"{path}, byte offset {BEGINS[hit]}"
            read = read_range(path)
            assert (read.records, read.regions) == (left, [(BEGINS[hit], ENDS[hit])])

    @pytest.mark.parametrize("kind", PACK)
    def test_every_cut_is_found(self, path, kind):
        data = {"none": GOLDEN, "gzip": GOLDEN_GZIP, "zlib": GOLDEN_ZLIB}.get(kind)
        data = data or PACK[kind](GOLDEN)
        for length in range(1, len(data)):
            path.write_bytes(data[:length])
            read = read_range(path, compression=kind)
            whole = len(read.records)
            assert read.records == GOLDEN_RECORDS[:whole]
            if kind != "none":
                assert read.reasons == ["compressed"]
                assert "ends in the middle" in str(damage_of(path, compression=kind))
                continue
            assert whole == sum(end <= length for end in ENDS)
            cut = length not in ENDS
            assert read.regions == [(BEGINS[whole], length)] * cut
            assert read.reasons == ["truncated"] * cut

    @pytest.mark.parametrize(
        "data",
        [bytes(4096), b"\x89PNG\r\n\x1a\n" + bytes(64), random.Random(3).randbytes(99)],
        ids=["zeros", "png", "random"],
    )
    def test_garbage_is_no_tfrecord_file(self, path, data):
        path.write_bytes(data)
        assert "not a TFRecord file" in str(damage_of(path))
        assert read_range(path)[:2] == ([], [(0, len(data))])

    @pytest.mark.parametrize("length", [1 << 31, 1 << 60, (1 << 64) - 1])
    def test_absurd_length_with_a_right_checksum_allocates_nothing(self, path, length):
        path.write_bytes(GOLDEN + header(length) + b"some bytes that follow" + GOLDEN)
        with peak_memory() as peak:
            error, read = damage_of(path), read_range(path)
        assert peak.bytes < 2 << 20
        assert error.offset == len(GOLDEN)
        assert f"{length + 16:,} bytes" in str(error)
        assert read.records == GOLDEN_RECORDS * 2
        assert read.regions == [(len(GOLDEN), len(GOLDEN) + 12 + 22)]

    def test_a_length_is_believed_only_as_far_as_the_file_goes(self):
        # A gibibyte is claimed of a file of which 1 GiB exists by its size alone.
        stream = io.BytesIO(header(1 << 30) + b"x" * 100)
        reader = FrameReader(stream, path="sparse", size_bytes=2 << 30)
        with peak_memory() as peak, pytest.raises(CorruptFrameError, match="middle"):
            next(reader.batches())
        assert peak.bytes < 1 << 20


class TestCompressed:
    @pytest.mark.parametrize(
        ("head", "kind"),
        [
            *((zlib.compress(GOLDEN, level), "zlib") for level in (0, 1, 9)),
            (zlib.compress(b""), "zlib"),
            (gzip.compress(b"", mtime=0), "gzip"),
            (b"", "none"),
            (b"\x1f", "none"),
            (b"\x78\x9c", "zlib"),
            (b"%PDF-1.7\n%..", "none"),
            # Frames whose length begins like the magic numbers of zlib and gzip.
            (encode_frame(bytes(0x9C78)), "none"),
            (encode_frame(bytes(0x8B1F)), "none"),
            # The same with a damaged checksum: still no compressed files.
            *((struct.pack("<QI", n, 0), "none") for n in (0x9C78, 0x0178, 0x8B1F)),
        ],
    )
    def test_detection(self, head, kind):
        assert compression_of(head[:12]) == kind

    @pytest.mark.parametrize("kind", ["gzip", "zlib", "zstd"])
    def test_concatenated_streams_are_read_as_one(self, path, kind):
        # Cut in the middle of a frame, with an empty member between.
        parts = (GOLDEN[:20], b"", GOLDEN[20:], GOLDEN)
        path.write_bytes(b"".join(map(PACK[kind], parts)))
        read = read_range(path, compression=kind, keep=False)
        assert read.records == GOLDEN_RECORDS * 2

    def test_zeros_after_the_stream_are_padding_and_junk_is_damage(self, path):
        path.write_bytes(GOLDEN_GZIP + bytes(70_000))
        assert read_range(path, compression="gzip").records == GOLDEN_RECORDS
        path.write_bytes(GOLDEN_GZIP + bytes(70_000) + b"junk")
        read = read_range(path, compression="gzip")
        assert (read.records, read.reasons) == (GOLDEN_RECORDS, ["compressed"])

    def test_a_bomb_is_read_in_bounded_memory(self):
        data = io.BytesIO(zlib.compress(bytes(256 << 20), 1))
        stream = InflatedStream(data, path="bomb", compression="zlib")
        with peak_memory() as peak:
            assert sum(map(len, iter(lambda: stream.read(4 << 20), b""))) == 256 << 20
        assert peak.bytes < 16 << 20

    def test_a_damaged_stream_that_repeats_records_is_not_believed(self, path):
        # Deflate writes what it has seen before as a reference. With one literal
        # changed it stays readable to the end, where the checksum of all does not fit.
        records = [b"record %3d " % (n % 7) + bytes(40) for n in range(500)]
        data, repeated = zlib.compress(frames_of(records)), 0
        for position in range(2, len(data) - 4, 5):
            path.write_bytes(flipped(data, position))
            read = read_range(path, compression="zlib")
            assert read.records == records[: len(read.records)]
            assert len(read.regions) == 1
            repeated += len(read.records) < 500
        assert repeated > 10

    @given(seed=st.integers(0, 10_000), inside=st.booleans())
    def test_damage_is_left_out_once_wherever_the_file_is_cut(self, path, seed, inside):
        chance = random.Random(seed)
        records = [chance.randbytes(chance.randrange(900)) for _ in range(60)]
        data = bytearray(frames_of(records))
        if inside:  # Before it was compressed: it can be read on behind.
            for _ in range(3):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        stored = bytearray(zlib.compress(bytes(data)))
        if not inside:
            stored[chance.randrange(2, len(stored))] ^= 1 << chance.randrange(8)
        path.write_bytes(stored)
        whole = read_range(path, compression="zlib", cuts=[])
        cuts = sorted(chance.sample(range(1, len(stored)), 6))
        each, once = (
            [
                read_range(path, *edges, compression="zlib", cuts=cuts, kept=kept)
                for edges in itertools.pairwise([0, *cuts, -1])
            ]
            for kept in (None, KeptPass())
        )
        assert once == each
        assert records_in(once) == whole.records
        assert [region for read in once for region in read.regions] == whole.regions
        stops = [read.span.stop_bytes for read in once]
        assert [read.span.start_bytes for read in once] == [0, *stops[:-1]]
        assert once[-1].span.whole


def read_in_ranges(
    path: pathlib.Path, cuts: list[int], *, keep: bool, whole: bool = False
) -> list[Read] | None:
    """Reads a file range by range as a conversion does; None if two do not meet.

    With `whole`, each is read from the start of the file.
    """
    size = path.stat().st_size
    reached, reads = 0, []
    for begin, end in itertools.pairwise(sorted({0, *cuts, size})):
        if whole:
            end = -1 if end == size else end
        read = read_range(path, begin, end, keep=keep, cut=not whole, from_start=whole)
        start = read.span.start_bytes
        if not (reached >= end if start is None else start == reached):
            return None
        if read.span.stop_bytes is not None:
            reached = read.span.stop_bytes
        reads.append(read)
    assert reached == size
    return reads


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x10
    return bytes(changed)


# What a damaged file can be made of: (bytes, the record if it can be recovered).
PIECES = st.one_of(
    st.binary(max_size=40).map(lambda r: (encode_frame(r), r)),
    st.integers(0, 10**6)
    .map(lambda seed: nested_records(random.Random(seed), depth=2))
    .map(lambda r: (encode_frame(r), r)),
    st.binary(max_size=20).map(lambda r: (flipped(encode_frame(r), 1), None)),
    st.binary(min_size=1, max_size=20).map(
        lambda r: (flipped(encode_frame(r), 12), None)
    ),
    st.binary(max_size=20).map(lambda r: (encode_frame(r)[:-3], None)),
    st.binary(min_size=1, max_size=20).map(lambda junk: (junk, None)),
)


def records_in(reads: list[Read]) -> list[bytes]:
    return [record for read in reads for record in read.records]


class TestCuts:
    @given(records=small_records(), cuts=st.lists(st.integers(0, 400), max_size=8))
    def test_good_files_are_read_exactly_or_refused(self, path, records, cuts):
        data = frames_of(records)
        path.write_bytes(data)
        cuts = [cut for cut in cuts if cut <= len(data)]
        try:
            reads = read_in_ranges(path, cuts, keep=False)
        except CorruptFrameError as refused:
            cure = refused.cure
        else:
            cure = "--whole-files"
            assert reads is None or records_in(reads) == records
        assert "--whole-files" in cure
        assert records_in(read_in_ranges(path, cuts, keep=False, whole=True)) == records

    @given(pieces=st.lists(PIECES, max_size=8), data=st.data())
    def test_damaged_files_lose_nothing_else(self, path, pieces, data):
        content = b"".join(piece for piece, _ in pieces)
        good = [record for _, record in pieces if record is not None]
        path.write_bytes(content)
        cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=6))
        alone = read_range(path)
        assert [record for record in alone.records if record in good] == good
        for whole in (False, True):
            reads = read_in_ranges(path, cuts, keep=True, whole=whole)
            if reads is None:
                assert not whole
                continue
            assert records_in(reads) == alone.records
            regions = [region for read in reads for region in read.regions]
            assert regions == alone.regions
        # Bytes in = bytes of records + bytes left out.
        frames = sum(len(encode_frame(record)) for record in alone.records)
        lost = sum(end - begin for begin, end in alone.regions)
        assert frames + lost == len(content)

    @pytest.mark.parametrize("first", [1, 5])
    def test_damage_at_a_cut_belongs_to_the_range_before(self, path, first):
        records = [bytes([65 + number]) * 100 for number in range(12)]
        data = frames_of(records)
        for number in (first, first + 1, first + 2):
            data = flipped(data, number * 116 + 50)
        path.write_bytes(data)
        for cut in range(1, len(data), 7):
            reads = read_in_ranges(path, [cut], keep=True)
            assert reads is not None
            assert records_in(reads) == records[:first] + records[first + 3 :]
            assert sum(len(read.regions) for read in reads) == 3


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


@hypothesis.settings(max_examples=40)
@given(small_records(max_records=4), st.binary(max_size=40), st.integers(1, 50))
def test_a_search_finds_what_brute_force_finds(records, tail, most):
    data = frames_of(records) + tail
    frames = [*brute_force_frames(data), None]
    for begin in range(len(data) + 1):
        expected = next(f for f in frames if f is None or f >= begin)
        for size in (len(data), None):
            stream = io.BytesIO(data[begin:])
            given_bytes = {"offset": begin, "size_bytes": size, "block_bytes": most}
            reader = FrameReader(stream, path="in", **given_bytes)
            assert reader.resync() == (expected is not None)
            assert reader.offset == (len(data) if expected is None else expected)


# Walks through parts of a file, by which Beam's workers find its frames.


def walked(
    file: InputFile, edges: list[int], *, range_bytes: int, lost: int = -1
) -> list[tuple[int, ...]]:
    """Walks through a file in parts, of which one may be lost."""
    parts = list(itertools.pairwise(edges))
    if lost >= 0 and parts:
        del parts[lost % len(parts)]
    return [
        chain
        for begin, end in parts
        for chain in walk_frames(file, begin, end, step_bytes=range_bytes)
    ]


def ranges_of(
    path: pathlib.Path, cuts: list[int], *, range_bytes: int, lost: int = -1
) -> list[tuple[int, int]]:
    size = path.stat().st_size
    file = InputFile(str(path), size)
    edges = sorted({0, size, *(at % (size + 1) for at in cuts)})
    chains = walked(file, edges, range_bytes=range_bytes, lost=lost)
    return list(join_walks(file, chains, range_bytes=range_bytes))


@given(
    records=small_records(max_records=30),
    cuts=st.lists(st.integers(0, 10**6), max_size=8),
    range_bytes=st.integers(1, 200),
    lost=st.integers(-1, 8),
)
@example(records=[], cuts=[0], range_bytes=1, lost=-1)
def test_walks_in_parts_give_every_record_once(path, records, cuts, range_bytes, lost):
    path.write_bytes(frames_of(records))
    ranges = ranges_of(path, cuts, range_bytes=range_bytes, lost=lost)
    reads = [read_range(path, begin, end, keep=False) for begin, end in ranges]
    assert records_in(reads) == records
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    longest = max(map(len, records), default=0) + 16
    for begin, end in ranges[:-1]:
        assert range_bytes <= end - begin < 2 * range_bytes + 2 * longest


@given(
    records=small_records(max_records=12).filter(bool),
    cuts=st.lists(st.integers(0, 10**6), max_size=6),
    range_bytes=st.integers(1, 120),
    where=st.integers(0, 10**6),
    cut=st.booleans(),
)
def test_walks_find_damage_where_it_is(path, records, cuts, range_bytes, where, cut):
    data = frames_of(records)
    at = where % len(data)
    path.write_bytes(data[:at] if cut else flipped(data, at))
    begin = max(begin for begin in begins_of(records) if begin <= at)
    ranges = ranges_of(path, cuts, range_bytes=range_bytes)
    if cut and at == begin:
        assert sum(len(read_range(path, *r, keep=False).records) for r in ranges) == (
            begins_of(records).index(at)
        )
        return
    with pytest.raises(CorruptFrameError) as caught:
        [read_range(path, *edges, keep=False) for edges in ranges]
    assert caught.value.offset == begin


def put(server: GcsServer, data: bytes) -> InputFile:
    server.objects.put("bucket", "file", data)
    return InputFile("gs://bucket/file", len(data))


def offsets(server: GcsServer) -> list[int]:
    """Where the requests for bytes begin."""
    return [
        int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        for operation, _, asked in server.log
        if operation == "media"
    ]


def test_joining_reads_nothing_of_plain_records(server: GcsServer) -> None:
    file = put(server, frames_of([bytes(84)] * 1000))
    chains = walked(file, [0, 33_333, 66_666, 100_000], range_bytes=1000)
    assert len(chains) == 3
    server.log.clear()
    ranges = list(join_walks(file, chains, range_bytes=1000))
    # Only what is behind the last place is looked at again.
    assert all(offset >= 98_000 for offset in offsets(server))
    assert len(ranges) == pytest.approx(100, abs=5)


def test_frames_within_records_are_passed_at_once(server: GcsServer) -> None:
    records = [frames_of([b"%d" % number * 9] * 100) for number in range(60)]
    file = put(server, frames_of(records))
    edges = [file.size_bytes * number // 10 for number in range(11)]
    chains = walked(file, edges, range_bytes=1000)
    begins = begins_of(records)
    assert sum(chain[0] not in begins for chain in chains) >= 5  # Were fooled.
    server.log.clear()
    ranges = list(join_walks(file, chains, range_bytes=1000))
    # Behind the record in which a part begins, its walk is on the right way.
    assert len(offsets(server)) <= 11
    assert ranges == list(itertools.pairwise(begins))


def test_a_record_full_of_broken_frames_does_not_hold_up_a_walk(server: GcsServer):
    """Each of them looks like the beginning of a chain that breaks at once."""
    records = [(encode_frame(b"x" * 40) + b"-") * 2000, b"last"]
    file = put(server, frames_of(records))
    size = file.size_bytes
    chains = walked(file, [size // 2, size], range_bytes=10)
    assert len(offsets(server)) <= 20
    ranges = list(join_walks(file, chains, range_bytes=10))
    assert ranges == list(itertools.pairwise(begins_of(records)))
