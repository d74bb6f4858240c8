"""Columns of tables in any format: their types, numbers, nulls, and those to take."""

import dataclasses
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset import CorruptRecordError, InputError, JobChangedError
from gristmill.pipelines.convert import convert as run
from gristmill.transforms import PackOptions, RecordOptions
from tests.conversion.format_files import features_of, listed, put, put_in, read_rows
from tests.support.conversion import convert, job_of, read_output
from tests.support.told import told

pytestmark = pytest.mark.usefixtures("here")
BIG = 16_777_217  # The least whole number that a float32 does not hold.
TABLES = ["jsonl", "csv", "parquet"]


def content(name, rows):
    """Returns rows as a file of a format."""
    if name == "parquet":
        return pa.Table.from_pylist(rows)
    if name == "jsonl":
        return rows
    return [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    "columns", [("d",), ("d:int", "e:string"), ("a", "d"), ("a:decimal",)]
)
def test_columns_that_are_not_there(tmp_path, name, columns):
    path = put_in(tmp_path, content(name, [{"a": 1, "b": "x"}]))
    with pytest.raises(InputError, match=r"no (such )?column|unknown type"):
        listed(path, input_format=name, columns=columns)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("other", [2.5, 1e30])
def test_whole_numbers_beside_fractions(tmp_path, name, other):
    values = {"x": 3.0, "y": BIG * 1.0, "z": other}
    files = {n: content(name, [{"a": one, "b": n}]) for n, one in values.items()}
    paths = [put(tmp_path, files) / n for n in files]
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        listed(*paths, input_format=name)
    places = error.value.where.split("; ")
    assert [one.partition(",")[0] for one in places] == [*map(str, paths[1:])]
    assert error.value.got.startswith("16777217")
    assert "--columns '*,a:float'" in error.value.cure
    found = read_rows(*paths, input_format=name, columns=("*", "a:float"))
    assert (found[1]["a"], found[2]["b"]) == ([BIG - 1.0], [b"z"])


def fields(*texts):
    return [f'{{"a": {text}}}' for text in texts]


WHOLE = {
    "integers": ("jsonl", fields("16777217", "2.0", "9007199254740993")),
    "exponents": ("jsonl", fields("1.6777217e7", "2e0", "90071992547409930e-1")),
    "a list": ("jsonl", fields("[16777217, 2.0, 9007199254740993.000]")),
    "in objects": (
        "jsonl",
        fields('{"b": 16777217}', '{"b": 2.0}', '{"b": 9007199254740993}'),
    ),
    "cells": ("csv", ["a,b", "16777217.0,x", ",x", "2e0,x", "9007199254740993,x"]),
    # As pandas writes integers with gaps.
    "doubles": ("parquet", pa.table({"a": [BIG * 1.0, 2.0, None, 2.0**53]})),
    "lists of doubles": ("parquet", pa.table({"a": [[BIG * 1.0, 2.0], [], [2.0**53]]})),
    "in structs": (
        "parquet",
        pa.table({"a": [{"x": v} for v in (BIG * 1.0, 2.0, 2.0**53)]}),
    ),
}


@pytest.mark.parametrize("case", WHOLE)
def test_whole_numbers_stay_whole(tmp_path, case):
    name, rows = WHOLE[case]
    path = put_in(tmp_path, rows)
    column, feature = next(iter(features_of(path, input_format=name).items()))
    assert feature["dtype"] == "int64"
    rows = read_rows(path, input_format=name)
    found = [value for row in rows for value in row.get(column, [])]
    assert found == [BIG, 2, (1 << 53) + (name != "parquet")]


def test_doubles_that_are_no_integers(tmp_path):
    for other in (2.5, math.nan, math.inf, 1e19):
        path = put_in(tmp_path, pa.table({"a": [BIG * 1.0, other]}))
        with told(
            CorruptRecordError, "is not an integer", where=f"{path}, row group 0, row 1"
        ):
            read_rows(path, columns=("a:int",))


NULLS = [
    {"text": None if number % 5 == 0 else f"text {number}", "ids": [number, 7]}
    | ({} if number % 11 else {"ids": None})
    for number in range(1000)
]
TEXT = RecordOptions(record="column:text", nulls="skip")


@pytest.fixture(params=["jsonl", "parquet"])
def with_nulls(request, tmp_path):
    path = tmp_path / "in"
    if request.param == "jsonl":
        put_in(tmp_path, NULLS)
    else:
        pq.write_table(pa.Table.from_pylist(NULLS), path, row_group_size=300)
    return path


@pytest.mark.parametrize(
    "asked",
    [
        {"records": RecordOptions(record="column:text")},
        {"pack": PackOptions(length=64, tokenizer="builtins:map")},
    ],
    ids=["records", "rows"],
)
@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
def test_nulls_are_named_before_the_work(tmp_path, with_nulls, on_corrupt, asked):
    job = job_of(with_nulls, "out", on_corrupt=on_corrupt, **asked)
    with told(
        InputError,
        "'text' is null in some rows",
        "`nulls` skip",
        got="null in 200 of 1,000 rows",
    ):
        convert(job)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plan", [("num_shards", 7), ("shard_bytes", 3_000)])
def test_rows_with_nulls_are_left_out_and_counted(tmp_path, with_nulls, plan):
    job = job_of(with_nulls, "out", plan=plan, records=TEXT)
    assert "nulls     200 rows left out" in run([job]).text()
    texts = [row["text"].encode() for row in NULLS if row["text"] is not None]
    assert read_output("out") == texts
    with pytest.raises((InputError, JobChangedError)):
        convert(dataclasses.replace(job, records=RecordOptions(record="column:text")))


def test_tokens_without_nulls(tmp_path, with_nulls):
    pack, records = PackOptions(length=64, column="ids"), RecordOptions(nulls="skip")
    job = job_of(with_nulls, "rows", records=records, pack=pack)
    split = convert(job).manifest.splits["train"]
    nulls = sum(row["ids"] is None for row in NULLS)
    assert split.packed["documents"] == len(NULLS) - nulls
    assert split.source["null_rows"] == nulls
    with told(InputError, "no feature 'ids'", "`nulls` skip"):
        convert(job_of(with_nulls, "refused", pack=pack))


def test_a_null_that_no_sample_has(tmp_path):
    row = f'{{"text": "{"a" * 20_000}"}}'  # More than a sample of 256 KiB has.
    lines = [*[row] * 30, '{"text": null}', '{"text": "b"}']
    path = put_in(tmp_path, lines)
    late = RecordOptions(record="column:text")
    with told(CorruptRecordError, "no value in a row", "line 31,", "skip"):
        convert(job_of(path, "fails", records=late))
    convert(job_of(path, "out", records=TEXT))
    assert len(read_output("out")) == 31


@pytest.mark.parametrize("asked", [{"input_format": "csv"}, {"record": "line"}, {}])
def test_formats_without_nulls(tmp_path, asked):
    put_in(tmp_path, b'{"a": 1}\n' if "record" in asked else b"a,b\n1,2\n")
    records = RecordOptions(nulls="skip", **asked)
    with told(InputError, "`nulls` skip is for columns"):
        convert(job_of("in", "out", records=records))
