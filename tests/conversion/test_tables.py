"""Columns of any table as features, and its rows as examples, as TensorFlow's."""

import decimal
import itertools
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset import FeatureSpec, InputError, RowError
from gristmill.transforms.tables.example_rows import (
    check_column,
    encode_rows,
    one_column,
)
from gristmill.transforms.tables.table_features import features_of, rows_without_nulls
from tests.support import examples
from tests.support.told import told

TEXT = st.text(max_size=30)


def ints(bits, *, signed=True):
    top = 1 << bits - signed
    return st.integers(-top if signed else 0, min(top, 1 << 63) - 1)


def as_float32(value):
    return float(np.float32(value))


# What a column of each type may have in its rows.
VALUES = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    **{
        getattr(pa, f"{name}{bits}")(): ints(bits, signed=name == "int")
        for name in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(-1e38, 1e38).filter(
        lambda v: abs(v) >= 1 << 63 or not v.is_integer() or as_float32(v) == v
    ),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), TEXT),
    **dict.fromkeys((pa.binary(), pa.large_binary()), examples.BYTES),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from("abc"),
    pa.date32(): ints(32),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.timestamp("us", "UTC"): ints(64),
    pa.duration("ns"): ints(64),
    pa.decimal128(9, 2): st.decimals(-9_999_999, 9_999_999, places=2),
}
SCALARS = st.sampled_from([*VALUES][1:])
FIXED = st.builds(pa.list_, SCALARS, st.integers(1, 3))
KINDS = st.recursive(
    st.one_of(
        *(SCALARS, FIXED, st.just(pa.null()), st.builds(pa.large_list, SCALARS)),
        st.builds(pa.list_, SCALARS | FIXED),
    ),
    lambda kinds: st.dictionaries(st.sampled_from("xyz"), kinds, min_size=1).map(
        pa.struct
    ),
    max_leaves=4,
)


def values_of(kind):
    if pa.types.is_struct(kind):
        fields = {one.name: st.none() | values_of(one.type) for one in kind}
        return st.fixed_dictionaries(fields)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        return st.lists(values_of(kind.value_type), min_size=size, max_size=size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return st.lists(values_of(kind.value_type), max_size=5)
    return VALUES[kind]


def in_example(value):
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, decimal.Decimal):
        return f"{value:.2f}".encode()
    if isinstance(value, bytes):
        return value
    return int(value) if isinstance(value, int) else as_float32(value)


def added(name, value):
    """Returns what a value of a column adds to an example."""
    if value is None:
        return {}
    if isinstance(value, dict):
        fields = {}
        for field, item in value.items():
            fields |= added(f"{name}.{field}", item)
        return fields
    items = value if isinstance(value, list) else [value]
    if items and isinstance(items[0], list):
        items = itertools.chain.from_iterable(items)
    return {name: [*map(in_example, items)]}


@st.composite
def tables(draw):
    """Draws a batch, which can be a slice of a larger one, and its rows."""
    kinds = draw(st.dictionaries(st.text("ab./é", max_size=3), KINDS, min_size=1))
    rows = draw(st.lists(values_of(pa.struct(kinds)), max_size=8))
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(kinds))
    begin = draw(st.integers(0, len(rows)))
    end = draw(st.integers(begin, len(rows)))
    return batch.slice(begin, end - begin), rows[begin:end]


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
    whole = []
    for number, (record, row) in enumerate(zip(records, rows, strict=True)):
        example = examples.Example(features=examples.Features())
        found = example.features.feature
        for column, value in row.items():
            for name, values in added(column, value).items():
                listed = getattr(found[name], f"{features[name].kind}_list")
                listed.SetInParent()  # Also of no values.
                listed.value.extend(values)
        assert record == example.SerializeToString(deterministic=True)
        if {*found} == {*features}:
            whole.append(number)
    assert rows_without_nulls(batch, features.__contains__).tolist() == whole


def one(column, described=None, *, nullable=True):
    """Returns a batch of a column, which may be described by Hugging Face."""
    schema = pa.schema([pa.field("x", column.type, nullable=nullable)])
    if described is not None:
        document = {"info": {"features": {"x": described}}}
        text = json.dumps(document).encode()
        schema = schema.with_metadata({b"huggingface": text})
    return pa.record_batch([column], schema)


def list_of(item, size=-1):
    return {"feature": item, "length": size, "_type": "List"}


VALUE = {"dtype": "int64", "_type": "Value"}
MOST = (1 << 64) - 1
U64, INTS = pa.uint64(), pa.list_(pa.int64())
LISTS, PAIRS = pa.list_(INTS), pa.list_(pa.list_(pa.int64(), 2))
RAW = pa.array([b"a", "é".encode(), b"b\xff", b"c"])
TEXTS = RAW.cast(pa.string(), safe=False)
BROKEN = [
    *(TEXTS, RAW.cast(pa.large_string(), safe=False)),
    RAW.cast(pa.string_view(), safe=False),
    pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3], pa.int8()), TEXTS),
    pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4]), TEXTS),
]
TOO_LARGE, OTHER = "too large", "another number of items"
# A column with a value that no example holds, its row, and what the error says.
UNFIT = [
    (one(pa.array([1, 2, 1 << 63], U64)), 2, TOO_LARGE, "9223372036854775808"),
    (one(pa.array([[1], [], [2, MOST]], pa.list_(U64))), 2, TOO_LARGE, f"{MOST}"),
    (one(pa.array([1.0, float("inf"), 1e39])), 2, TOO_LARGE, "1e+39"),
    (one(pa.array([[1], None, [], [2, None]])), 3, "item that is null", ""),
    (one(pa.array([["a"], [None]])), 1, "item that is null", ""),
    (one(pa.array([1, None]), nullable=False), 1, "always has", ""),
    *((one(texts), 2, "not UTF-8", "") for texts in BROKEN),
    (one(pa.array([[1, 2], None, [3]]), list_of(VALUE, 2)), 2, OTHER, "1 items"),
    *(
        (one(pa.array(rows, kind), list_of(list_of(VALUE, 2))), 2, OTHER, got)
        for kind, rows, got in (
            (LISTS, [[], [[1, 2], [3, 4]], [[5]]], "1 items"),
            (LISTS, [[[1, 2]], [], [[3, 4], None]], "null"),
            (PAIRS, [[[1, 2]], [], [[3, 4], None]], "null"),
        )
    ),
]


@pytest.mark.parametrize(("batch", "row", "what", "got"), UNFIT)
def test_a_value_that_no_example_holds_is_named(batch, row, what, got):
    features = features_of(batch.schema)
    # Also beyond the rows that are encoded at once, and in a slice.
    first = pa.Table.from_batches([batch.slice(0, 1)] * 9000 + [batch])
    whole = first.combine_chunks().to_batches()[0]
    for some, at in ((batch, row), (whole.slice(1), row + 8999)):
        with told(RowError, got, match=what, row=at, column="x"):
            encode_rows(some, features)
    assert len(encode_rows(batch.slice(0, row), features)) == row
    if "null" in what:  # Such rows can be left out.
        assert row not in rows_without_nulls(batch, "x".__eq__)


def test_lengths_that_another_file_says():
    """A file that says nothing is taken as it is, unless another one says it."""
    rows = pa.array([[1, 2], [3]])
    assert len(encode_rows(one(rows), features_of(one(rows).schema))) == 2
    features = features_of(one(rows, list_of(VALUE, 2)).schema)
    assert features["x"].shape == (2,)
    with pytest.raises(RowError, match=OTHER):
        encode_rows(one(rows), features)


def spec(kind, dtype, type_, **others):
    return FeatureSpec(kind=kind, dtype=dtype, type=type_, optional=True, **others)


# By the type of a column: the kind of its feature, dtype and type.
FEATURES = """
bool                   int64 bool bool
uint64                 int64 uint64 uint64
halffloat              float float16 halffloat
double                 float float32 double
string                 bytes bytes string
date32[day]            int64 int32 date32[day]
time32[s]              int64 int32 time32[s]
timestamp[us]          int64 int64 timestamp[us]
"""


def column_of(kind):
    """Returns the features of a table with a column of a type."""
    return features_of(pa.schema({"x": kind}))


def test_a_column_becomes_a_feature():
    for line in FEATURES.strip().splitlines():
        name, *expected = line.split()
        kind = pa.type_for_alias(name.replace("[day]", ""))
        for column, shape in (
            (kind, ()),
            (pa.large_list(kind), (None,)),
            (pa.list_(pa.list_(kind, 3)), (None, 3)),
            (pa.list_(pa.list_(kind, 3), 2), (2, 3)),
        ):
            assert column_of(column) == {"x": spec(*expected, shape=shape)}
    for kind, *expected in (
        (pa.uuid(), "bytes", "bytes", "fixed_size_binary[16]"),
        (pa.decimal128(9, 2), "bytes", "bytes", "decimal128(9, 2)"),
        (pa.run_end_encoded(pa.int32(), pa.int8()), "int64", "int8", "int8"),
    ):
        assert column_of(kind) == {"x": spec(*expected)}


FILE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def test_a_file_is_its_bytes_and_its_path():
    other = pa.struct({"path": pa.string(), "bytes": pa.large_binary()})
    content, path = (spec("bytes", "bytes", kind) for kind in ("binary", "string"))
    for kind in (FILE, other):
        assert column_of(kind) == {"x": content, "x.path": path}
    size = pa.struct({"bytes": pa.int64(), "path": pa.string()})
    assert [*column_of(size)] == ["x.bytes", "x.path"]


LABEL = {"names": ["cat", "dog"], "_type": "ClassLabel"}
LABELS = {"feature": {"y": LABEL}, "_type": "Sequence"}
IMAGE = {"_type": "Image"}
ARRAY = {"shape": [2, 3], "dtype": "float32", "_type": "Array2D"}
FLOATS = pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("kind", "described", "type_", "shape"),
    [
        (FILE, IMAGE, "image", ()),
        (pa.list_(FILE), list_of(IMAGE), "image", (None,)),
        (FILE, {"_type": "Audio"}, "audio", ()),
        (pa.int64(), LABEL, "class_label", ()),
        (INTS, list_of(LABEL), "class_label", (None,)),
        (FLOATS, list_of(VALUE, 4), "float", (4,)),
        (INTS, [VALUE], "int64", (None,)),
        (pa.list_(FLOATS), ARRAY, "float", (2, 3)),
        (pa.list_(FLOATS), list_of(list_of(VALUE, 4)), "float", (None, 4)),
        (pa.struct({"y": INTS}), LABELS, "class_label", (None,)),
    ],
    ids=str,
)
def test_features_of_hugging_face(kind, described, type_, shape):
    found = features_of(one(pa.array([], kind), described).schema)
    feature = next(iter(found.values()))
    assert (feature.type, feature.shape) == (type_, shape)
    assert feature.names == (("cat", "dog") if type_ == "class_label" else ())
    assert ("x.path" in found) == (feature.kind == "bytes")


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
    with told(InputError, "`columns`", "`record` column:NAME", match=what):
        features_of(schema)
    assert [*features_of(schema, ["n"])] == ["n"]


def test_two_columns_of_one_name():
    twice = pa.schema([("a", pa.string()), ("a", pa.string())])
    nested = pa.schema({"a.b": pa.int8(), "a": pa.struct({"b": pa.int8()})})
    for schema in (twice, nested):
        with told(InputError, "would become the same feature"):
            features_of(schema)
    batch = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, schema=twice)
    with told(InputError, "two columns"):
        one_column(batch, "a")


@pytest.mark.parametrize("name", ["n", "list", "map", "none", "image.size"])
def test_columns_that_cannot_be_records(name):
    kinds = {"n": pa.int8(), "list": pa.list_(pa.string()), "image": FILE}
    schema = pa.schema(kinds | {"map": pa.map_(pa.string(), pa.int8())})
    with pytest.raises(InputError, match=r"cannot be|cannot become|no such column"):
        check_column(schema, name)
