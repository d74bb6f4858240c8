"""How rows of Parquet become records, by what the footers and first rows tell."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import CorruptRecordError, InputError
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.metadata.features import parse_features
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.source import first_records, source_of
from tests.support.parquet_files import write_parquet


def found(folder, *tables, **options):
    for number, table in enumerate(tables):
        write_parquet(folder / f"{number}.parquet", table)
    return find_inputs([str(folder)], options=RecordOptions(**options)).spec


def features(spec):
    return parse_features(source_of(spec).features())


def test_a_column_without_values_in_one_file_has_the_type_of_the_others(tmp_path):
    empty = pa.table({"a": [1], "b": pa.nulls(1)})
    full = pa.table({"a": [1], "b": ["x"]})
    for name, tables in (("first", (empty, full)), ("last", (full, empty))):
        spec = found(tmp_path / name, *tables)
        assert features(spec)["b"].kind == "bytes"
        assert features(spec)["b"].optional


def test_a_file_without_values_has_any_columns(tmp_path):
    """As pandas writes a table without rows."""
    empty = pa.table({"a": pa.nulls(0), "b": pa.nulls(0)})
    full = pa.table({"a": [1], "b": ["x"]})
    assert list(features(found(tmp_path / "a", empty, full))) == ["a", "b"]
    with pytest.raises(InputError, match="no column of the input files"):
        found(tmp_path / "b", empty)


def test_values_that_may_be_missing_in_one_file_may_be_missing(tmp_path):
    always = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    tables = [pa.table({"a": [1]}, schema=always), pa.table({"a": [1]})]
    for name, order in (("first", tables), ("last", tables[::-1])):
        assert features(found(tmp_path / name, *order))["a"].optional


BIG = 16_777_217  # The least whole number that a float32 does not hold.


def examples_of(folder, *tables, **options):
    for number, table in enumerate(tables):
        write_parquet(folder / f"{number}.parquet", table)
    files = find_inputs([str(folder)], options=RecordOptions(**options))
    return [decode_example(found.record) for found in first_records(files)]


def test_whole_numbers_of_doubles_stay_whole(tmp_path):
    # As pandas writes integers with gaps; and lists, and fields.
    ids = pa.array([BIG, None, 2.0], pa.float64())
    table = pa.table(
        {
            "id": ids,
            "l": pa.array([[BIG + 2.0], [], [1.0]]),
            "d": pa.array([{"x": -BIG * 1.0}, None, {"x": 0.0}]),
            "f": pa.array([0.5, 3.0, 1e30]),
        }
    )
    found = examples_of(tmp_path, table, table.slice(1))
    assert found[0] == {"id": [BIG], "l": [BIG + 2], "d.x": [-BIG], "f": [0.5]}
    assert found[3] == {"l": [], "f": [3.0]}
    specs = features(find_inputs([str(tmp_path)]).spec)
    assert {name: spec.dtype for name, spec in specs.items()} == {
        "id": "int64",
        "l": "int64",
        "d.x": "int64",
        "f": "float32",
    }


@pytest.mark.parametrize("other", [2.5, math.nan, math.inf, 1e19])
def test_whole_numbers_of_doubles_beside_others(tmp_path, other):
    table = pa.table({"a": [BIG * 1.0, other], "b": ["x", "y"]})
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        examples_of(tmp_path, table)
    assert "--columns '*,a:float'" in error.value.cure
    found = examples_of(tmp_path, table, columns=("*", "a:float"))
    assert (found[0]["a"], found[1]["b"]) == ([BIG - 1.0], [b"y"])
    with pytest.raises(CorruptRecordError, match="is not an integer") as error:
        examples_of(tmp_path, table, columns=("a:int",))
    assert error.value.where.endswith("0.parquet, row group 0, row 1")
    with pytest.raises(InputError, match="has no floats"):
        examples_of(tmp_path, table, columns=("a", "b:int"))
