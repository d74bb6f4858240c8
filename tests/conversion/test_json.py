"""JSON: lines and arrays against Python's json, and all that is refused."""

import io
import json

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
from gristmill.transforms.sources.lines.json_source import JsonLines
from gristmill.transforms.sources.lines.json_values import ArrayLines
from gristmill.transforms.sources.lines.line_source import (
    BadLineError,
    Lines,
    newline_ends,
)
from gristmill.transforms.sources.source import first_records, source_of
from tests.conversion.format_files import listed
from tests.support.examples import parsed

SCHEMA = pa.schema(
    {
        "a": pa.int64(),
        "s": pa.string(),
        "f": pa.float64(),
        "l": pa.list_(pa.int64()),
        "d": pa.struct({"x": pa.string(), "y": pa.list_(pa.float64())}),
        "b": pa.bool_(),
        "z": pa.null(),
    }
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


def line_of(found, ascii_only, changes, newline):
    line = json.dumps(found, ensure_ascii=ascii_only).encode()
    for at, length, piece in changes:
        at %= len(line) + 1
        line = line[:at] + piece + line[at + length :]
    return line + newline.encode()


def lines_of(data):
    ends = newline_ends(data)
    return Lines(data, ends if data.endswith(b"\n") else np.append(ends, len(data)))


def no_constant(name):
    raise ValueError(name)


def no_duplicates(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("duplicates")
    return dict(pairs)


def fits(value, kind):
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


def reference(line, *, typed=True):
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


def filled(found):
    d = found.get("d")
    return {name: found.get(name) for name in SCHEMA.names} | {
        "d": d if d is None else {"x": d.get("x"), "y": d.get("y")}
    }


@given(st.lists(LINE, min_size=1, max_size=6))
def test_rows_are_what_json_reads_and_the_first_bad_line_is_named(lines):
    given_lines = lines_of(b"".join(line_of(*line) for line in lines))
    every = [given_lines.line(index) for index in range(len(given_lines.ends))]
    found = {n: reference(each) for n, each in enumerate(every) if each.strip(b" \t\r")}
    bad = next((number for number, row in found.items() if row is None), None)
    if bad is None:
        batch, kept = JsonLines(SCHEMA).rows(given_lines)
        assert batch.to_pylist() == [*map(filled, found.values())]
        assert kept.tolist() == [*found]
    else:
        with pytest.raises(BadLineError) as error:
            JsonLines(SCHEMA).rows(given_lines)
        assert error.value.index == bad


@given(st.lists(LINE, min_size=1, max_size=4))
def test_fields_that_are_not_wanted_are_checked_as_json(lines):
    given_lines = lines_of(b"".join(line_of(*line) for line in lines))
    rows = JsonLines(pa.schema({"s": pa.string()}), only=True)
    try:
        batch, kept = rows.rows(given_lines)
    except BadLineError as bad:
        refused = reference(given_lines.line(bad.index), typed=False)
        assert refused is None
    else:
        read = [json.loads(given_lines.line(index)) for index in kept.tolist()]
        assert batch.column("s").to_pylist() == [row.get("s") for row in read]


DEEP = b"[" * 200_000 + b"]" * 200_000


BAD = r"""
{"a":1,"a":1}                   'a' more than once
{"a":9223372036854775808}       64 bits, got 9223372036854775808
{"a":true}                      field 'a': an integer of 64 bits, got true
{"s":1}                         field 's': a string, got 1
{"f":-Infinity}                 -Infinity, which JSON does not have
{"f":1e999}                     field 'f': a number, got 1e999
{"l":[1,[2]]}                   field 'l': an integer of 64 bits, got [2]
{"d":{"y":[1,"x"]}}             field 'd.y': a number, got "x"
{"d":{"q":1}}                   a new field 'q'
{"q":null}                      a new field 'q'
{"z":1}                         field 'z': null, got 1
{"a":1                          Expecting
{"a":1}null{"a":2}              Extra data
{"a":1}{"a":2}|{"a":|3}         Extra data
{"d":|{"x":"1"}|}|{"a":1}{"a":1} Expecting
[1]                             an object, got [1]
{"s":"\ud800"}                  surrogate
{"s":"ÿ"}                       0xff
{"q":DEEP}                      recursion
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
@pytest.mark.parametrize("before", [0, 3])
def test_a_bad_line_is_explained(case, before):
    line, named = case.encode("latin-1").split(maxsplit=1)
    line = line.replace(b"DEEP", DEEP).replace(b"|", b"\n")
    data = b'{"a":1,"f":2}\n\n' * before + line + b'\n{"a":2}\n'
    with pytest.raises(BadLineError) as error:
        JsonLines(SCHEMA).rows(lines_of(data))
    assert error.value.index == 2 * before
    assert named.decode() in f"{error.value.expected}, got {error.value.got}"


def written(folder, *files):
    for number, lines in enumerate(files):
        texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
        (folder / f"{number}.jsonl").write_text("".join(f"{one}\n" for one in texts))
    return f"{folder}/*.jsonl"


def read(pattern, **options):
    found = first_records(listed(pattern, input_format="jsonl", **options))
    return [parsed(one.record) for one in found]


def test_types_are_those_of_all_files(tmp_path):
    lines = ['{"a": 1, "s": null}', "", '{"a": 2, "d": {"x": []}}', "{", "[1]"]
    # A line that is no JSON is left to the conversion.
    pattern = written(tmp_path, lines, ['{"s": "t", "a": 2.5, "d": {"x": [true]}}'])
    spec = listed(pattern, input_format="jsonl").spec
    features = source_of(spec).features()
    assert {n: (one["dtype"], one["shape"]) for n, one in features.items()} == {
        "a": ("float32", []),
        "s": ("bytes", []),
        "d.x": ("bool", [None]),
    }
    assert read(written(tmp_path, lines[:3])) == [
        {"a": [1.0]},
        {"a": [2.0], "d.x": []},
        {"a": [2.5], "s": [b"t"], "d.x": [1]},
    ]
    assert read(pattern, columns=("*", "n:int[]", "new:string"))[0] == {"a": [1.0]}
    with pytest.raises(InputError, match="no JSON object"):
        read(written(tmp_path, ["[1]", "[2]"]).replace("*", "0"))


@pytest.mark.parametrize(
    ("first", "late", "what", "cure"),
    [
        *(
            (1.5, late, "a float32 does not hold", ":int' keeps whole numbers")
            for late in (2**24 + 1, 2**24 + 1.0, -(1 << 62) - 1, 10**400, -(10**4200))
        ),
        ([1, 2], [1, None], "null", "--columns '*,a:json'"),
    ],
    ids=["24", "24.0", "-62", "e400", "-e4200", "null"],
)
def test_a_value_beyond_the_sample_that_its_type_does_not_hold(
    tmp_path, first, late, what, cure
):
    lines = [json.dumps({"a": first}) + " " * 9000] * 40  # A sample has 256 KiB.
    pattern = written(tmp_path, [*lines, {"a": late}])
    with pytest.raises(CorruptRecordError, match=what) as error:
        read(pattern)
    assert "line 41" in error.value.where
    assert cure in error.value.cure
    kept = read(pattern, columns=("*", "a:json"))
    assert kept[-1] == {"a": [json.dumps(late).encode()]}


def test_numbers_and_texts_of_one_field(tmp_path):
    lines = ['{"id": 7, "t": "x"}', '{"id": "x7", "t": "y"}', '{"t": 1, "id": 1.50}']
    pattern = written(tmp_path, lines)
    with pytest.raises(InputError, match="'id' have no common type") as error:
        read(pattern)
    assert "--columns '*,id:string'" in error.value.cure
    with pytest.raises(InputError, match="'t' have no common type"):
        read(pattern, columns=("*", "id:string"))
    found = read(pattern, columns=("id:string", "t:string"))
    assert found[-1] == {"id": [b"1.50"], "t": [b"1"]}


NESTED = {
    "lists of lists": ["[[1], [2, 3]]", "[]"],
    "items of other types": ['[1, "x"]', "[2]"],
    "objects of other types": ['{"b": 1.50}', '{"b": "x"}'],
    "a null in a list": ["[1, null]", "[2]"],
    "a field that some items lack": ['[{"b": 1}, {"c": 1e2}]', "[]"],
    "a number of more than 64 bits": ["[99999999999999999999]", "[1]"],
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_that_no_feature_holds_are_kept_as_json(tmp_path, name):
    pattern = written(tmp_path, [f'{{"a": {text}}}' for text in NESTED[name]])
    spec = listed(pattern, input_format="jsonl").spec
    assert "a: kept as JSON text" in source_of(spec).notes()[0]
    wanted = [{"a": [text.encode()]} for text in NESTED[name]]
    # Who wants it gets any field so.
    assert read(pattern) == read(pattern, columns=("a:json",)) == wanted


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"a":' * 700 + "1" + "}" * 700], "'a' have no common type"),
        (['{"a": 1}', '{"\\ud800": 1}'], "line 2"),
        (['{"a": 1}', '{"a": 9223372036854775808}'], "no common type"),
    ],
    ids=["nested too deeply", "half a surrogate as a name", "more than 64 bits"],
)
def test_fields_that_no_column_can_be(tmp_path, lines, words):
    with pytest.raises((InputError, CorruptRecordError), match=words):
        read(written(tmp_path, lines))


# Arrays.

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


def array_lines(data, size):
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
