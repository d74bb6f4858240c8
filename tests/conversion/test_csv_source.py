"""The header and the types of CSV, found in its first rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.lines.line_schema import LineSchema
from gristmill.transforms.sources.source import source_of
from tests.support.line_files import example_of

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
