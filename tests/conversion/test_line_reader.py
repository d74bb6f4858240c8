"""Reading lines: any blocks, any place, any end of a line."""

from __future__ import annotations

import io
import itertools

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

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
