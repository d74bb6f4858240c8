"""Where rows of CSV begin and end, against Python's `csv`."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.transforms.sources.lines.csv_source import CsvSplitter

SPLITTER = CsvSplitter(b",")
CELL = st.text('ab",\n\ré 1', max_size=5)
ROWS = st.lists(st.lists(CELL, min_size=2, max_size=3), min_size=1, max_size=8)
STYLE = st.tuples(
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)


def written(rows, style) -> tuple[bytes, list[int]]:
    """CSV by Python's writer, and where each row ends."""
    newline, quoting = style
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=newline, quoting=quoting)
    ends = []
    for row in rows:
        writer.writerow(row)
        ends.append(len(file.getvalue().encode()))
    return file.getvalue().encode(), ends


@given(ROWS, STYLE, st.floats(0, 1))
def test_rows_end_where_they_were_written(rows, style, cut):
    data, ends = written(rows, style)
    assert SPLITTER.ends(data).tolist() == ends
    part = data[: int(cut * len(data))]
    known = [end for end in ends if end <= len(part)]
    assert SPLITTER.ends(part).tolist() == known


@given(ROWS, STYLE, st.lists(st.sampled_from([b'x"y', b'"', b'z"'])))
@example([["a", "b"]], ("\n", csv.QUOTE_ALL), [b'x"y'])
def test_quotes_within_bare_fields_stand_for_themselves(rows, style, bare):
    data, ends = written(rows, style)
    for text in bare:
        data += b"5" + text + b",b\n"
        ends = [*ends, len(data)]
    data += b'"a\n",b\n'
    assert SPLITTER.ends(data).tolist() == [*ends, len(data)]


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        (b'a,"b"c,d\ne,f\n', [9, 13]),  # Bytes behind a closing quote.
        (b'a,"b\n"c,d\ne,f\n', [10, 14]),
        (b'a,"b\n1,"c",2\n3,4\n', [13, 17]),  # No closing quote.
        (b'a,"b\n1,2\n3,4\n', []),  # The same, with no quote behind: no end.
    ],
)
def test_a_bad_row_ends_with_the_line_on_which_it_shows(data, ends):
    assert SPLITTER.ends(data).tolist() == ends
    assert SPLITTER.fields(data[: ends[0]] if ends else data) is None
