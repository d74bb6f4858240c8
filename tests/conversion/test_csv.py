"""CSV and TSV: rows and types against Python's csv, and all that is refused."""

import csv
import dataclasses
import gzip
import io
import itertools

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptRecordError, InputError
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.lines.csv_source import CsvLines, CsvSplitter
from gristmill.transforms.sources.lines.line_source import (
    BadLineError,
    LineReader,
    Lines,
    Made,
    TextLines,
)
from gristmill.transforms.sources.source import first_records, source_of
from tests.conversion.format_files import listed, read_cut
from tests.support.examples import parsed

MARK = b"\xef\xbb\xbf"
LINE = st.text(st.characters(exclude_characters="\n\0", codec="utf-8"), max_size=12)
LINES = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n"])), max_size=12)


def lines_by_hand(data):
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
    found = {}
    stop = 0
    for begin, end in itertools.pairwise(places):
        stream, offset = io.BytesIO(data), max(0, begin - 1)
        stream.seek(offset)
        options = {"size_bytes": len(data), "block_bytes": block_bytes}
        reader = LineReader(
            stream, path="x", parser=TextLines(), offset=offset, **options
        )
        if begin == 0 or reader.resync(limit=end):
            start, own = reader.offset, len(found)
            for batch in reader.batches(end):
                assert batch.crc32cs == [*map(google_crc32c.value, batch.records)]
                assert found.keys().isdisjoint(batch.places)
                found.update(zip(batch.places, batch.records, strict=True))
            if len(found) > own:
                assert start == stop
                stop = reader.offset
    assert found == lines_by_hand(data)
    assert stop == len(data) or not found


SCHEMA = pa.schema({"n": pa.int64(), "s": pa.string(), "f": pa.float64()})


def rows_of(data):
    ends = CsvSplitter(b",").ends(data)
    if max(ends, default=0) < len(data):  # As at the end of a file.
        ends = np.append(ends, len(data))
    lines = CsvLines(["n", "s", "f"], SCHEMA, CsvSplitter(b","))
    return lines.rows(Lines(data, ends))[0].to_pylist()


def test_values_of_cells():
    assert rows_of(b'123456789.0,x"y,\n2e2,z",0.5\n,"c\n",\n') == [
        {"n": 123456789, "s": 'x"y', "f": None},
        {"n": 200, "s": 'z"', "f": 0.5},
        {"n": None, "s": "c\n", "f": None},
    ]


@pytest.mark.parametrize(
    ("row", "what", "got"),
    [
        (b"1,a\n", "number of fields", "2"),
        (b"1,a,2,\n", "number of fields", "4"),
        (b'1,"a"b,2\n', "quotes", "after the quote"),
        (b'1,"a,2\n"5,6"', "quotes", "after the quote"),
        (b"1,\xff,2\n", "UTF-8", "0xff"),
        (b"1,a\0,2\n", "zero bytes", "1 of them"),
        (b"1,a\rb,2\n", "carriage return", "alone"),
        *(
            (b"%s,a,2\n" % value, "types", f"'{value.decode()}'")
            for value in (b"007", b"1.5", b" 1", b"9223372036854775808")
        ),
        *(
            (b"1,a,%s\n" % value, "types", f"'{value.decode()}'")
            for value in (b"x", b"1_0", b"1e400", b"nan", b"-9007199254740993.0")
        ),
        *(
            (row, "never closed", "")
            for row in (b'1,"a,2\n3,b,4\n', b'1,"a""', b'"', b'1,"a""\n')
        ),
    ],
)
@pytest.mark.parametrize("before", [0, 5])
def test_a_bad_row_is_named(row, what, got, before):
    with pytest.raises(BadLineError, match=what) as error:
        rows_of(b'1,"a\n""b""",2.5\n' * before + row + b"3,c,4\n" * 3 * (got != ""))
    assert error.value.index == before
    assert got in error.value.got


class ShownRows(CsvLines):
    def records(self, lines):
        batch, kept = self.rows(lines)
        rows = [repr(list(row.values())).encode() for row in batch.to_pylist()]
        return Made(rows, kept)


PIECES = [b'"', b",", b"\n", b"\r", b"x", b"", b"\xff", b"\0", b'""', b'",']
TEXT = st.text('ab",\n\ré 1', max_size=4)
CHANGE = st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES))


@given(
    st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=8),
    st.lists(CHANGE, max_size=2),
    st.sampled_from([3, 17, 1000]),
)
def test_rows_that_are_kept_of_damaged_files_are_rows_of_csv(rows, changes, most):
    file = io.StringIO()
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = b"n,s,f\n" + file.getvalue().encode()
    for at, length, piece in changes:
        begin = 6 + int(at * (len(data) - 6))
        data = data[:begin] + piece + data[begin + length :]
    texts = pa.schema([(name, pa.string()) for name in SCHEMA.names])
    parser = ShownRows(texts.names, texts, CsvSplitter(b","))
    reader = LineReader(io.BytesIO(data), path="x", parser=parser, block_bytes=most)
    kept = {}
    aside = []
    while True:
        try:
            for batch in reader.batches():
                kept.update(zip(batch.places, batch.records, strict=True))
            break
        except CorruptRecordError as error:
            aside.append(reader.offset)
            reader.skip(error.end)

    def by_csv(part):
        read = csv.reader(io.StringIO(part.decode(), newline=""))
        return [repr(row).encode() for row in read if row]

    edges = sorted([*kept, *aside, len(data)])
    for begin, record in kept.items():
        assert by_csv(data[begin : edges[edges.index(begin) + 1]]) == [record]
    if not aside:
        assert by_csv(data)[1:] == [*kept.values()]


def written(folder, *files):
    for number, data in enumerate(files):
        (folder / f"{number}.csv").write_bytes(data)
    return f"{folder}/*.csv"


def found_in(pattern):
    options = RecordOptions(input_format="csv")
    return find_inputs([pattern], options=options, allow_empty_files=True)


def test_types_are_those_of_all_files(tmp_path):
    head = MARK + b'id,"zip code",x\r\n1,00501,\r\n,"a\nb",2\r\n'
    files = found_in(written(tmp_path, head, b"", b"id,zip code,x\n3,,2.5"))
    features = source_of(files.spec).features()
    types = {name: spec["dtype"] for name, spec in features.items()}
    assert types == {"id": "int64", "zip code": "bytes", "x": "float32"}
    assert [parsed(one.record) for one in first_records(files)] == [
        {"id": [1], "zip code": [b"00501"]},
        {"zip code": [b"a\nb"], "x": [2.0]},
        {"id": [3], "zip code": [b""], "x": [2.5]},
    ]


@pytest.mark.parametrize("other", [b"b,a\n1,2\n", b"a\n1\n", b"a,b,c\n1,2,3\n"])
def test_files_of_another_header(tmp_path, other):
    pattern = written(tmp_path, b"a,b\n1,2\n", other)
    with pytest.raises(InputError, match="header of an input file") as error:
        found_in(pattern)
    assert error.value.where == f"{tmp_path}/1.csv"
    # Found when it is read, where it is not part of the sample.
    first, second = (found_in(f"{tmp_path}/{name}.csv") for name in "01")
    with pytest.raises(InputError, match="header of an input file"):
        [*first_records(dataclasses.replace(second, spec=first.spec))]


@pytest.mark.parametrize(
    "data", [b"a,a\n1,2\n", b",unnamed_0\n1,2\n", b"\xff,b\n1,2\n", b'"a"x,b\n1,2\n']
)
def test_files_without_a_header(tmp_path, data):
    with pytest.raises(InputError, match="does not name its columns"):
        found_in(written(tmp_path, data))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize(
    "end", [b'X"abc\n1Xd\n2Xe\n', b'3X"the last cell,\ncut'], ids=["unclosed", "cut"]
)
@pytest.mark.parametrize(("name", "tab"), [("csv", b","), ("tsv", b"\t")])
def test_a_quote_that_is_never_closed(tmp_path, name, tab, end, compress):
    # What is behind it is in the field: it is no row, nor left out in silence.
    good = b"n%st\n" % tab + b"".join(b"%d%sx\n" % (n, tab) for n in range(39))
    path, broken = tmp_path / "in", good + end.replace(b"X", tab)
    path.write_bytes(compress(broken))
    with pytest.raises(CorruptRecordError, match="never closed") as error:
        read_cut(listed(path, input_format=name))
    assert error.value.where == f"{path}, line 41, byte offset {len(good)}"
    found = read_cut(listed(path, input_format=name), [20, 30], keep=True)
    assert found.regions == [(len(good), len(broken))]
    assert [parsed(record)["n"] for record in found.records] == [[n] for n in range(39)]
