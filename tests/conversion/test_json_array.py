"""Arrays of JSON as lines of their elements, against Python's `json`."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptStreamError
from gristmill.transforms.sources.lines.json_array import ArrayLines

VALUE = st.recursive(
    st.none() | st.integers() | st.text('ab"\\,[]{}\n é', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('"\\,]', max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)
PIECES = [*b"[]{},\\ \n", *(b'"', b"1", b"\xef\xbb\xbf")]
CHANGE = st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES))


class Slow(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def read(self, size=-1, /):
        return super().read(min(size, 3) if size > 0 else size)


def lines_of(data: bytes, size: int) -> bytes:
    stream, found = ArrayLines(Slow(data), path="x"), b""
    while piece := stream.read(size):
        found += piece
    return found


@given(
    st.lists(VALUE, max_size=5),
    st.sampled_from([None, 1]),
    st.lists(CHANGE, max_size=2),
    st.sampled_from([1, 2, 99]),
)
def test_lines_are_the_elements_or_are_no_json(elements, indent, changes, size):
    data = json.dumps(elements, indent=indent, ensure_ascii=False).encode()
    for at, length, piece in changes:
        piece = bytes([piece]) if isinstance(piece, int) else piece
        begin = int(at * len(data))
        data = data[:begin] + piece + data[begin + length :]
    try:
        wanted = json.loads(data.decode("utf-8-sig"))
        valid = isinstance(wanted, list)
    except ValueError:
        valid = False
    try:
        lines = lines_of(data, size)
    except CorruptStreamError:
        assert not valid
        return
    assert len(lines) == len(data)
    try:
        texts = lines.decode("utf-8-sig").split("\n")
        found = [json.loads(text) for text in texts if text.strip(" \t\r")]
    except ValueError:
        assert not valid
        return
    if valid:
        assert found == wanted
    else:  # A value without an array around it, which is no object on a line.
        assert b"[" not in data.replace(b" ", b"")[:1]


@pytest.mark.parametrize("data", [b"[", b'[{"a": 1}', b'[{"a": "]'])
def test_an_array_without_its_end_is_damaged(data):
    with pytest.raises(CorruptStreamError, match="no end"):
        lines_of(data, 99)


def test_the_rest_of_an_array_begins_with_an_element():
    stream = ArrayLines(io.BytesIO(b' {"a": 1},\n{}]\n'), path="x", inside=True)
    assert stream.read(99) == b' {"a": 1}\n {}  '
