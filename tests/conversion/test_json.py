"""JSON: lines, arrays and types against Python's json, and all that is refused."""

from __future__ import annotations

import gzip
import io
import json
import pathlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    CorruptStreamError,
    InputError,
)
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.lines.json_source import JsonLines
from gristmill.transforms.sources.lines.json_values import ArrayLines
from gristmill.transforms.sources.lines.line_schema import LineSchema
from gristmill.transforms.sources.lines.line_source import (
    BadLineError,
    Lines,
    newline_ends,
)
from gristmill.transforms.sources.source import first_records, source_of
from tests.conversion.line_files import example_of

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.string()),
        ("f", pa.float64()),
        ("l", pa.list_(pa.int64())),
        ("d", pa.struct([("x", pa.string()), ("y", pa.list_(pa.float64()))])),
        ("b", pa.bool_()),
        ("z", pa.null()),
    ]
)


TEXT = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.sampled_from(["NaN, ", "} null {", "Inf}", "}{"]),
)


FLOAT = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: not (number.is_integer() and 1 << 24 < abs(number) < 1 << 63)
)


INT = st.integers(-(1 << 63), (1 << 63) - 1)


OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "a": st.none() | INT,
        "s": st.none() | TEXT,
        "f": st.none() | FLOAT | st.integers(-5, 5),
        "l": st.none() | st.lists(st.none() | INT, max_size=3),
        "d": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "x": st.none() | TEXT,
                "y": st.none() | st.lists(FLOAT, max_size=2),
            },
        ),
        "b": st.none() | st.booleans(),
        "z": st.none(),
    },
)


PIECES = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"null", b"true", b"1", b"1.5", b"-0"),
    *(b"NaN", b"Infinity", b"-Infinity", b'"a"', b'"q"', b" ", b"\t", b"\r", b"\0"),
    *(b"\xff", b"\\", b"\\ud800", b"\xc3\xa9", b"99999999999999999999", b"01", b"{}"),
    *(b'"a":1', b'{"a":2}', b"} {", b"}{", b'{"x":"q","y":[1,2.5]}'),
]


CHANGE = st.tuples(st.integers(0, 200), st.integers(0, 3), st.sampled_from(PIECES))


LINE = st.tuples(
    OBJECT, st.booleans(), st.lists(CHANGE, max_size=1), st.sampled_from(["\n", "\r\n"])
)


def line_of(found, ascii_only, changes, newline) -> bytes:
    line = json.dumps(found, ensure_ascii=ascii_only).encode()
    for at, length, piece in changes:
        at %= len(line) + 1
        line = line[:at] + piece + line[at + length :]
    return line + newline.encode()


def lines_of(data: bytes) -> Lines:
    ends = newline_ends(data)
    return Lines(data, ends if data.endswith(b"\n") else np.append(ends, len(data)))


def no_constant(name):
    raise ValueError(name)


def no_duplicates(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("duplicates")
    return dict(pairs)


def fits(value, kind) -> bool:
    """Whether a column takes a value of JSON, as it is documented."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        types = {one.name: one.type for one in kind}
        return isinstance(value, dict) and all(
            name in types and fits(item, types[name]) for name, item in value.items()
        )
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(
            fits(one, kind.value_type) for one in value
        )
    if isinstance(value, bool | str):
        return kind == (pa.bool_() if isinstance(value, bool) else pa.string())
    if not isinstance(value, int | float) or not pa.types.is_primitive(kind):
        return False
    if pa.types.is_integer(kind):
        whole = isinstance(value, int) or value.is_integer()
        return whole and -(1 << 63) <= value < 1 << 63
    return kind == pa.float64() and abs(value) < float("inf")


def reference(line: bytes, *, typed=True):
    """What a line holds, by Python; None for a line that is to be refused."""
    try:
        line.decode()
        hooks = {"object_pairs_hook": no_duplicates, "parse_constant": no_constant}
        found = json.loads(line, **hooks)
        json.dumps(found, ensure_ascii=False).encode()  # No halves of surrogates.
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or (typed and not fits(found, pa.struct(SCHEMA))):
        return None
    return found


def filled(found) -> dict:
    d = found.get("d")
    return {name: found.get(name) for name in SCHEMA.names} | {
        "d": d if d is None else {"x": d.get("x"), "y": d.get("y")}
    }


@given(st.lists(LINE, min_size=1, max_size=6))
def test_rows_are_what_json_reads_and_the_first_bad_line_is_named(lines):
    data = b"".join(line_of(*line) for line in lines)
    given_lines = lines_of(data)
    want, bad = [], None
    for index in range(len(given_lines.ends)):
        line = given_lines.line(index)
        if line.strip(b" \t\r"):
            found = reference(line)
            if found is None:
                bad = index
                break
            want.append(found)
    if bad is None:
        batch, kept = JsonLines(SCHEMA).rows(given_lines)
        assert batch.to_pylist() == [filled(found) for found in want]
        assert len(kept) == len(want)
    else:
        with pytest.raises(BadLineError) as error:
            JsonLines(SCHEMA).rows(given_lines)
        assert error.value.index == bad


@given(st.lists(LINE, min_size=1, max_size=4))
def test_fields_that_are_not_wanted_are_checked_as_json(lines):
    given_lines = lines_of(b"".join(line_of(*line) for line in lines))
    rows = JsonLines(pa.schema([("s", pa.string())]), only=True)
    try:
        batch, kept = rows.rows(given_lines)
    except BadLineError as bad:
        refused = reference(given_lines.line(bad.index), typed=False)
        assert refused is None
    else:
        texts = batch.column("s").to_pylist()
        for index, text in zip(kept.tolist(), texts, strict=True):
            assert json.loads(given_lines.line(index)).get("s") == text


@pytest.mark.parametrize(
    ("line", "expected", "got"),
    [
        (b'{"a":1,"a":1}', "one JSON object", "'a' more than once"),
        (b'{"d":{"x":"1","x":"2"}}', "one JSON object", "'x' more than once"),
        (b'{"a":9223372036854775808}', "an integer of 64 bits", "9223372036854775808"),
        (b'{"a":true}', "field 'a': an integer", "true"),
        (b'{"s":1}', "field 's': a string", "1"),
        (b'{"f":true}', "field 'f': a number", "true"),
        (b'{"f":-Infinity}', "one JSON object", "-Infinity, which JSON does not have"),
        (b'{"l":[1,[2]]}', "field 'l': an integer", "[2]"),
        (b'{"l":1}', "field 'l': a list", "1"),
        (b'{"d":{"y":[1,"x"]}}', "field 'd.y': a number", '"x"'),
        (b'{"d":{"q":1}}', "field 'd': only the fields 'x', 'y'", "a new field 'q'"),
        (b'{"q":null}', "only the fields 'a'", "a new field 'q'"),
        (b'{"z":1}', "field 'z': null", "1"),
        (b'{"a":1', "one JSON object", "Expecting"),
        (b'{"a":1} null {"a":2}', "one JSON object", "Extra data"),
        (b'{"a":1} {"a":2}\n{"a":\n3}', "one JSON object", "Extra data"),
        (b'{"d":\n{"x":"1"}\n}\n{"a":1}{"a":1}', "one JSON object", "Expecting"),
        (b"[1]", "an object", "[1]"),
        (b'{"s":"\\ud800"}', "one JSON object", "surrogate"),
        (b'{"s":"\xff"}', "UTF-8", "0xff"),
        (b'{"f":1e999}', "field 'f': a number", "1e999"),
        (b'{"q":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "JSON", "recursion"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("before", [0, 3])
def test_a_bad_line_is_explained(line, expected, got, before):
    data = b'{"a":1,"f":2}\n\n' * before + line + b'\n{"a":2}\n'
    with pytest.raises(BadLineError) as error:
        JsonLines(SCHEMA).rows(lines_of(data))
    assert error.value.index == 2 * before
    assert expected in error.value.expected
    assert got in error.value.got


def test_deep_nesting_of_a_field_that_is_not_wanted():
    line = b'{"q":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    assert len(JsonLines(pa.schema([]), only=True).rows(lines_of(line))[1]) == 1


def written(folder: pathlib.Path, *files: list, compress=bytes) -> str:
    for number, lines in enumerate(files):
        texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
        data = "".join(text + "\n" for text in texts).encode()
        (folder / f"{number}.jsonl").write_bytes(compress(data))
    return f"{folder}/*.jsonl"


def spec_of(pattern: str, **options) -> SourceSpec:
    records = RecordOptions(input_format="jsonl", **options)
    return find_inputs([pattern], options=records).spec


def fields_of(pattern: str, **options) -> dict[str, pa.DataType]:
    fields = LineSchema.from_text(spec_of(pattern, **options).schema).fields
    return {field.name: field.type for field in fields}


def examples_of(pattern: str, **options) -> list[dict]:
    records = RecordOptions(input_format="jsonl", **options)
    found = first_records(find_inputs([pattern], options=records))
    return [example_of(one.record) for one in found]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_types_are_those_of_all_sampled_files(tmp_path, compress):
    pattern = written(
        tmp_path,
        [{"a": 1, "s": None}, "", {"a": 2, "d": {"x": []}}],
        [{"s": "t", "a": 2.5, "d": {"x": [True]}}],
        compress=compress,
    )
    assert fields_of(pattern) == {
        "a": pa.float64(),
        "s": pa.string(),
        "d": pa.struct([("x", pa.list_(pa.bool_()))]),
    }
    assert examples_of(pattern) == [
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
        ['{"a": 1.6777217e7}', '{"a": 2e0}', '{"a": 9007199254740993.000}'],
        ['{"a": [16777217, 2.0, 9007199254740993]}'],
        ['{"a": 16777217.0}', '{"a": 2}', '{"a": 90071992547409930e-1}'],
        ['{"a": {"b": 16777217, "c": 2.0}}', '{"a": {"b": 9007199254740993}}'],
    ],
)
def test_whole_numbers_stay_whole(tmp_path, lines):
    found = examples_of(written(tmp_path, lines))
    values = [value for record in found for value in record.values()]
    assert values in ([BIG, 2, (1 << 53) + 1], [[BIG, 2, (1 << 53) + 1]])


def test_whole_numbers_beside_fractions(tmp_path):
    pattern = written(tmp_path, [{"a": BIG, "b": 1}, {"a": 2.5, "b": 1e30}])
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        spec_of(pattern)
    assert error.value.got == "16777217 and 2.5"
    assert "--columns '*,a:float'" in str(error.value.cure)
    found = examples_of(pattern, columns=("a:float",))
    assert found == [{"a": BIG - 1.0}, {"a": 2.5}]


@pytest.mark.parametrize(
    ("first", "late", "what", "cure"),
    [
        (1.5, BIG, "a float32 does not hold", ":int' keeps whole numbers"),
        (1.5, BIG + 0.0, "a float32 does not hold", ":int'"),
        (1.5, -(1 << 62) - 1, "a float32 does not hold", ":int'"),
        (1.5, 10**400, "a float32 does not hold", ":int'"),
        (1.5, -(10**4200), "a float32 does not hold", ":int'"),
        ([1, 2], [1, None], "null", "--columns '*,a:json'"),
    ],
    ids=["24", "24.0", "-62", "e400", "-e4200", "null"],
)
def test_a_value_beyond_the_sample_that_its_type_does_not_hold(
    tmp_path, first, late, what, cure
):
    lines = [json.dumps({"a": first}) + PADDING] * BEYOND_A_SAMPLE
    pattern = written(tmp_path, [*lines, {"a": late}])
    with pytest.raises(CorruptRecordError, match=what) as error:
        examples_of(pattern)
    assert f"line {BEYOND_A_SAMPLE + 1:,}" in str(error.value.where)
    assert cure in str(error.value.cure)
    kept = examples_of(pattern, columns=("*", "a:json"))
    assert kept[-1] == {"a": json.dumps(late)}


def test_numbers_and_texts_of_one_field(tmp_path):
    lines = ['{"id": 7, "t": "x"}', '{"id": "x7", "t": "y"}', '{"t": 1, "id": 1.50}']
    pattern = written(tmp_path, lines[:2])
    with pytest.raises(InputError, match="'id' have no common type") as error:
        spec_of(pattern)
    assert "--columns '*,id:string'" in str(error.value.cure)
    found = examples_of(pattern, columns=("*", "id:string"))
    assert found == [{"id": "7", "t": "x"}, {"id": "x7", "t": "y"}]
    pattern = written(tmp_path, lines[:1], lines)
    with pytest.raises(InputError, match="'t' have no common type"):
        spec_of(pattern, columns=("*", "id:string"))
    found = examples_of(pattern, columns=("id:string", "t:string"))
    assert found[-1] == {"id": "1.50", "t": "1"}


def test_a_line_that_is_not_json_is_left_to_the_conversion(tmp_path):
    pattern = written(tmp_path, ["{", '{"a": 1}', "[1]", '{"a": NaN}'])
    assert fields_of(pattern) == {"a": pa.int64()}
    with pytest.raises(InputError, match="no JSON object"):
        fields_of(written(tmp_path, ["[1]", "[2]"]))


def test_columns_and_their_types(tmp_path):
    pattern = written(tmp_path, [{"a": 1, "b": "x", "n": None}])
    assert fields_of(pattern, columns=("b",)) == {"b": pa.string()}
    assert fields_of(pattern, columns=("*", "n:int[]", "new:string")) == {
        "a": pa.int64(),
        "b": pa.string(),
        "n": pa.list_(pa.int64()),
        "new": pa.large_string(),
    }
    # With types alone, all records would be empty.
    for columns in (("c",), ("c:int", "d:string")):
        with pytest.raises(InputError, match="no such column"):
            fields_of(pattern, columns=columns)
    with pytest.raises(InputError, match="unknown type"):
        fields_of(pattern, columns=("a:decimal",))


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
    pattern = written(tmp_path, NESTED[name])
    texts = [line.removeprefix('{"a": ').removesuffix("}") for line in NESTED[name]]
    (note,) = source_of(spec_of(pattern)).notes()
    assert "a: kept as JSON text" in note
    assert [one.get("a", "null") for one in examples_of(pattern)] == texts
    # Who wants it gets any field so.
    found = examples_of(pattern, columns=("a:json",))
    assert [one.get("a", "null") for one in found] == texts


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [
        (['{"a":' * 700 + "1" + "}" * 700], InputError, "'a' have no common type"),
        (['{"a": 1}', '{"\\ud800": 1}'], CorruptRecordError, "line 2"),
        (['{"a": 1}', '{"a": 9223372036854775808}'], InputError, "no common type"),
    ],
    ids=["nested too deeply", "half a surrogate as a name", "more than 64 bits"],
)
def test_fields_that_no_column_can_be(tmp_path, lines, error, words):
    with pytest.raises(error) as caught:
        examples_of(written(tmp_path, lines))
    assert words in str(caught.value)


ELEMENT = st.recursive(
    st.none() | st.integers() | st.text('ab"\\,[]{}\n é', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('"\\,]', max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)


ARRAY_PIECES = [*b"[]{},\\ \n", *(b'"', b"1", b"\xef\xbb\xbf")]


ARRAY_CHANGE = st.tuples(
    st.floats(0, 1), st.integers(0, 2), st.sampled_from(ARRAY_PIECES)
)


class Slow(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def read(self, size=-1, /):
        return super().read(min(size, 3) if size > 0 else size)


def array_lines(data: bytes, size: int) -> bytes:
    stream, found = ArrayLines(Slow(data), path="x"), b""
    while piece := stream.read(size):
        found += piece
    return found


@given(
    st.lists(ELEMENT, max_size=5),
    st.sampled_from([None, 1]),
    st.lists(ARRAY_CHANGE, max_size=2),
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
        lines = array_lines(data, size)
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
