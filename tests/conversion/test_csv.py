"""CSV and TSV: rows and types against Python's csv, and all that is refused."""

from __future__ import annotations

import csv
import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptRecordError, InputError
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.lines.csv_source import (
    CsvLines,
    CsvSplitter,
    column_type,
)
from gristmill.transforms.sources.lines.line_schema import LineSchema
from gristmill.transforms.sources.lines.line_source import (
    BadLineError,
    LineReader,
    Lines,
    Made,
)
from gristmill.transforms.sources.source import source_of
from tests.support.line_files import example_of

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("f", pa.float64())])


def rows_of(schema=SCHEMA) -> CsvLines:
    return CsvLines(["n", "s", "f"], schema, CsvSplitter(b","))


def lines_of(data: bytes) -> Lines:
    ends = CsvSplitter(b",").ends(data)
    if max(ends, default=0) < len(data):  # As at the end of a file.
        ends = np.append(ends, len(data))
    return Lines(data, ends)


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
        (b"+7,a,2\n", "types", "'+7'"),
        (b"1.5,a,2\n", "types", "'1.5'"),
        (b" 1,a,2\n", "types", "' 1'"),
        (b"9223372036854775808,a,2\n", "types", "'9223372036854775808'"),
        (b"1,a,x\n", "types", "'x'"),
        (b"1,a,1_0\n", "types", "'1_0'"),
        (b"1,a,1e400\n", "types", "'1e400'"),
        (b"1,a,-inf\n", "types", "'-inf'"),
        (b"1,a,nan\n", "types", "'nan'"),
    ],
)
@pytest.mark.parametrize("before", [0, 5])
def test_a_bad_row_is_named(row, what, got, before):
    data = b'1,"a\n""b""",2.5\n' * before + row
    ends = [*range(16, 16 * before + 1, 16), len(data)]
    lines = Lines(data + b"3,c,4\n" * 3, np.array([*ends, len(data) + 6]))
    lines = Lines(lines.data[: int(lines.ends[-1])], lines.ends)
    with pytest.raises(BadLineError, match=what) as error:
        rows_of().rows(lines)
    assert error.value.index == before
    assert got in error.value.got


@pytest.mark.parametrize(
    "row",
    [b'1,"a,2\n3,b,4\n', b'1,"a""', b'"', b'1,"a""\n', b'1,a"b,2\n1,"a,2'],
)
def test_a_quote_that_is_never_closed_is_named(row):
    whole = b'1,"a\n",2\n' * 3
    with pytest.raises(csv.Error, match="unexpected end of data"):
        [*csv.reader(io.StringIO(row.decode()), strict=True)]
    with pytest.raises(BadLineError, match="never closed") as error:
        rows_of().rows(lines_of(whole + row))
    assert error.value.index >= 3


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


def test_whole_numbers_of_a_column_are_kept_or_refused():
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        column_type("a", ["123456789", "2.5"])
    assert error.value.got == "123456789 and 2.5"
    batch, _ = rows_of().rows(lines_of(b"123456789.0,a,\n2e2,b,0.5\n,c,\n"))
    assert batch.column("n").to_pylist() == [123456789, 200, None]
    for cell in (b"9007199254740993", b"-9007199254740993.0"):
        with pytest.raises(BadLineError, match="types") as bad:
            rows_of().rows(lines_of(b"1,a,2\n1,a," + cell + b"\n"))
        assert bad.value.index == 1
        assert "--columns '*,f:int'" in str(bad.value.cure)
    rounded = pa.schema([("f", pa.float32())])
    batch, _ = rows_of(schema=rounded).rows(lines_of(b"1,a,9007199254740993\n"))
    assert len(batch) == 1


def test_quotes_within_bare_fields_stand_for_themselves():
    data = b'1,x"y,2\n3,z",4\n5,"a\n",6\n'
    batch, _ = rows_of().rows(lines_of(data))
    assert batch.column("s").to_pylist() == ['x"y', 'z"', "a\n"]


WHOLE = SourceRange(file_index=0, begin_bytes=0, end_bytes=-1)


def written(folder, *files: bytes) -> str:
    for number, data in enumerate(files):
        (folder / f"{number}.csv").write_bytes(data)
    return f"{folder}/*.csv"


def schema_of(pattern: str, *, input_format="csv", **options) -> LineSchema:
    records = RecordOptions(input_format=input_format, **options)
    return LineSchema.from_text(find_inputs([pattern], options=records).spec.schema)


def examples_of(pattern: str, *, input_format="csv", **options) -> list[dict]:
    records = RecordOptions(input_format=input_format, **options)
    files = find_inputs([pattern], options=records)
    source = source_of(files.spec)
    return [
        example_of(record)
        for file in files
        for batch in source.read(file, WHOLE).batches()
        for record in batch.records
    ]


def test_types_are_those_of_all_sampled_files(tmp_path):
    pattern = written(
        tmp_path,
        b'\xef\xbb\xbfid,"zip code",x\r\n1,00501,\r\n,"a\nb",2\r\n',
        b"id,zip code,x\n3,,2.5",
    )
    assert schema_of(pattern) == LineSchema(
        pa.schema([("id", pa.int64()), ("zip code", pa.string()), ("x", pa.float64())]),
        ("id", "zip code", "x"),
    )
    assert examples_of(pattern) == [
        {"id": 1, "zip code": "00501"},
        {"zip code": "a\nb", "x": 2.0},
        {"id": 3, "zip code": "", "x": 2.5},
    ]


def test_columns_and_their_types(tmp_path):
    pattern = written(tmp_path, b"a,b,c\n1,2,3\n")
    assert examples_of(pattern, columns=("c", "a:string")) == [{"a": "1", "c": 3}]
    assert examples_of(pattern, columns=("*", "a:float")) == [
        {"a": 1.0, "b": 2, "c": 3}
    ]
    for columns in (("d",), ("d:int",), ("a:int[]",)):
        with pytest.raises(InputError, match="no such column"):
            examples_of(pattern, columns=columns)


@pytest.mark.parametrize(
    "other", [b"b,a\n1,2\n", b"a\n1\n", b"a,b,c\n1,2,3\n"], ids=str
)
def test_files_of_another_header(tmp_path, other):
    pattern = written(tmp_path, b"a,b\n1,2\n", other)
    with pytest.raises(InputError, match="header of an input file") as error:
        schema_of(pattern)
    assert error.value.where == f"{tmp_path}/1.csv"
    # Found when it is read, where it is not part of the sample.
    options = RecordOptions(input_format="csv")
    spec = find_inputs([f"{tmp_path}/0.csv"], options=options).spec
    file = find_inputs([f"{tmp_path}/1.csv"], options=options)[0]
    with pytest.raises(InputError, match="header of an input file"):
        list(source_of(spec).read(file._replace(spec=spec), WHOLE).batches())


@pytest.mark.parametrize(
    "data", [b"a,a\n1,2\n", b",unnamed_0\n1,2\n", b"\xff,b\n1,2\n", b'"a"x,b\n1,2\n']
)
def test_files_without_a_header(tmp_path, data):
    with pytest.raises(InputError, match="does not name its columns"):
        schema_of(written(tmp_path, data))


def test_files_of_zero_bytes_have_no_header(tmp_path):
    pattern = written(tmp_path, b"", b"a,b\n1,2\n", b"")
    options = RecordOptions(input_format="csv")
    found = find_inputs([pattern], options=options, allow_empty_files=True)
    source = source_of(found.spec)
    counts = [
        sum(len(batch.records) for batch in source.read(file, WHOLE).batches())
        for file in found
    ]
    assert counts == [0, 1, 0]
