"""FrameHops: where all frames begin, whatever blocks they come in."""

from __future__ import annotations

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.formats.tfrecord.frame_hops import FrameHops
from gristmill.dataset.formats.tfrecord.frames import encode_frame
from tests.support.records import frames_of, small_records


class Reads:
    """A file in memory that counts how often it is opened, and what is read."""

    def __init__(self, data: bytes):
        self.data = data
        self.opened: list[int] = []
        self.read_bytes = 0
        self.open_files = 0

    def open_at(self, offset: int) -> io.BytesIO:
        reads = self

        class File(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                found = super().read(size)
                reads.read_bytes += len(found)
                return found

            def close(self) -> None:
                reads.open_files -= not self.closed
                super().close()

        self.opened.append(offset)
        self.open_files += 1
        return File(self.data[offset:])


def begins_of(records: list[bytes]) -> list[int]:
    sizes = (len(encode_frame(record)) for record in records)
    return list(itertools.accumulate(sizes, initial=0))


@given(
    records=small_records(),
    first=st.integers(0, 8),
    end=st.integers(0, 400),
    block_bytes=st.integers(1, 60),
    far_bytes=st.integers(0, 60),
)
def test_every_frame_before_the_end(
    records: list[bytes], first: int, end: int, block_bytes: int, far_bytes: int
) -> None:
    begins = begins_of(records)
    begin = begins[min(first, len(records))]
    file = Reads(frames_of(records))
    hops = FrameHops(file.open_at, begin, far_bytes=far_bytes, block_bytes=block_bytes)
    found = list(itertools.chain.from_iterable(hops.until(end)))
    assert found == [at for at in begins[:-1] if begin <= at < end]
    # The next one, or the end of the file.
    assert hops.offset == min(
        [at for at in begins if at >= max(begin, end)] or begins[-1:]
    )
    assert file.open_files == 0


@given(
    records=small_records().filter(bool),
    where=st.integers(0, 10**6),
    bit=st.integers(0, 7),
)
def test_it_stops_at_a_header_that_is_none(
    records: list[bytes], where: int, bit: int
) -> None:
    begins = begins_of(records)
    number = where % len(records)
    data = bytearray(frames_of(records))
    data[begins[number] + where % 12] ^= 1 << bit
    hops = FrameHops(Reads(bytes(data)).open_at, 0, block_bytes=30)
    found = list(itertools.chain.from_iterable(hops.until(len(data))))
    assert found == begins[:number]
    assert hops.offset == begins[number]


@pytest.mark.parametrize("cut", [1, 5, 15, 16, 20, 27])
def test_a_file_that_was_cut(cut: int) -> None:
    data = frames_of([b"0123456789", b"abcdefghij"])[:-cut]
    hops = FrameHops(Reads(data).open_at, 0)
    found = list(itertools.chain.from_iterable(hops.until(len(data))))
    # Without its whole header, a frame is none; with it, it reaches behind the file.
    whole = cut <= 14
    assert found == ([0, 26] if whole else [0])
    assert hops.offset == (52 if whole else 26)


def test_large_records_are_hopped_over() -> None:
    data = frames_of([bytes(3 << 20)] * 8)
    file = Reads(data)
    hops = FrameHops(file.open_at, 0, far_bytes=1 << 16, block_bytes=1 << 10)
    assert sum(map(len, hops.until(len(data)))) == 8
    assert len(file.opened) == 8
    assert file.read_bytes == 8 << 10


def test_records_that_are_not_far_are_read() -> None:
    data = frames_of([bytes(3 << 10)] * 8)
    file = Reads(data)
    hops = FrameHops(file.open_at, 0, far_bytes=1 << 12, block_bytes=1 << 10)
    assert sum(map(len, hops.until(len(data)))) == 8
    assert len(file.opened) == 1


def test_a_walk_that_is_left_closes_its_file() -> None:
    file = Reads(frames_of([b"a" * 100] * 100))
    hops = FrameHops(file.open_at, 0, block_bytes=50)
    for _ in hops.until(5000):
        break
    assert file.open_files == 0
