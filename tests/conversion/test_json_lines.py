"""JSON lines as columns, against Python's `json`, and all that is refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.transforms.sources.lines.json_source import JsonLines
from gristmill.transforms.sources.lines.json_values import DifferentTypesError, type_of
from gristmill.transforms.sources.lines.line_source import (
    BadLineError,
    Lines,
    newline_ends,
)

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
    if not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    return Lines(data, ends)


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


def reference(line: bytes, *, only=False):
    """What a line holds, by Python; None for a line that is to be refused."""
    try:
        line.decode()
        found = json.loads(
            line,
            object_pairs_hook=dict if only else no_duplicates,
            parse_constant=no_constant,
        )
        json.dumps(found, ensure_ascii=False).encode()  # No halves of surrogates.
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not (only or fits(found, pa.struct(SCHEMA))):
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
    data = b"".join(line_of(*line) for line in lines)
    given_lines = lines_of(data)
    rows = JsonLines(pa.schema([("s", pa.string())]), only=True)
    try:
        batch, kept = rows.rows(given_lines)
    except BadLineError as error:
        line = given_lines.line(error.index)
        found = reference(line, only=True)
        assert found is None or len(no_duplicates_of(line)) > 0
    else:
        texts = batch.column("s").to_pylist()
        for index, text in zip(kept.tolist(), texts, strict=True):
            assert json.loads(given_lines.line(index)).get("s") == text


def no_duplicates_of(line: bytes) -> list[str]:
    twice: list[str] = []

    def hook(pairs):
        names = [name for name, _ in pairs]
        twice.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    json.loads(line, object_pairs_hook=hook)
    return twice


@pytest.mark.parametrize(
    ("line", "expected", "got"),
    [
        (b'{"a":1,"a":1}', "one JSON object", "'a' more than once"),
        (b'{"d":{"x":"1","x":"2"}}', "one JSON object", "'x' more than once"),
        (b'{"a":1.5}', "field 'a': an integer of 64 bits", "1.5"),
        (b'{"a":9223372036854775808}', "an integer of 64 bits", "9223372036854775808"),
        (b'{"a":"1"}', "field 'a': an integer", '"1"'),
        (b'{"a":true}', "field 'a': an integer", "true"),
        (b'{"s":1}', "field 's': a string", "1"),
        (b'{"f":true}', "field 'f': a number", "true"),
        (b'{"f":NaN}', "one JSON object", "NaN, which JSON does not have"),
        (b'{"f":-Infinity}', "one JSON object", "-Infinity, which JSON"),
        (b'{"l":[1,2.5]}', "field 'l': an integer", "2.5"),
        (b'{"l":[1,[2]]}', "field 'l': an integer", "[2]"),
        (b'{"l":1}', "field 'l': a list", "1"),
        (b'{"d":{"y":[1,"x"]}}', "field 'd.y': a number", '"x"'),
        (b'{"d":{"q":1}}', "field 'd': only the fields 'x', 'y'", "a new field 'q'"),
        (b'{"q":null}', "only the fields 'a'", "a new field 'q'"),
        (b'{"z":1}', "field 'z': null", "1"),
        (b'{"a":1', "one JSON object", "Expecting"),
        (b'{"a":1}x', "one JSON object", "Extra data"),
        (b'{"a":1} {"a":2}', "one JSON object", "Extra data"),
        (b'{"a":1} null {"a":2}', "one JSON object", "Extra data"),
        (b"null", "an object", "null"),
        (b"[1]", "an object", "[1]"),
        (b'{"s":"\\ud800"}', "one JSON object", "surrogate"),
        (b'{"s":"\xff"}', "UTF-8", "0xff"),
        (b'{"s":"a\tb"}', "one JSON object", "control character"),
        (b'{"f":1e999}', "field 'f': a number", "1e999"),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_a_bad_line_is_explained(line, expected, got, before):
    data = b'{"a":1,"f":2}\n\n' * before + line + b'\n{"a":2}\n'
    with pytest.raises(BadLineError) as error:
        JsonLines(SCHEMA).rows(lines_of(data))
    assert error.value.index == 2 * before
    assert expected in error.value.expected
    assert got in error.value.got


def test_an_object_over_two_lines_is_refused():
    for data in (
        b'{"a":1} {"a":2}\n{"a":\n3}\n',
        b'{"d":\n{"x":"1"}\n}\n{"a":1}{"a":1}\n{"a":1}{"a":1}',
    ):
        with pytest.raises(BadLineError) as error:
            JsonLines(SCHEMA).rows(lines_of(data))
        assert error.value.index == 0


def test_deep_nesting_does_not_end_the_process():
    line = b'{"q":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    _, kept = JsonLines(pa.schema([]), only=True).rows(lines_of(line))
    assert len(kept) == 1
    with pytest.raises(BadLineError):
        JsonLines(SCHEMA).rows(lines_of(line))


@pytest.mark.parametrize("value", [1 << 63, [1, 1 << 63], {"x": -(1 << 63) - 1}])
def test_integers_of_more_than_64_bits_have_no_type(value):
    with pytest.raises(DifferentTypesError):
        type_of(value)
