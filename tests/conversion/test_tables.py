"""Columns of any table as features, and its rows as examples, as TensorFlow's."""

from __future__ import annotations

import decimal
import json
import re
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError, RowError
from gristmill.dataset.metadata.features import FeatureSpec
from gristmill.transforms.tables.example_rows import (
    check_column,
    encode_rows,
    one_column,
)
from gristmill.transforms.tables.table_features import (
    features_of,
    rows_without_nulls,
)
from tests.support import examples
from tests.support.examples import tf_example

TEXT = st.text(max_size=12)


def ints(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    top = 1 << bits - signed
    return st.integers(-top if signed else 0, min(top, 1 << 63) - 1)


def as_float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


# Types of values, what occurs of them, and what is in the example for each.
SCALARS = [
    (pa.bool_(), st.booleans(), int),
    *((getattr(pa, f"int{b}")(), ints(b), int) for b in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{b}")(), ints(b, signed=False), int) for b in (8, 16, 32, 64)),
    (pa.float16(), st.floats(width=16).map(np.float16), float),
    (pa.float32(), st.floats(width=32), float),
    (
        pa.float64(),
        st.floats(-1e38, 1e38).filter(
            lambda v: abs(v) >= 1 << 63 or not v.is_integer() or as_float32(v) == v
        ),
        as_float32,
    ),
    *((t, TEXT, str.encode) for t in (pa.string(), pa.large_string())),
    (pa.string_view(), st.text(max_size=30), str.encode),
    *((t, examples.BYTES, bytes) for t in (pa.binary(), pa.large_binary())),
    (pa.binary(3), st.binary(min_size=3, max_size=3), bytes),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("abc"), str.encode),
    (pa.date32(), ints(32), int),
    (pa.time32("ms"), st.integers(0, 86_399_999), int),
    (pa.timestamp("us", "UTC"), ints(64), int),
    (pa.duration("ns"), ints(64), int),
    (
        pa.decimal128(9, 2),
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: decimal.Decimal(n) / 100),
        lambda value: f"{value:.2f}".encode(),
    ),
]


NAMES = st.text("ab./é", max_size=3)


@st.composite
def columns(draw, depth=0):
    """Draws a type, a strategy of its values, and what a value adds to an example."""
    shape = draw(
        st.sampled_from(
            ["scalar", "scalar", "list", "fixed", "lists", "struct", "null"]
        )
    )
    if shape == "null":
        return pa.null(), st.none(), lambda name, value: {}
    if shape == "struct" and depth < 2:
        names = draw(st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
        fields = {name: draw(columns(depth + 1)) for name in names}

        def add_fields(name, value):
            found = {}
            for field, (_, _, add) in fields.items():
                if value is not None and value[field] is not None:
                    found |= add(f"{name}.{field}", value[field])
            return found

        kind = pa.struct([(name, fields[name][0]) for name in names])
        values = st.fixed_dictionaries(
            {name: st.none() | fields[name][1] for name in names}
        )
        return kind, values, add_fields
    item, values, of = draw(st.sampled_from(SCALARS))

    def add_all(name, rows):
        return {name: (item, [of(value) for row in rows for value in row])}

    if shape == "lists":
        size = draw(st.integers(1, 3))
        kind = pa.list_(pa.list_(item, size))
        return kind, st.lists(st.tuples(*[values] * size), max_size=3), add_all
    if shape == "list":
        make = draw(st.sampled_from([pa.list_, pa.large_list]))
        lists = st.lists(values, max_size=5)
        return make(item), lists, lambda name, vs: {name: (item, [of(v) for v in vs])}
    if shape == "fixed":
        size = draw(st.integers(1, 3))
        lists = st.lists(values, min_size=size, max_size=size)
        kind = pa.list_(item, size)
        return kind, lists, lambda name, vs: {name: (item, [of(v) for v in vs])}
    return item, values, lambda name, value: {name: (item, [of(value)])}


@st.composite
def tables(draw):
    """Draws a batch, which can be a slice of a larger one, and the rows' features."""
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    made = {name: draw(columns()) for name in names}
    rows = draw(
        st.lists(
            st.fixed_dictionaries({n: st.none() | made[n][1] for n in names}),
            max_size=8,
        )
    )
    batch = pa.record_batch(
        [pa.array([row[name] for row in rows], made[name][0]) for name in names], names
    )
    begin = draw(st.integers(0, len(rows)))
    end = draw(st.integers(begin, len(rows)))
    expected = []
    for row in rows[begin:end]:
        features = {}
        for name in names:
            if row[name] is not None:
                features |= made[name][2](name, row[name])
        expected.append(features)
    return batch.slice(begin, end - begin), expected


def feature(kind: pa.DataType, values: list) -> examples.Feature:
    spec = features_of(pa.schema([("x", kind)]))["x"]
    if spec.kind == "bytes":
        return examples.Feature(bytes_list=examples.BytesList(value=values))
    if spec.kind == "float":
        return examples.Feature(float_list=examples.FloatList(value=values))
    return examples.Feature(int64_list=examples.Int64List(value=values))


@given(tables())
def test_rows_are_what_tensorflow_makes_of_them(drawn):
    batch, rows = drawn
    try:
        features = features_of(batch.schema)
    except InputError as error:
        # Two columns would become one, or all are null.
        if re.search("same feature|no column is left", error.what):
            return
        raise
    records = encode_rows(batch, features)
    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        named = {name: feature(kind, values) for name, (kind, values) in row.items()}
        example = examples.Example(features=examples.Features(feature=named))
        assert record == example.SerializeToString(deterministic=True)
        assert all(features[name].optional or name in row for name in features)


@pytest.mark.parametrize(
    ("column", "row", "what"),
    [
        (pa.array([1, 2, 1 << 63], pa.uint64()), 2, "too large"),
        (pa.array([[1], [], [2, 1 << 63]], pa.list_(pa.uint64())), 2, "too large"),
        (pa.array([1.0, float("inf"), 1e39]), 2, "too large"),
        (pa.array([[1], None, [], [2, None]]), 3, "item that is null"),
        (pa.array([["a"], [None]]), 1, "item that is null"),
    ],
)
def test_a_value_that_no_example_holds_is_named(column, row, what):
    # Also beyond the rows that are encoded at once, and in a slice.
    for before in (0, 9000):
        whole = pa.concat_arrays([column.slice(0, 1)] * before + [column])
        batch = pa.record_batch({"x": whole})
        with pytest.raises(RowError, match=what) as error:
            encode_rows(batch.slice(1) if before else batch, features_of(batch.schema))
        assert error.value.row == before + row - bool(before)
        assert error.value.column == "x"


def hugging_face(schema, features):
    document = {"info": {"features": features}}
    return pa.schema(schema).with_metadata(
        {b"huggingface": json.dumps(document).encode()}
    )


def int_lists(*sizes):
    kind = pa.int64()
    for size in sizes:
        kind = pa.list_(kind, size)
    return kind


@pytest.mark.parametrize(
    ("shape", "rows", "kind", "got"),
    [
        ((2,), [[1, 2], None, [3]], int_lists(-1), "1 items"),
        ((2, 1), [[[1], [2]], None, [[3]]], int_lists(-1, -1), "1 items"),
        ((None, 2), [[], [[1, 2], [3, 4]], [[5]]], int_lists(-1, -1), "1 items"),
        ((None, 2), [[[1, 2]], [], [[3, 4], None]], int_lists(-1, -1), "null"),
        ((None, 2), [[[1, 2]], [], [[3, 4], None]], int_lists(2, -1), "null"),
    ],
)
def test_lists_of_another_length_than_hugging_face_says(shape, rows, kind, got):
    described = {"dtype": "int64", "_type": "Value"}
    for size in reversed(shape):
        length = -1 if size is None else size
        described = {"feature": described, "length": length, "_type": "List"}
    schema = hugging_face({"x": kind}, {"x": described})
    assert features_of(schema)["x"].shape == shape
    batch = pa.record_batch([pa.array(rows, kind)], schema)
    with pytest.raises(RowError, match="another number of items") as error:
        encode_rows(batch, features_of(schema))
    assert (error.value.row, error.value.got) == (2, got)
    assert len(encode_rows(batch.slice(0, 2), features_of(schema))) == 2
    # A file that says nothing is taken as it is, unless another one says it.
    if len(shape) == 1:
        silent = pa.record_batch(batch.columns, schema.remove_metadata())
        assert len(encode_rows(silent, features_of(silent.schema))) == 3
        with pytest.raises(RowError, match="another number of items"):
            encode_rows(silent, features_of(schema))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_text_that_is_not_utf8_is_named(kind):
    raw = [b"a", "é".encode(), None, b"b\xff", b"c"]
    texts = pa.array(raw).cast(kind, safe=False)
    few = pa.array(filter(None, raw)).cast(kind, safe=False)
    codes = pa.array([0, 1, None, 2, 3], pa.int8())
    encoded = pa.DictionaryArray.from_arrays(codes, few)
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 2, 3, 4]), few)
    for column in (texts, encoded, lists):
        batch = pa.record_batch({"x": column})
        features = features_of(batch.schema)
        for begin in (0, 1):
            with pytest.raises(RowError, match="a text that is not UTF-8") as error:
                encode_rows(batch.slice(begin), features)
            assert error.value.row == 3 - begin
        assert len(encode_rows(batch.slice(0, 3), features)) == 3
        assert len(encode_rows(batch.slice(4), features)) == 1
    with pytest.raises(RowError, match="a text that is not UTF-8"):
        one_column(pa.record_batch({"x": few}), "x")


def test_a_null_where_there_is_always_a_value():
    features = features_of(pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    batch = pa.record_batch({"x": [1, None]})
    assert encode_rows(batch.slice(0, 1), features) == [tf_example({"x": [1]})]
    with pytest.raises(RowError, match="described as one that always has") as error:
        encode_rows(batch, features)
    assert error.value.row == 1


def test_nulls_wherever_they_are() -> None:
    rows = [
        {"s": "x", "l": [1], "d": {"x": 1}},
        {"s": None, "l": [], "d": {"x": 1}},
        {"s": "x", "l": None, "d": {"x": 1}},
        {"s": "x", "l": [], "d": {"x": 1}},
        {"s": "x", "l": [1, None], "d": {"x": 1}},
        {"s": "x", "l": [1], "d": None},
        {"s": "x", "l": [1], "d": {"x": None}},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    found = {
        name: rows_without_nulls(batch, name.split(",").__contains__).tolist()
        for name in ("s", "l", "d.x", "s,l,d.x")
    }
    assert found == {
        "s": [0, 2, 3, 4, 5, 6],
        "l": [0, 1, 3, 5, 6],
        "d.x": [0, 1, 2, 3, 4],
        "s,l,d.x": [0, 3],
    }
    assert np.array_equal(rows_without_nulls(batch.slice(2, 3), "l".__eq__), [1])


def spec(kind, dtype, type_, **others):
    return FeatureSpec(kind=kind, dtype=dtype, type=type_, optional=True, **others)


@pytest.mark.parametrize(
    ("column", "kind", "dtype", "type_", "shape"),
    [
        (pa.bool_(), "int64", "bool", "bool", ()),
        (pa.uint64(), "int64", "uint64", "uint64", ()),
        (pa.float16(), "float", "float16", "halffloat", ()),
        (pa.float64(), "float", "float32", "double", ()),
        (pa.uuid(), "bytes", "bytes", "fixed_size_binary[16]", ()),
        (pa.decimal128(9, 2), "bytes", "bytes", "decimal128(9, 2)", ()),
        (pa.date32(), "int64", "int32", "date32[day]", ()),
        (pa.time32("s"), "int64", "int32", "time32[s]", ()),
        (pa.timestamp("us", "UTC"), "int64", "int64", "timestamp[us, tz=UTC]", ()),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "int64", "int8", "int8", ()),
        (pa.large_list(pa.string()), "bytes", "bytes", "string", (None,)),
        (pa.list_(pa.list_(pa.int8(), 3)), "int64", "int8", "int8", (None, 3)),
        (pa.list_(pa.list_(pa.int8(), 3), 2), "int64", "int8", "int8", (2, 3)),
    ],
    ids=str,
)
def test_a_column_becomes_a_feature(column, kind, dtype, type_, shape):
    expected = spec(kind, dtype, type_, shape=shape)
    assert features_of(pa.schema({"x": column})) == {"x": expected}
    required = features_of(pa.schema([pa.field("x", column, nullable=False)]))
    assert required["x"].optional is False


FILE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
PATH = spec("bytes", "bytes", "string")


def test_a_file_is_its_bytes_and_its_path():
    other = pa.struct({"path": pa.string(), "bytes": pa.large_binary()})
    content = spec("bytes", "bytes", "binary")
    for kind in (FILE, other):
        found = features_of(pa.schema({"x": kind}))
        assert found == {"x": content, "x.path": PATH}
    size = pa.struct({"bytes": pa.int64(), "path": pa.string()})
    assert [*features_of(pa.schema({"x": size}))] == ["x.bytes", "x.path"]


VALUE = {"dtype": "int64", "_type": "Value"}
LABEL = {"names": ["cat", "dog"], "_type": "ClassLabel"}
FOUR = {"feature": VALUE, "length": 4, "_type": "List"}
NAMED = {"names": ("cat", "dog")}


@pytest.mark.parametrize(
    ("kind", "described", "expected"),
    [
        (FILE, {"_type": "Image"}, spec("bytes", "bytes", "image")),
        (
            pa.list_(FILE),
            {"feature": {"_type": "Image"}, "_type": "List"},
            spec("bytes", "bytes", "image", shape=(None,)),
        ),
        (FILE, {"_type": "Audio"}, spec("bytes", "bytes", "audio")),
        (pa.int64(), LABEL, spec("int64", "int64", "class_label", **NAMED)),
        (
            pa.list_(pa.int64()),
            {"feature": LABEL, "length": -1, "_type": "Sequence"},
            spec("int64", "int64", "class_label", shape=(None,), **NAMED),
        ),
        (pa.list_(pa.float32()), FOUR, spec("float", "float32", "float", shape=(4,))),
        (pa.list_(pa.int8()), [VALUE], spec("int64", "int8", "int8", shape=(None,))),
        (
            pa.list_(pa.list_(pa.int8())),
            {"shape": [2, 3], "dtype": "int8", "_type": "Array2D"},
            spec("int64", "int8", "int8", shape=(2, 3)),
        ),
        (
            pa.list_(pa.list_(pa.float32())),
            {"feature": FOUR, "_type": "List"},
            spec("float", "float32", "float", shape=(None, 4)),
        ),
        (
            pa.struct({"y": pa.list_(pa.int64())}),
            {"feature": {"y": LABEL}, "_type": "Sequence"},
            spec("int64", "int64", "class_label", shape=(None,), **NAMED),
        ),
    ],
    ids=str,
)
def test_features_of_hugging_face(kind, described, expected):
    found = features_of(hugging_face({"x": kind}, {"x": described}))
    assert next(iter(found.values())) == expected
    assert ("x.path" in found) == ("bytes: binary" in str(kind))


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pa.list_(pa.list_(pa.int8())), "lists of lists"),
        (pa.map_(pa.string(), pa.int8()), "a map"),
        (pa.struct({"m": pa.map_(pa.string(), pa.int8())}), "a map"),
        (pa.dense_union([pa.field("a", pa.int8())]), "a union"),
        (pa.month_day_nano_interval(), "such values"),
    ],
    ids=str,
)
def test_columns_that_are_refused(column, what):
    schema = pa.schema({"n": pa.int8(), "x": column})
    what = f"^column 'x.*no tf.train.Example holds {what}"
    with pytest.raises(InputError, match=what) as error:
        features_of(schema)
    assert "--columns" in error.value.cure
    assert "--record column:NAME" in error.value.cure
    assert [*features_of(schema, ["n"])] == ["n"]


def test_two_columns_of_one_name():
    twice = pa.schema([("a", pa.string()), ("a", pa.string())])
    nested = pa.schema({"a.b": pa.int8(), "a": pa.struct({"b": pa.int8()})})
    for schema in (twice, nested):
        with pytest.raises(InputError, match="would become the same feature"):
            features_of(schema)
    batch = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, schema=twice)
    with pytest.raises(InputError, match="two columns"):
        one_column(batch, "a")


@pytest.mark.parametrize("name", ["n", "list", "map", "none", "image.size"])
def test_columns_that_cannot_be_records(name):
    kinds = {"n": pa.int8(), "list": pa.list_(pa.string()), "image": FILE}
    schema = pa.schema(kinds | {"map": pa.map_(pa.string(), pa.int8())})
    with pytest.raises(InputError, match=r"cannot be|cannot become|no such column"):
        check_column(schema, name)
