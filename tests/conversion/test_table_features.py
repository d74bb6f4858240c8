"""Which features columns become, and which are refused."""

import json

import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.features import FeatureSpec
from gristmill.transforms.tables.table_features import features_of


def spec(kind, dtype, type_, **others):
    others.setdefault("optional", True)
    return FeatureSpec(kind=kind, dtype=dtype, type=type_, **others)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.bool_(), spec("int64", "bool", "bool")),
        (pa.int8(), spec("int64", "int8", "int8")),
        (pa.uint64(), spec("int64", "uint64", "uint64")),
        (pa.float16(), spec("float", "float16", "halffloat")),
        (pa.float32(), spec("float", "float32", "float")),
        (pa.float64(), spec("float", "float32", "double")),
        (pa.string(), spec("bytes", "bytes", "string")),
        (pa.large_string(), spec("bytes", "bytes", "string")),
        (pa.string_view(), spec("bytes", "bytes", "string")),
        (pa.binary(), spec("bytes", "bytes", "binary")),
        (pa.large_binary(), spec("bytes", "bytes", "binary")),
        (pa.binary_view(), spec("bytes", "bytes", "binary")),
        (pa.binary(16), spec("bytes", "bytes", "fixed_size_binary[16]")),
        (pa.uuid(), spec("bytes", "bytes", "fixed_size_binary[16]")),
        (pa.decimal128(9, 2), spec("bytes", "bytes", "decimal128(9, 2)")),
        (pa.date32(), spec("int64", "int32", "date32[day]")),
        (pa.date64(), spec("int64", "int64", "date64[ms]")),
        (pa.time32("s"), spec("int64", "int32", "time32[s]")),
        (pa.time64("us"), spec("int64", "int64", "time64[us]")),
        (pa.timestamp("ns"), spec("int64", "int64", "timestamp[ns]")),
        (pa.timestamp("us", "UTC"), spec("int64", "int64", "timestamp[us, tz=UTC]")),
        (pa.duration("ms"), spec("int64", "int64", "duration[ms]")),
        (pa.dictionary(pa.int8(), pa.string()), spec("bytes", "bytes", "string")),
        (pa.run_end_encoded(pa.int32(), pa.int8()), spec("int64", "int8", "int8")),
        (pa.list_(pa.int32()), spec("int64", "int32", "int32", shape=(None,))),
        (pa.large_list(pa.string()), spec("bytes", "bytes", "string", shape=(None,))),
        (pa.list_(pa.float32(), 3), spec("float", "float32", "float", shape=(3,))),
        (
            pa.list_(pa.list_(pa.float32(), 4)),
            spec("float", "float32", "float", shape=(None, 4)),
        ),
        (
            pa.list_(pa.list_(pa.int8(), 3), 2),
            spec("int64", "int8", "int8", shape=(2, 3)),
        ),
    ],
    ids=str,
)
def test_a_column_becomes_a_feature(column, expected):
    assert features_of(pa.schema({"x": column})) == {"x": expected}
    required = features_of(pa.schema([pa.field("x", column, nullable=False)]))
    assert required["x"].optional is False


def test_a_file_is_its_bytes_and_its_path():
    path, content = spec("bytes", "bytes", "string"), spec("bytes", "bytes", "binary")
    for struct in (
        {"bytes": pa.binary(), "path": pa.string()},
        {"path": pa.string(), "bytes": pa.large_binary()},
    ):
        features = features_of(pa.schema({"x": pa.struct(struct)}))
        assert features == {"x": content, "x.path": path}
    size = pa.struct({"bytes": pa.int64(), "path": pa.string()})
    assert [*features_of(pa.schema({"x": size}))] == ["x.bytes", "x.path"]


def hugging_face(schema, features):
    document = {"info": {"features": features}}
    return schema.with_metadata({b"huggingface": json.dumps(document).encode()})


def test_features_of_hugging_face():
    file = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema(
        {
            "image": file,
            "frames": pa.list_(file),
            "sound": file,
            "label": pa.int64(),
            "labels": pa.list_(pa.int64()),
            "box": pa.list_(pa.float32()),
            "old": pa.list_(pa.int8()),
            "objects": pa.struct({"area": pa.list_(pa.int64())}),
            "grid": pa.list_(pa.list_(pa.int8())),
            "boxes": pa.list_(pa.list_(pa.float32())),
        }
    )
    value = {"dtype": "int64", "_type": "Value"}
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    described = {
        "image": {"_type": "Image"},
        "frames": {"feature": {"_type": "Image"}, "_type": "List"},
        "sound": {"sampling_rate": 16_000, "_type": "Audio"},
        "label": label,
        "labels": {"feature": label, "length": -1, "_type": "Sequence"},
        "box": {"feature": value, "length": 4, "_type": "List"},
        "old": [value],
        "objects": {"feature": {"area": label}, "_type": "Sequence"},
        "grid": {"shape": [2, 3], "dtype": "int8", "_type": "Array2D"},
        "boxes": {
            "feature": {"feature": value, "length": 4, "_type": "List"},
            "_type": "List",
        },
    }
    names = {"names": ("cat", "dog")}
    path = spec("bytes", "bytes", "string")
    assert features_of(hugging_face(schema, described)) == {
        "image": spec("bytes", "bytes", "image"),
        "image.path": path,
        "frames": spec("bytes", "bytes", "image", shape=(None,)),
        "frames.path": spec("bytes", "bytes", "string", shape=(None,)),
        "sound": spec("bytes", "bytes", "audio"),
        "sound.path": path,
        "label": spec("int64", "int64", "class_label", **names),
        "labels": spec("int64", "int64", "class_label", shape=(None,), **names),
        "box": spec("float", "float32", "float", shape=(4,)),
        "old": spec("int64", "int8", "int8", shape=(None,)),
        "grid": spec("int64", "int8", "int8", shape=(2, 3)),
        "boxes": spec("float", "float32", "float", shape=(None, 4)),
        "objects.area": spec("int64", "int64", "class_label", shape=(None,), **names),
    }


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
    with pytest.raises(
        InputError, match=f"^column 'x.*no tf.train.Example holds {what}"
    ) as e:
        features_of(schema)
    assert "--columns" in e.value.cure
    assert "--record column:NAME" in e.value.cure
    assert [*features_of(schema, ["n"])] == ["n"]


def test_two_columns_of_one_name():
    for schema in (
        pa.schema([("a", pa.int8()), ("a", pa.int8())]),
        pa.schema({"a.b": pa.int8(), "a": pa.struct({"b": pa.int8()})}),
    ):
        with pytest.raises(InputError, match="would become the same feature"):
            features_of(schema)
