"""Walks through parts of files: joined, they cut at frames, whatever records hold."""

from __future__ import annotations

import itertools
import pathlib
import tempfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptFrameError
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import TFRECORD
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import source_of
from gristmill.transforms.sources.tfrecord import (
    join_walks,
    walk_frames,
)
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, small_records


def begins_of(records: list[bytes]) -> list[int]:
    sizes = (len(encode_frame(record)) for record in records)
    return list(itertools.accumulate(sizes, initial=0))


def ranges_of(
    path: str, cuts: list[int], *, range_bytes: int, lost: int = -1
) -> list[tuple[int, int]]:
    """Walks through a file in parts, of which one may be lost, and joins them."""
    size = pathlib.Path(path).stat().st_size
    file = InputFile(path, size)
    parts = list(
        itertools.pairwise(sorted({0, size, *(at % (size + 1) for at in cuts)}))
    )
    if lost >= 0 and parts:
        del parts[lost % len(parts)]
    chains = [
        chain
        for begin, end in parts
        for chain in walk_frames(file, begin, end, step_bytes=range_bytes)
    ]
    return list(join_walks(file, chains, range_bytes=range_bytes))


def read_ranges(path: str, ranges: list[tuple[int, int]]) -> list[tuple[int, bytes]]:
    size = pathlib.Path(path).stat().st_size
    found = []
    for begin, end in ranges:
        source = SourceRange(file_index=0, begin_bytes=begin, end_bytes=end)
        reader = source_of(TFRECORD).read(InputFile(path, size), source)
        for batch in reader.batches():
            found += zip(batch.places, batch.records, strict=True)
        assert not size or reader.span.stop_bytes == end
    return found


@given(
    records=small_records(max_records=30),
    cuts=st.lists(st.integers(0, 10**6), max_size=8),
    range_bytes=st.integers(1, 200),
    lost=st.integers(-1, 8),
)
@example(records=[], cuts=[0], range_bytes=1, lost=-1)
def test_every_record_once_wherever_parts_are_cut(
    records: list[bytes], cuts: list[int], range_bytes: int, lost: int
) -> None:
    begins = begins_of(records)
    with tempfile.NamedTemporaryFile() as file:
        file.write(frames_of(records))
        file.flush()
        ranges = ranges_of(file.name, cuts, range_bytes=range_bytes, lost=lost)
        found = read_ranges(file.name, ranges)
    # The oracle: the frames as they were put down.
    assert found == list(zip(begins, records, strict=False))
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    longest = max(map(len, records), default=0) + 16
    for begin, end in ranges[:-1]:
        assert range_bytes <= end - begin < 2 * range_bytes + 2 * longest


@given(
    records=small_records(max_records=12).filter(bool),
    cuts=st.lists(st.integers(0, 10**6), max_size=6),
    range_bytes=st.integers(1, 120),
    where=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_damage_is_where_it_is_however_parts_are_cut(
    records: list[bytes], cuts: list[int], range_bytes: int, where: int, bit: int
) -> None:
    data = bytearray(frames_of(records))
    at = where % len(data)
    data[at] ^= 1 << bit
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        ranges = ranges_of(file.name, cuts, range_bytes=range_bytes)
        with pytest.raises(CorruptFrameError) as caught:
            read_ranges(file.name, ranges)
    damaged = max(begin for begin in begins_of(records) if begin <= at)
    assert caught.value.offset == damaged


@given(cut=st.integers(1, 200), cuts=st.lists(st.integers(0, 10**6), max_size=6))
def test_a_file_that_was_cut_is_told(cut: int, cuts: list[int]) -> None:
    records = [b"%04d" % number * 5 for number in range(20)]
    data = frames_of(records)[:-cut]
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        ranges = ranges_of(file.name, cuts, range_bytes=100)
        if len(data) % 36 == 0:
            assert len(read_ranges(file.name, ranges)) == len(data) // 36
            return
        with pytest.raises(CorruptFrameError, match="ends in the middle"):
            read_ranges(file.name, ranges)


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


def test_joining_reads_nothing_of_plain_records(
    server: GcsServer,
) -> None:
    file = put(server, frames_of([bytes(84)] * 1000))
    edges = [0, 33_333, 66_666, 100_000]
    chains = [
        chain
        for begin, end in itertools.pairwise(edges)
        for chain in walk_frames(file, begin, end, step_bytes=1000)
    ]
    assert len(chains) == 3
    server.log.clear()
    ranges = list(join_walks(file, chains, range_bytes=1000))
    # Only what is behind the last place is looked at again.
    assert all(offset >= 98_000 for offset in offsets(server))
    assert len(ranges) == pytest.approx(100, abs=5)


def test_frames_within_records_are_passed_at_once(
    server: GcsServer,
) -> None:
    records = [frames_of([b"%d" % number * 9] * 100) for number in range(60)]
    file = put(server, frames_of(records))
    size = file.size_bytes
    edges = [size * number // 10 for number in range(11)]
    chains = [
        chain
        for begin, end in itertools.pairwise(edges)
        for chain in walk_frames(file, begin, end, step_bytes=1000)
    ]
    begins = begins_of(records)
    fooled = [chain for chain in chains if chain[0] not in begins]
    assert len(fooled) >= 5
    server.log.clear()
    ranges = list(join_walks(file, chains, range_bytes=1000))
    # Behind the record in which a part begins, its walk is on the right way.
    assert len(offsets(server)) <= 11
    assert ranges == list(itertools.pairwise(begins))


def test_a_record_full_of_broken_frames_does_not_hold_up_a_walk(
    server: GcsServer,
) -> None:
    """Each of them looks like the beginning of a chain that breaks at once."""
    records = [(encode_frame(b"x" * 40) + b"-") * 2000, b"last"]
    file = put(server, frames_of(records))
    size = file.size_bytes
    chains = walk_frames(file, size // 2, size, step_bytes=10)
    assert len(offsets(server)) <= 20
    ranges = list(join_walks(file, chains, range_bytes=10))
    assert ranges == list(itertools.pairwise(begins_of(records)))
