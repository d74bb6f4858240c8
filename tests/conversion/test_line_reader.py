"""Reading lines: any blocks, any place, any end of a line."""

from __future__ import annotations

import gzip
import io
import itertools

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.streams import InflatedStream
from gristmill.transforms.sources.lines.line_source import LineReader, TextLines

LINE = st.text(st.characters(exclude_characters="\n\0", codec="utf-8"), max_size=12)
TEXT = st.tuples(
    st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n"])), max_size=12),
    st.sampled_from(["", "\ufeff"]),
    LINE,
)


def oracle(data: bytes) -> dict[int, bytes]:
    """Lines by their offsets, byte by byte."""
    lines: dict[int, bytes] = {}
    begin = 0
    if data == b"\xef\xbb\xbf":
        return lines
    while begin < len(data):
        stop = data.find(b"\n", begin) + 1 or len(data)
        line = data[begin:stop]
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        lines[begin] = line.removeprefix(b"\xef\xbb\xbf") if begin == 0 else line
        begin = stop
    return lines


def reader_of(data: bytes, offset: int = 0, *, path="x", block_bytes=7) -> LineReader:
    stream = io.BytesIO(data)
    stream.seek(offset)
    return LineReader(
        stream,
        path=path,
        parser=TextLines(),
        offset=offset,
        size_bytes=len(data),
        block_bytes=block_bytes,
    )


def read(reader: LineReader, *args, **options) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for batch in reader.batches(*args, **options):
        assert batch.crc32cs == [google_crc32c.value(r) for r in batch.records]
        found.update(zip(batch.places, batch.records, strict=True))
    return found


@given(text=TEXT, block_bytes=st.integers(1, 40), cuts=st.lists(st.floats(0, 1)))
def test_ranges_own_the_lines_that_begin_in_them(text, block_bytes, cuts):
    lines, mark, last = text
    data = (mark + "".join(map("".join, lines)) + last).encode()
    want = oracle(data)
    assert read(reader_of(data, block_bytes=block_bytes)) == want

    places = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    found: dict[int, bytes] = {}
    stop = 0
    for begin, end in itertools.pairwise(places):
        reader = reader_of(data, max(0, begin - 1), block_bytes=block_bytes)
        if begin == 0 or reader.resync(limit=end):
            start = reader.offset
            part = read(reader, end)
            assert part.keys().isdisjoint(found)
            if part:
                assert start == stop
                stop = reader.offset
            found |= part
    assert found == want
    assert stop == len(data) or not want


def test_empty_lines_are_records_of_text_and_bare_returns_are_content():
    assert list(read(reader_of(b"\n\r\n\ra\r\r\n\n")).values()) == [
        b"",
        b"",
        b"\ra\r",
        b"",
    ]


@pytest.mark.parametrize("begin", [0, 11])
def test_bad_text_is_named_by_line_and_byte_offset(tmp_path, begin):
    data = b"".join(b"line %04d\n" % n for n in range(50))
    data = data[:305] + b"\xff" + data[306:400] + b"\0" + data[401:]
    path = tmp_path / "in.txt"
    path.write_bytes(data)
    reader = reader_of(data, begin, path=str(path), block_bytes=1 << 20)
    assert begin == 0 or reader.resync()
    found: dict[int, bytes] = {}
    errors, sure = [], []
    while True:
        try:
            for batch in reader.batches():
                found.update(zip(batch.places, batch.records, strict=True))
            break
        except CorruptRecordError as error:
            errors.append(error)
            sure.append(reader.begins_at(error.end))
            reader.skip(error.end)
    assert [error.where for error in errors] == [
        f"{path}, line 31, byte offset 300",
        f"{path}, line 41, byte offset 400",
    ]
    assert sure == [True, True]
    assert "byte 0xff at byte 5 of the line" in errors[0].got
    assert "zero bytes" in errors[1].what
    good = {n * 10: b"line %04d" % n for n in range(50) if n not in (30, 40)}
    assert found == {at: line for at, line in good.items() if at >= 2 * begin - 2}


@pytest.mark.parametrize("block_bytes", [5, 1 << 20])
def test_a_stream_that_is_cut_short_gives_its_whole_lines(block_bytes):
    data = b"".join(b"line %04d\n" % n for n in range(2000))
    stored = gzip.compress(data, 0)[:9_000]
    stream = InflatedStream(io.BytesIO(stored), path="x", compression="gzip")
    reader = LineReader(stream, path="x", parser=TextLines(), block_bytes=block_bytes)
    found: dict[int, bytes] = {}

    def read_all():
        for batch in reader.batches():
            found.update(zip(batch.places, batch.records, strict=True))

    with pytest.raises(CorruptRecordError) as error:
        read_all()
    assert len(found) == 898
    assert error.value.reason == "compressed"
    assert error.value.where == "x, line 899, byte offset 8,980"
