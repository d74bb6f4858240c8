"""Reading lines: any blocks, any place, any end of a line."""

from __future__ import annotations

import io
import itertools

import google_crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.transforms.sources.lines.line_source import LineReader, TextLines

MARK = b"\xef\xbb\xbf"
LINE = st.text(st.characters(exclude_characters="\n\0", codec="utf-8"), max_size=12)
LINES = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n"])), max_size=12)


def oracle(data: bytes) -> dict[int, bytes]:
    """Lines by their offsets: bare returns are content, empty lines are records."""
    found = {}
    parts = data.split(b"\n")
    for at, line in enumerate(parts[: -1 if parts[-1] == b"" else None]):
        begin = sum(len(part) + 1 for part in parts[:at])
        whole = line.removesuffix(b"\r") if at + 1 < len(parts) else line
        found[begin] = whole if begin else whole.removeprefix(MARK)
    return {} if data == MARK else found


@given(
    lines=LINES,
    mark=st.sampled_from(["", MARK.decode()]),
    last=LINE,
    block_bytes=st.integers(1, 40),
    cuts=st.lists(st.floats(0, 1)),
)
@example(lines=[], mark="", last="\n\r\n\ra\r\r\n\n", block_bytes=7, cuts=[])
def test_ranges_own_the_lines_that_begin_in_them(lines, mark, last, block_bytes, cuts):
    data = (mark + "".join(map("".join, lines)) + last).encode()
    places = [0, *sorted(int(cut * len(data)) for cut in cuts), len(data)]
    found: dict[int, bytes] = {}
    stop = 0
    for begin, end in itertools.pairwise(places):
        stream, offset = io.BytesIO(data), max(0, begin - 1)
        stream.seek(offset)
        reader = LineReader(
            stream,
            path="x",
            parser=TextLines(),
            offset=offset,
            size_bytes=len(data),
            block_bytes=block_bytes,
        )
        if begin == 0 or reader.resync(limit=end):
            start, own = reader.offset, len(found)
            for batch in reader.batches(end):
                crc32cs = [google_crc32c.value(record) for record in batch.records]
                assert batch.crc32cs == crc32cs
                assert found.keys().isdisjoint(batch.places)
                found.update(zip(batch.places, batch.records, strict=True))
            if len(found) > own:
                assert start == stop
                stop = reader.offset
    assert found == oracle(data)
    assert stop == len(data) or not found
