"""TFRecord: every record once wherever a file is cut, and every corruption found."""

import gzip
import io
import itertools
import random
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset import CorruptFrameError, DataLossError, encode_frame
from gristmill.dataset.formats.file_formats import compression_of
from gristmill.dataset.formats.streams import COMPRESSIONS, InflatedStream
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import TFRECORD
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.source import ReadRequest, source_of
from gristmill.transforms.sources.tfrecord import join_walks, walk_frames
from tests.conversion.format_files import COMPRESS, check_meets, in_blocks, read_cut
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
from tests.support.told import told

RECORDS = [b"", b"a", b"hello, world", bytes(range(20))]
DATA = frames_of(RECORDS)
BEGINS, ENDS = [0, 16, 33, 61], [16, 33, 61, 97]


@pytest.fixture(scope="module")
def path(folder):
    return folder / "in.tfrecord"


def file_of(path, *, kind="none", whole=False):
    """Returns the list of one file, whatever it looks like."""
    return InputFiles(
        paths=[str(path)],
        sizes=np.array([path.stat().st_size]),
        versions=[None],
        compressions=np.array([COMPRESSIONS.index(kind)]),
        noted_ns=np.zeros(1, np.int64),
        whole=whole,
    )


def read(path, cuts=(), *, keep=True, **options):
    return read_cut(file_of(path, **options), cuts, keep=keep)


def reasons(found):
    return [line["reason"] for line in found.skipped]


def flipped(data, position, bits=0x10):
    return data[:position] + bytes([data[position] ^ bits]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("official", "kind"), [("", "none"), ("GZIP", "gzip"), ("ZLIB", "zlib")]
)
def test_tensorflow_and_we_read_what_the_other_writes(tmp_path, official, kind):
    records = [*AWKWARD_RECORDS, *text_records(300)]
    theirs, ours = tmp_path / "theirs.gz", tmp_path / "ours"  # A name says nothing.
    write_with_tensorflow(theirs, records, compression=official)
    assert compression_of(theirs.read_bytes()[:12]) == kind
    assert read(theirs, keep=False, kind=kind).records == records
    ours.write_bytes(COMPRESS[kind](frames_of(records)))
    assert read_tfrecords(ours, compression=official) == records
    assert kind != "none" or ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("position", range(len(DATA)))
def test_every_flipped_bit_is_found_and_costs_one_record(path, position):
    hit = max(i for i, begin in enumerate(BEGINS) if begin <= position)
    in_header = position < BEGINS[hit] + 12
    for bit in range(8):
        path.write_bytes(flipped(DATA, position, 1 << bit))
        with told(
            CorruptFrameError,
            match=r"(?s)expected:.*got:",
            where=f"{path}, byte offset {BEGINS[hit]}",
        ):
            read(path, keep=False)
        found = read(path)
        assert found.records == RECORDS[:hit] + RECORDS[hit + 1 :]
        assert found.regions == [(BEGINS[hit], ENDS[hit])]
        assert reasons(found) == ["length" if in_header else "data"]


@pytest.mark.parametrize("kind", COMPRESS)
def test_every_cut_is_found(path, kind):
    data = COMPRESS[kind](DATA)
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        found = read(path, kind=kind)
        whole = len(found.records)
        assert found.records == RECORDS[:whole]
        if kind != "none":
            assert reasons(found) == ["compressed"]
            continue
        assert whole == sum(end <= length for end in ENDS)
        cut = length not in ENDS
        assert found.regions == [(BEGINS[whole], length)] * cut
        assert reasons(found) == ["truncated"] * cut


@pytest.mark.parametrize("kind", ["gzip", "zlib", "zstd"])
def test_streams_behind_one_another_are_read_as_one(path, kind):
    # Cut in the middle of a frame, with an empty member between.
    parts = (DATA[:20], b"", DATA[20:], DATA)
    path.write_bytes(b"".join(map(COMPRESS[kind], parts)))
    assert read(path, keep=False, kind=kind).records == RECORDS * 2


def test_zeros_behind_a_stream_are_padding_and_junk_is_damage(path):
    for junk in (b"", b"junk"):
        path.write_bytes(gzip.compress(DATA) + bytes(70_000) + junk)
        found = read(path, kind="gzip")
        assert (found.records, len(found.skipped)) == (RECORDS, bool(junk))


def test_a_bomb_is_read_in_bounded_memory():
    data = io.BytesIO(zlib.compress(bytes(256 << 20), 1))
    stream = InflatedStream(data, path="bomb", compression="zlib")
    with peak_memory() as peak:
        assert sum(map(len, iter(lambda: stream.read(4 << 20), b""))) == 256 << 20
    assert peak.bytes < 16 << 20


def test_a_damaged_stream_that_repeats_records_is_not_believed(path):
    # Deflate writes what it has seen before as a reference. With one literal
    # changed it stays readable to the end, where the checksum of all does not fit.
    records = [b"record %3d " % (n % 7) + bytes(40) for n in range(500)]
    data, repeated = zlib.compress(frames_of(records)), 0
    for position in range(2, len(data) - 4, 5):
        path.write_bytes(flipped(data, position))
        found = read(path, kind="zlib")
        assert found.records == records[: len(found.records)]
        assert len(found.regions) == 1
        repeated += len(found.records) < 500
    assert repeated > 10


# What a damaged file can be made of: (bytes, the record if it can be recovered).
def _pieces(min_size, damage, *, kept=False):
    made = st.binary(min_size=min_size, max_size=30)
    return made.map(lambda r: (damage(encode_frame(r)), r if kept else None))


NESTED = st.integers(0, 10**6).map(lambda n: nested_records(random.Random(n), depth=2))
PIECES = st.one_of(
    _pieces(0, bytes, kept=True),
    NESTED.map(lambda r: (encode_frame(r), r)),
    _pieces(0, lambda frame: flipped(frame, 1)),
    _pieces(1, lambda frame: flipped(frame, 12)),
    _pieces(0, lambda frame: frame[:-3]),
    st.binary(min_size=1, max_size=20).map(lambda junk: (junk, None)),
)


@given(
    pieces=st.lists(PIECES, min_size=1, max_size=8),
    block_bytes=st.integers(1, 50),
    data=st.data(),
)
def test_damaged_files_lose_nothing_else(path, pieces, block_bytes, data):
    content = b"".join(piece for piece, _ in pieces)
    path.write_bytes(content)
    with in_blocks(block_bytes):
        alone = read(path)
    good = [record for _, record in pieces if record is not None]
    assert [record for record in alone.records if record in good] == good
    # Bytes in = bytes of records + bytes left out.
    lost = sum(end - begin for begin, end in alone.regions)
    assert len(frames_of(alone.records)) + lost == len(content)
    cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=6))
    for whole in (False, True):
        cut = read(path, cuts, whole=whole)
        try:
            check_meets(cut.spans, file_of(path, whole=whole))
        except DataLossError:
            assert not whole
        else:
            assert (cut.records, cut.skipped) == (alone.records, alone.skipped)


# Walks through parts of a file, by which Beam's workers find its frames.


def walked(file, edges, *, range_bytes, lost=-1):
    """Walks through a file in parts, of which one may be lost."""
    parts = list(itertools.pairwise(edges))
    if lost >= 0 and parts:
        del parts[lost % len(parts)]
    return [
        chain
        for begin, end in parts
        for chain in walk_frames(file, begin, end, step_bytes=range_bytes)
    ]


def records_in(file, ranges):
    sources = (SourceRange(file_index=0, begin_bytes=b, end_bytes=e) for b, e in ranges)
    requests = (ReadRequest(file, source) for source in sources)
    read = (source_of(TFRECORD).read(one).batches() for one in requests)
    return [record for batches in read for batch in batches for record in batch.records]


CUTS = st.lists(st.integers(0, 10**6), max_size=8)


@given(
    small_records(max_records=30),
    CUTS,
    st.integers(1, 200),
    st.integers(-1, 8),
    st.none() | st.integers(0, 10**6),
)
@example([], [0], 1, -1, None)
def test_walks_in_parts_give_every_record_once_or_find_damage(
    path, records, cuts, range_bytes, lost, where
):
    data, size = frames_of(records), len(frames_of(records))
    damaged = flipped(data, where % size) if data and where is not None else data
    path.write_bytes(damaged)
    file = InputFile(str(path), size)
    edges = sorted({0, size, *(at % (size + 1) for at in cuts)})
    chains = walked(file, edges, range_bytes=range_bytes, lost=lost)
    ranges = list(join_walks(file, chains, range_bytes=range_bytes))
    begins = list(itertools.accumulate((16 + len(r) for r in records), initial=0))
    if damaged != data:
        with pytest.raises(CorruptFrameError) as caught:
            records_in(file, ranges)
        begin = max(begin for begin in begins if begin <= where % size)
        assert caught.value.offset == begin
        return
    assert records_in(file, ranges) == records
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    longest = max(map(len, records), default=0) + 16
    for begin, end in ranges[:-1]:
        assert range_bytes <= end - begin < 2 * range_bytes + 2 * longest


BROKEN = [(encode_frame(b"x" * 40) + b"-") * 2000, b"last"]


@pytest.mark.parametrize(
    ("records", "parts", "range_bytes", "most_walk", "most_join"),
    [
        ([bytes(84)] * 1000, 3, 1000, 5, 2),
        # Records of frames: walks are fooled at first, and passed at once.
        ([frames_of([b"%d" % n * 9] * 100) for n in range(60)], 10, 1000, 40, 11),
        # Each of them looks like the beginning of a chain that breaks at once.
        (BROKEN, 2, 10, 20, 20),
    ],
    ids=["plain records", "frames in records", "broken frames in records"],
)
def test_walks_read_little(server, records, parts, range_bytes, most_walk, most_join):
    server.objects.put("bucket", "file", data := frames_of(records))
    file = InputFile("gs://bucket/file", len(data))

    def asked():
        return sum(operation == "media" for operation, *_ in server.log)

    edges = [len(data) * number // parts for number in range(parts + 1)]
    chains = walked(file, edges, range_bytes=range_bytes)
    assert asked() <= most_walk
    server.log.clear()
    ranges = list(join_walks(file, chains, range_bytes=range_bytes))
    assert asked() <= most_join
    assert len(ranges) >= min(len(records), len(data) // range_bytes) // 1.2
