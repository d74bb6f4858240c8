"""The schema of JSON lines, found in their first lines."""

from __future__ import annotations

import gzip
import json
import pathlib

import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import CorruptRecordError, InputError
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.lines.line_schema import LineSchema, wanted_columns
from gristmill.transforms.sources.source import source_of
from tests.support.line_files import example_of

WHOLE = SourceRange(file_index=0, begin_bytes=0, end_bytes=-1)


def written(folder: pathlib.Path, *files: list, compress=bytes) -> str:
    for number, lines in enumerate(files):
        texts = (
            one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
            for one in lines
        )
        data = "".join(text + "\n" for text in texts).encode()
        (folder / f"{number}.jsonl").write_bytes(compress(data))
    return f"{folder}/*.jsonl"


def spec_of(pattern: str, **options) -> SourceSpec:
    records = RecordOptions(input_format="jsonl", **options)
    return find_inputs([pattern], options=records).spec


def fields_of(pattern: str, **options) -> dict[str, pa.DataType]:
    fields = LineSchema.from_text(spec_of(pattern, **options).schema).fields
    return {field.name: field.type for field in fields}


def records_of(pattern: str, **options) -> list[bytes]:
    records = RecordOptions(input_format="jsonl", **options)
    files = find_inputs([pattern], options=records)
    source = source_of(files.spec)
    return [
        record
        for file in files
        for batch in source.read(file, WHOLE).batches()
        for record in batch.records
    ]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_types_are_those_of_all_sampled_files(tmp_path, compress):
    pattern = written(
        tmp_path,
        [{"a": 1, "s": None}, "", {"a": 2, "d": {"x": []}}],
        [{"s": "t", "a": 2.5, "d": {"x": [True]}}],
        compress=compress,
    )
    found = fields_of(pattern)
    assert found == {
        "a": pa.float64(),
        "s": pa.string(),
        "d": pa.struct([("x", pa.list_(pa.bool_()))]),
    }
    assert list(map(example_of, records_of(pattern))) == [
        {"a": 1.0},
        {"a": 2.0, "d.x": []},
        {"a": 2.5, "s": "t", "d.x": 1},
    ]


# A schema is taken from 256 KiB of a file: so many lines with this end are more.
BEYOND_A_SAMPLE, PADDING = 40, " " * 9000
BIG = 16_777_217  # The least whole number that a float32 does not hold.


@pytest.mark.parametrize(
    "lines",
    [
        ['{"a": 16777217}', '{"a": 2.0}', '{"a": 9007199254740993}'],
        ['{"a": 16777217.0}', '{"a": 2}', '{"a": 9007199254740993}'],
        ['{"a": 1.6777217e7}', '{"a": 2e0}', '{"a": 9007199254740993.000}'],
        ['{"a": [16777217, 2.0, 9007199254740993]}'],
        [
            '{"a": {"b": 16777217}}',
            '{"a": {"b": 2.0}}',
            '{"a": {"b": 90071992547409930e-1}}',
        ],
    ],
)
def test_whole_numbers_stay_whole(tmp_path, lines):
    found = map(example_of, records_of(written(tmp_path, lines)))
    values = [value for record in found for value in record.values()]
    assert values in ([BIG, 2, (1 << 53) + 1], [[BIG, 2, (1 << 53) + 1]])


def test_whole_numbers_beside_fractions(tmp_path):
    pattern = written(tmp_path, [{"a": BIG, "b": 1}, {"a": 2.5, "b": 1e30}])
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        spec_of(pattern)
    assert error.value.got == "16777217 and 2.5"
    assert "--columns '*,a:float'" in str(error.value.cure)
    found = map(example_of, records_of(pattern, columns=("a:float",)))
    assert list(found) == [{"a": BIG - 1.0}, {"a": 2.5}]


@pytest.mark.parametrize(
    "late",
    [BIG, BIG + 0.0, (1 << 53) + 1, -(1 << 62) - 1, 10**30, 10**400, -(10**4200)],
    ids=str.split("24 24.0 53 -62 e30 e400 -e4200"),
)
def test_a_later_whole_number_that_a_float_does_not_hold(tmp_path, late):
    pattern = written(
        tmp_path, ['{"a": 1.5}' + PADDING] * BEYOND_A_SAMPLE + [{"a": late}]
    )
    with pytest.raises(CorruptRecordError, match="a float32 does not hold") as error:
        records_of(pattern)
    assert f"line {BEYOND_A_SAMPLE + 1:,}" in str(error.value.where)
    assert ":int' keeps whole numbers" in str(error.value.cure)


def test_numbers_and_texts_of_one_field(tmp_path):
    lines = ['{"id": 7, "t": "x"}', '{"id": "x7", "t": "y"}', '{"t": 1, "id": 1.50}']
    pattern = written(tmp_path, lines[:2])
    with pytest.raises(InputError, match="'id' have no common type") as error:
        spec_of(pattern)
    assert "--columns '*,id:string'" in str(error.value.cure)
    found = map(example_of, records_of(pattern, columns=("*", "id:string")))
    assert list(found) == [{"id": "7", "t": "x"}, {"id": "x7", "t": "y"}]
    pattern = written(tmp_path, lines[:1], lines)
    with pytest.raises(InputError, match="'t' have no common type"):
        spec_of(pattern, columns=("*", "id:string"))
    found = map(example_of, records_of(pattern, columns=("id:string", "t:string")))
    assert list(found)[-1] == {"id": "1.50", "t": "1"}


def test_a_line_that_is_not_json_is_left_to_the_conversion(tmp_path):
    pattern = written(tmp_path, ["{", '{"a": 1}', "[1]", '{"a": NaN}'])
    assert fields_of(pattern) == {"a": pa.int64()}
    with pytest.raises(InputError, match="no JSON object"):
        fields_of(written(tmp_path, ["[1]"]))


def test_columns_and_their_types(tmp_path):
    pattern = written(tmp_path, [{"a": 1, "b": "x", "n": None}])
    assert fields_of(pattern, columns=("b",)) == {"b": pa.string()}
    assert fields_of(pattern, columns=("*", "n:int[]", "new:string")) == {
        "a": pa.int64(),
        "b": pa.string(),
        "n": pa.list_(pa.int64()),
        "new": pa.large_string(),
    }
    late = fields_of(pattern, columns=("b", "new:string"))
    assert late == {"b": pa.string(), "new": pa.large_string()}
    # With types alone, all records would be empty.
    for columns in (("c",), ("c:int",), ("c:int", "d:string")):
        with pytest.raises(InputError, match="no such column"):
            fields_of(pattern, columns=columns)
    with pytest.raises(InputError, match="unknown type"):
        wanted_columns(["a:decimal"])


NESTED = {
    "lists of lists": ['{"a": [[1], [2, 3]]}', '{"a": []}'],
    "items of other types": ['{"a": [1, "x"]}', '{"a": [2]}'],
    "objects of other types": ['{"a": {"b": 1.50}}', '{"a": {"b": "x"}}'],
    "a null in a list": ['{"a": [1, null]}', '{"a": [2]}'],
    "a field that some items lack": ['{"a": [{"b": 1}, {"c": 1e2}]}', '{"a": []}'],
    "a number of more than 64 bits": ['{"a": [99999999999999999999]}', '{"a": null}'],
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_that_no_feature_holds_are_kept_as_json(tmp_path, name):
    lines = NESTED[name]
    pattern = written(tmp_path, lines)
    texts = [line.removeprefix('{"a": ').removesuffix("}") for line in lines]
    found = list(map(example_of, records_of(pattern)))
    assert found == [{"a": text} if text != "null" else {} for text in texts]
    (note,) = source_of(spec_of(pattern)).notes()
    assert "a: kept as JSON text" in note
    # Who wants it gets any field so.
    found = map(example_of, records_of(pattern, columns=("a:json",)))
    assert [one.get("a", "null") for one in found] == texts


def test_a_later_list_that_no_feature_holds_is_named_with_a_cure_that_works(tmp_path):
    lines = ['{"a": [1, 2]}' + PADDING] * BEYOND_A_SAMPLE + ['{"a": [1, null]}']
    pattern = written(tmp_path, lines)
    with pytest.raises(CorruptRecordError, match="null") as error:
        records_of(pattern)
    assert f"line {BEYOND_A_SAMPLE + 1:,}" in str(error.value.where)
    assert "--columns '*,a:json'" in str(error.value.cure)
    found = map(example_of, records_of(pattern, columns=("*", "a:json")))
    assert [*found][-1] == {"a": "[1, null]"}


def test_a_field_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "0.jsonl").write_text('{"a":' * 700 + "1" + "}" * 700 + "\n")
    with pytest.raises(InputError, match="'a' have no common type") as error:
        spec_of(f"{tmp_path}/*.jsonl")
    assert "too deeply" in str(error.value.got)


def test_a_field_whose_name_is_half_a_surrogate(tmp_path):
    pattern = written(tmp_path, ['{"a": 1}', '{"\\ud800": 1}'])
    with pytest.raises(CorruptRecordError, match="JSON") as error:
        records_of(pattern)
    assert "line 2" in str(error.value.where)
