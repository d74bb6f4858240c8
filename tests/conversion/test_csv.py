"""CSV and TSV: rows and types against Python's csv, and all that is refused."""

from __future__ import annotations

import csv
import dataclasses
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptRecordError, InputError
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.lines.csv_source import CsvLines, CsvSplitter
from gristmill.transforms.sources.lines.line_schema import LineSchema
from gristmill.transforms.sources.lines.line_source import (
    BadLineError,
    LineReader,
    Lines,
    Made,
)
from gristmill.transforms.sources.source import first_records
from tests.conversion.line_files import example_of

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("f", pa.float64())])


def rows_of(data: bytes, schema=SCHEMA) -> list[dict]:
    ends = CsvSplitter(b",").ends(data)
    if max(ends, default=0) < len(data):  # As at the end of a file.
        ends = np.append(ends, len(data))
    lines = CsvLines(["n", "s", "f"], schema, CsvSplitter(b","))
    return lines.rows(Lines(data, ends))[0].to_pylist()


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
        (b"007,a,2\n", "types", "'007'"),
        (b"1.5,a,2\n", "types", "'1.5'"),
        (b" 1,a,2\n", "types", "' 1'"),
        (b"9223372036854775808,a,2\n", "types", "'9223372036854775808'"),
        (b"1,a,x\n", "types", "'x'"),
        (b"1,a,1_0\n", "types", "'1_0'"),
        (b"1,a,1e400\n", "types", "'1e400'"),
        (b"1,a,nan\n", "types", "'nan'"),
        (b"1,a,9007199254740993\n", "types", "'9007199254740993'"),
        (b"1,a,-9007199254740993.0\n", "types", "'-9007199254740993.0'"),
        (b'1,"a,2\n3,b,4\n', "never closed", ""),
        (b'1,"a""', "never closed", ""),
        (b'"', "never closed", ""),
        (b'1,"a""\n', "never closed", ""),
    ],
)
@pytest.mark.parametrize("before", [0, 5])
def test_a_bad_row_is_named(row, what, got, before):
    with pytest.raises(BadLineError, match=what) as error:
        rows_of(b'1,"a\n""b""",2.5\n' * before + row + b"3,c,4\n" * 3 * (got != ""))
    assert error.value.index == before
    assert got in error.value.got


class ShownRows(CsvLines):
    def records(self, lines: Lines) -> Made:
        batch, kept = self.rows(lines)
        rows = [repr(list(row.values())).encode() for row in batch.to_pylist()]
        return Made(rows, kept)


PIECES = [b'"', b",", b"\n", b"\r", b"x", b"", b"\xff", b"\0", b'""', b'",']


TEXT = st.text('ab",\n\ré 1', max_size=4)


@given(
    st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=8),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES)),
        max_size=2,
    ),
    st.sampled_from([3, 17, 1000]),
)
def test_rows_that_are_kept_of_damaged_files_are_rows_of_csv(
    rows, changes, block_bytes
):
    file = io.StringIO()
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = b"n,s,f\n" + file.getvalue().encode()
    for at, length, piece in changes:
        begin = 6 + int(at * (len(data) - 6))
        data = data[:begin] + piece + data[begin + length :]
    texts = pa.schema([(name, pa.string()) for name in SCHEMA.names])
    parser = ShownRows(texts.names, texts, CsvSplitter(b","))
    reader = LineReader(
        io.BytesIO(data), path="x", parser=parser, block_bytes=block_bytes
    )
    kept: dict[int, bytes] = {}
    aside: list[int] = []
    while True:
        try:
            for batch in reader.batches():
                kept.update(zip(batch.places, batch.records, strict=True))
            break
        except CorruptRecordError as error:
            aside.append(reader.offset)
            reader.skip(error.end)
    edges = sorted([*kept, *aside, len(data)])
    for begin, record in kept.items():
        end = edges[edges.index(begin) + 1]
        read = csv.reader(io.StringIO(data[begin:end].decode(), newline=""))
        assert [repr(row).encode() for row in read if row] == [record]
    if not aside:
        read = csv.reader(io.StringIO(data.decode(), newline=""))
        assert [repr(row).encode() for row in read if row][1:] == list(kept.values())


def test_values_of_cells():
    rows = rows_of(b'123456789.0,x"y,\n2e2,z",0.5\n,"c\n",\n')
    assert [row["n"] for row in rows] == [123456789, 200, None]
    assert [row["s"] for row in rows] == ['x"y', 'z"', "c\n"]
    assert [row["f"] for row in rows] == [None, 0.5, None]


def written(folder, *files: bytes) -> str:
    for number, data in enumerate(files):
        (folder / f"{number}.csv").write_bytes(data)
    return f"{folder}/*.csv"


def found_in(pattern: str, *, empty=False, **options):
    records = RecordOptions(input_format="csv", **options)
    return find_inputs([pattern], options=records, allow_empty_files=empty)


def examples_of(pattern: str, **options) -> list[dict]:
    found = first_records(found_in(pattern, **options))
    return [example_of(one.record) for one in found]


def test_types_are_those_of_all_sampled_files(tmp_path):
    pattern = written(
        tmp_path,
        b'\xef\xbb\xbfid,"zip code",x\r\n1,00501,\r\n,"a\nb",2\r\n',
        b"",
        b"id,zip code,x\n3,,2.5",
    )
    found = found_in(pattern, empty=True).spec.schema
    assert LineSchema.from_text(found) == LineSchema(
        pa.schema([("id", pa.int64()), ("zip code", pa.string()), ("x", pa.float64())]),
        ("id", "zip code", "x"),
    )
    assert examples_of(pattern, empty=True) == [
        {"id": 1, "zip code": "00501"},
        {"zip code": "a\nb", "x": 2.0},
        {"id": 3, "zip code": "", "x": 2.5},
    ]


def test_columns_and_their_types(tmp_path):
    pattern = written(tmp_path, b"a,b,c\n1,123456789,3\n1,2.5,4\n")
    with pytest.raises(InputError, match="'b' has whole numbers") as error:
        examples_of(pattern)
    assert error.value.got == "123456789 and 2.5"
    assert examples_of(pattern, columns=("c", "a:string"))[0] == {"a": "1", "c": 3}
    floats = examples_of(pattern, columns=("*", "a:float", "b:float"))
    assert floats[1] == {"a": 1.0, "b": 2.5, "c": 4}
    for columns in (("d",), ("d:int",), ("a:int[]",)):
        with pytest.raises(InputError, match="no such column"):
            examples_of(pattern, columns=columns)


@pytest.mark.parametrize(
    "other", [b"b,a\n1,2\n", b"a\n1\n", b"a,b,c\n1,2,3\n"], ids=str
)
def test_files_of_another_header(tmp_path, other):
    pattern = written(tmp_path, b"a,b\n1,2\n", other)
    with pytest.raises(InputError, match="header of an input file") as error:
        found_in(pattern)
    assert error.value.where == f"{tmp_path}/1.csv"
    # Found when it is read, where it is not part of the sample.
    spec = found_in(f"{tmp_path}/0.csv").spec
    other = found_in(f"{tmp_path}/1.csv")
    with pytest.raises(InputError, match="header of an input file"):
        [*first_records(dataclasses.replace(other, spec=spec))]


@pytest.mark.parametrize(
    "data", [b"a,a\n1,2\n", b",unnamed_0\n1,2\n", b"\xff,b\n1,2\n", b'"a"x,b\n1,2\n']
)
def test_files_without_a_header(tmp_path, data):
    with pytest.raises(InputError, match="does not name its columns"):
        found_in(written(tmp_path, data))
