"""Rows of any table as examples, compared with what TensorFlow makes."""

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
from gristmill.transforms.tables.table_features import features_of
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


def encoded(columns, *, features=None):
    batch = pa.record_batch(columns)
    return encode_rows(batch, features or features_of(batch.schema))


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
    fine = column.slice(0, 1)
    for before in (0, 9000):
        whole = pa.concat_arrays([fine] * before + [column])
        batch = pa.record_batch(
            {"first": pa.nulls(len(whole), pa.string()), "x": whole}
        )
        with pytest.raises(RowError, match=what) as error:
            encode_rows(batch.slice(1) if before else batch, features_of(batch.schema))
        assert error.value.row == before + row - bool(before)
        assert error.value.column == "x"
        assert f"row {error.value.row:,} of the batch" in str(error.value)
        named = error.value.of("c4.parquet, row 7")
        assert (named.row, named.where) == (error.value.row, "c4.parquet, row 7")


NUMBERS = pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("shape", "column", "row", "got"),
    [
        ((2,), pa.array([[1, 2], None, [3]]), 2, "1 items"),
        ((2, 1), pa.array([[[1], [2]], [[3]]]), 1, "1 items"),
        (
            (None, 2),
            pa.array([[], [[1, 2], [3, 4]], None, [[5, 6], [7]]]),
            3,
            "1 items",
        ),
        ((None, 2), pa.array([[[1, 2]], [[3, 4], None]], pa.list_(NUMBERS)), 1, "null"),
        (
            (None, 2),
            pa.array([[[1, 2]], [[3, 4], None]], pa.list_(pa.list_(pa.int64(), 2))),
            1,
            "null",
        ),
    ],
)
def test_lists_of_another_length_than_the_description_says(shape, column, row, got):
    features = {
        "x": FeatureSpec(
            kind="int64", dtype="int64", shape=shape, type="int64", optional=True
        )
    }
    # A description of all lengths, as Hugging Face's metadata has it.
    described = {"dtype": "int64", "_type": "Value"}
    for size in reversed(shape):
        length = -1 if size is None else size
        described = {"feature": described, "length": length, "_type": "List"}
    document = json.dumps({"info": {"features": {"x": described}}}).encode()
    schema = pa.schema({"x": column.type}, {b"huggingface": document})
    assert features_of(schema) == features
    batch = pa.record_batch([column], schema)
    with pytest.raises(RowError, match="another number of items") as error:
        encode_rows(batch, features)
    assert (error.value.row, error.value.got) == (row, got)
    assert len(encode_rows(batch.slice(0, row), features)) == row


def test_files_with_and_without_what_hugging_face_says():
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    box = {"feature": {"dtype": "int8", "_type": "Value"}, "length": 2, "_type": "List"}
    document = json.dumps({"info": {"features": {"label": label, "box": box}}})
    silent = pa.schema({"label": pa.int64(), "box": pa.list_(pa.int8())})
    told = silent.with_metadata({b"huggingface": document.encode()})
    rows = [pa.array([1]), pa.array([[1, 2]], pa.list_(pa.int8()))]
    records = {
        record
        for first in (silent, told)
        for second in (silent, told)
        for record in encode_rows(pa.record_batch(rows, second), features_of(first))
    }
    assert records == {tf_example({"label": [1], "box": [1, 2]})}
    short = pa.record_batch([rows[0], pa.array([[1]], pa.list_(pa.int8()))], silent)
    assert len(encode_rows(short, features_of(silent))) == 1
    with pytest.raises(RowError, match="another number of items"):
        encode_rows(short, features_of(told))


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
            assert "byte 0xff in position 1" in error.value.got
        assert len(encode_rows(batch.slice(0, 3), features)) == 3
        assert len(encode_rows(batch.slice(4), features)) == 1
    with pytest.raises(RowError, match="a text that is not UTF-8"):
        one_column(pa.record_batch({"x": few}), "x")


def test_a_null_where_there_is_always_a_value():
    required = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    features = features_of(required)
    assert encoded({"x": [1]}, features=features) == [tf_example({"x": [1]})]
    with pytest.raises(RowError, match="described as one that always has") as error:
        encoded({"x": [1, None]}, features=features)
    assert error.value.row == 1


IMAGES = [{"bytes": b"JPEG", "path": "a.jpg"}, {"bytes": b"", "path": None}]
COLUMNS = pa.record_batch(
    {
        "text": ["a", "é"],
        "view": pa.array(["a" * 20, "b"], pa.string_view()),
        "raw": [b"\xff", b""],
        "kind": pa.array(["x", "x"]).dictionary_encode(),
        "image": IMAGES,
        "n": [1, 2],
        "list": [["a"], ["b"]],
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        "hole": ["a", None],
        "null": pa.nulls(2),
        "struct": [{"x": "a"}, {"x": "b"}],
    }
)


@pytest.mark.parametrize("name", ["n", "list", "map", "none", "image.size"])
def test_columns_that_cannot_be_records(name):
    with pytest.raises(InputError, match=r"cannot be|cannot become|no such column"):
        check_column(COLUMNS.schema, name)


def test_two_columns_of_one_name():
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], ["x", "x"])
    with pytest.raises(InputError, match="two columns"):
        one_column(batch, "x")
