"""JSON: lines and arrays against Python's json, and all that is refused."""

import codecs
import functools
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset import CorruptRecordError, GristmillError, InputError, RowError
from gristmill.transforms.sources.lines.json_source import JsonLines
from gristmill.transforms.sources.lines.line_source import Lines, newline_ends
from gristmill.transforms.sources.source import source_of
from tests.conversion.format_files import (
    features_of,
    in_blocks,
    listed,
    put,
    put_in,
    read_rows,
)
from tests.support.told import told

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
ROW = pa.struct(SCHEMA)
VALUES = {
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=5)
    | st.sampled_from(["NaN, ", "} null {", "Inf}", "}{"]),
    pa.float64(): st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: not (number.is_integer() and 1 << 24 < abs(number) < 1 << 63)
    ),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
}


def values_of(kind):
    """Draws what JSON may have in a column of a type."""
    if pa.types.is_struct(kind):
        fields = {one.name: st.none() | values_of(one.type) for one in kind}
        return st.fixed_dictionaries({}, optional=fields)
    if pa.types.is_list(kind):
        return st.lists(st.none() | values_of(kind.value_type), max_size=3)
    return VALUES[kind]


PIECES = [
    *rb'{ } [ ] {} }{ , : " "a" "q" \ \ud800 null true 1 1.5 -0 01'.split(),
    *b"99999999999999999999 NaN Infinity -Infinity".split(),
    *b'"a":1 {"a":2} {"x":"q","y":[1,2.5]}'.split(),
    *(b" ", b"\t", b"\r", b"\0", b"\xff", b"\xc3\xa9", b"} {"),
]
CHANGES = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(PIECES)), max_size=1
)


def changed(data, changes):
    for at, length, piece in changes:
        begin = int(at * len(data))
        data = data[:begin] + piece + data[begin + length :]
    return data


# Lines, and whether each was changed.
LINES = st.lists(
    st.builds(
        lambda found, ascii_only, changes, newline: (
            changed(json.dumps(found, ensure_ascii=ascii_only).encode(), changes)
            + newline,
            changes != [],
        ),
        *(values_of(ROW), st.booleans(), CHANGES, st.sampled_from([b"\n", b"\r\n"])),
    ),
    min_size=1,
    max_size=6,
)


def lines_of(data):
    return Lines(data, newline_ends(data))


def rows_of(parser, lines):
    """Returns the rows and the line of each, or None and the first bad line."""
    try:
        return parser.rows(lines_of(b"".join(line for line, _ in lines)))
    except RowError as bad:
        return None, bad.row


def no_constant(name):
    raise ValueError(name)


def no_duplicates(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("duplicates")
    return dict(pairs)


def strict(data):
    """Returns what JSON holds, by Python; None for what is to be refused."""
    try:
        hooks = {"object_pairs_hook": no_duplicates, "parse_constant": no_constant}
        found = json.loads(data.decode(), **hooks)
        json.dumps(found, ensure_ascii=False).encode()  # No halves of surrogates.
    except (ValueError, RecursionError):
        return None
    return found


@given(LINES)
def test_rows_are_what_json_reads_and_the_first_bad_line_is_named(lines):
    found = {n: strict(line) for n, (line, _) in enumerate(lines) if line.strip()}
    invalid = [n for n, row in found.items() if not isinstance(row, dict)]
    batch, at = rows_of(JsonLines(SCHEMA), lines)
    if batch is None:
        assert at <= min(invalid, default=len(lines))
        assert lines[at][1]  # At least it may have another type.
    else:
        assert not invalid
        assert batch.to_pylist() == pa.array([*found.values()], ROW).to_pylist()
        assert at.tolist() == [*found]


@given(LINES)
def test_fields_that_are_not_wanted_are_checked_as_json(lines):
    batch, at = rows_of(JsonLines(pa.schema({"s": pa.string()}), only=True), lines)
    if batch is None:
        assert lines[at][1]
    else:
        rows = [json.loads(lines[number][0]) for number in at.tolist()]
        assert batch.column("s").to_pylist() == [row.get("s") for row in rows]


DEEP = b"[" * 200_000 + b"]" * 200_000


BAD = r"""
{"a":1,"a":1}                   'a' more than once
{"a":9223372036854775808}       64 bits, got 9223372036854775808
{"a":1.5}                       field 'a': an integer of 64 bits, got 1.5
{"a":true}                      field 'a': an integer of 64 bits, got true
{"s":1}                         field 's': a string, got 1
{"f":true}                      field 'f': a number, got true
{"b":1}                         field 'b': true or false, got 1
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
    with pytest.raises(RowError) as error:
        JsonLines(SCHEMA).rows(lines_of(data))
    assert error.value.row == 2 * before
    assert named.decode() in f"{error.value.expected}, got {error.value.got}"


read = functools.partial(read_rows, input_format="jsonl")


def test_types_are_those_of_all_files(tmp_path):
    # A line that is no JSON is left to the conversion.
    lines = ['{"a": 1, "s": null}', "", '{"a": 2, "d": {"x": []}}']
    more = ['{"s": "t", "a": 2.5, "d": {"x": [true]}}']
    folder = put(tmp_path, {"0": [*lines, "{", "[1]"], "1": more})
    features = features_of(f"{folder}/*", input_format="jsonl")
    assert {n: (one["dtype"], one["shape"]) for n, one in features.items()} == {
        "a": ("float32", []),
        "s": ("bytes", []),
        "d.x": ("bool", [None]),
    }
    put(folder, {"0": lines})
    assert read(f"{folder}/*") == [
        {"a": [1.0]},
        {"a": [2.0], "d.x": []},
        {"a": [2.5], "s": [b"t"], "d.x": [1]},
    ]
    asked = ("*", "n:int[]", "new:string")
    assert read(folder / "0", columns=asked)[0] == {"a": [1.0]}
    for line, got in (
        ("[1]", "a list"),
        ('{"a": NaN}', "NaN"),
        ('{"a": 1, "a": 2}', "more than once"),
        ('{"a"', "no JSON from character 5 of it on"),
    ):
        put(folder, {"0": [line, "[2]"]})
        with told(InputError, "no JSON object", got, where=f"{folder}/0, line 1"):
            listed(folder / "0", input_format="jsonl")


@pytest.mark.parametrize(
    ("first", "late", "what", "cure"),
    [
        *(
            (1.5, late, "a float32 does not hold", ":int' keeps whole numbers")
            for late in (2**24 + 1, 2**24 + 1.0, 10**400, -(10**4200))
        ),
        ([1, 2], [1, None], "null", "`columns` '*,a:json'"),
    ],
    ids=["24", "24.0", "e400", "-e4200", "null"],
)
def test_a_value_beyond_the_sample_that_its_type_does_not_hold(
    tmp_path, first, late, what, cure
):
    lines = [json.dumps({"a": first}) + " " * 9000] * 40  # A sample has 256 KiB.
    path = put_in(tmp_path, [*lines, {"a": late}])
    with told(CorruptRecordError, "line 41", cure, match=what):
        read(path)
    kept = read(path, columns=("*", "a:json"))
    assert kept[-1] == {"a": [json.dumps(late).encode()]}


def test_numbers_and_texts_of_one_field(tmp_path):
    lines = ['{"id": 7, "t": "x"}', '{"id": "x7", "t": "y"}', '{"t": 1, "id": 1.50}']
    path = put_in(tmp_path, lines)
    with told(InputError, "'id' have no common type", "`columns` '*,id:string'"):
        read(path)
    with told(InputError, "'t' have no common type"):
        read(path, columns=("*", "id:string"))
    found = read(path, columns=("id:string", "t:string"))
    assert found[-1] == {"id": [b"1.50"], "t": [b"1"]}


NESTED = {
    "lists of lists": ["[[1], [2, 3]]", "[]"],
    "items of other types": ['[1, "x"]', "[2]"],
    "objects of other types": ['{"b": 1.50}', '{"b": "x"}'],
    "a null in a list": ["[1, null]", "[2]"],
    "a field that some items lack": ['[{"b": 1}, {"c": 1e2}]', "[]"],
    "a number of more than 64 bits": ["[99999999999999999999]", "[1]"],
}


@pytest.mark.parametrize("values", NESTED.values(), ids=NESTED)
def test_nested_values_that_no_feature_holds_are_kept_as_json(tmp_path, values):
    lines = [f'{{"a": {text}}}' for text in values]
    path = put_in(tmp_path, lines)
    spec = listed(path, input_format="jsonl").spec
    assert "a: kept as JSON text" in source_of(spec).notes()[0]
    # Who wants it gets any field so, and is told nothing.
    asked = listed(path, input_format="jsonl", columns=("a:json",)).spec
    assert source_of(asked).notes() == []
    wanted = [{"a": [text.encode()]} for text in values]
    assert read(path) == read(path, columns=("a:json",)) == wanted


def test_a_column_that_no_sample_has_is_told(tmp_path, caplog):
    path = put_in(tmp_path, ['{"id": 1}'])
    assert read(path, columns=("id", "scroe:float")) == [{"id": [1]}]
    assert "no line at the start of the files has scroe" in caplog.text


@pytest.mark.parametrize(
    "columns", ["id,m.a:string", "id,m.a", "m.a:int", "id,late.a:int"]
)
def test_a_field_of_an_object_is_not_taken_without_it(tmp_path, columns):
    path = put_in(tmp_path, ['{"id": 1, "m": {"a": 2, "b": 3}}'])
    given = tuple(columns.split(","))
    with pytest.raises(InputError, match="a field of an object") as caught:
        read(path, columns=given)
    if "m.a" in columns:
        assert "--columns m,m.a:string" in caught.value.cure
        taken = read(path, columns=("m", "m.a:string"))
        assert taken == [{"m.a": [b"2"], "m.b": [3]}]


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
    put_in(tmp_path, lines)
    with pytest.raises((InputError, CorruptRecordError), match=words):
        read(tmp_path / "in")


# Arrays.

VALUE = st.recursive(
    st.none() | st.integers() | st.text('ab"\\,[]{}\n é', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text('"\\,]', max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)
ARRAY_PIECES = [*rb'[ ] { } , \ " 1'.split(), b" ", b"\n", "\ufeff".encode()]
ARRAY_CHANGE = st.tuples(
    st.floats(0, 1), st.integers(0, 2), st.sampled_from(ARRAY_PIECES)
)


@given(
    st.lists(VALUE, min_size=1, max_size=5),
    st.sampled_from([None, 1]),
    st.lists(ARRAY_CHANGE, max_size=2),
    st.sampled_from([1, 2, 99]),
)
def test_records_are_the_elements_or_it_is_an_error(
    folder, values, indent, changes, block_bytes
):
    objects = [{"a": value} for value in values]
    text = json.dumps(objects, indent=indent, ensure_ascii=False)
    data = changed(text.encode(), changes)
    put_in(folder, data)
    elements = strict(data.removeprefix(codecs.BOM_UTF8))
    try:
        with in_blocks(block_bytes):
            found = read_rows(folder / "in", input_format="json", columns=("a:json",))
    except GristmillError:
        assert not isinstance(elements, list) or not all(
            isinstance(element, dict) for element in elements
        )
        return
    assert [json.loads(row["a"][0]) if row else None for row in found] == [
        element.get("a") for element in elements
    ]
