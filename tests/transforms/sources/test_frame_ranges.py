"""Cutting at frames: ranges cover the file, and large records are hopped over."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.tfrecord.frames import encode_frame
from gristmill.transforms.sources.frame_ranges import frame_ranges
from tests.support.records import frames_of, small_records


@given(records=small_records(), range_bytes=st.integers(1, 200))
def test_ranges_begin_at_frames_and_cover_the_file(
    records: list[bytes], range_bytes: int
) -> None:
    data = frames_of(records)
    sizes = (len(encode_frame(record)) for record in records)
    begins = list(itertools.accumulate(sizes, initial=0))
    size = begins[-1]
    ranges = list(frame_ranges(lambda a, b: data[a:b], size, range_bytes=range_bytes))
    # The oracle: cut at the first frame that leaves a range long enough.
    cuts = [0]
    for offset in begins[:-1]:
        if offset - cuts[-1] >= range_bytes and size - cuts[-1] > range_bytes:
            cuts.append(offset)
    assert ranges == list(itertools.pairwise([*cuts, size]))


def test_ranges_of_large_records_are_hopped_over() -> None:
    data = frames_of([bytes(3 << 20)] * 8)
    read_bytes = 0

    def read(begin: int, end: int) -> bytes:
        nonlocal read_bytes
        read_bytes += end - begin
        return data[begin:end]

    ranges = list(
        frame_ranges(read, len(data), range_bytes=1 << 20, block_bytes=1 << 10)
    )
    assert len(ranges) == 8
    assert read_bytes <= 8 << 10


def test_range_bytes_decides_the_number_of_ranges() -> None:
    data = frames_of([bytes(84)] * 100)  # 100 bytes a frame.
    for range_bytes, count in ((100, 100), (1000, 10), (5000, 2), (10_000, 1)):
        ranges = frame_ranges(
            lambda a, b: data[a:b], len(data), range_bytes=range_bytes
        )
        assert len(list(ranges)) == count
