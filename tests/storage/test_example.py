"""tf.train.Example without TensorFlow, against TensorFlow and TFDS."""

import contextlib
import http
import json
import types

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gristmill.dataset import InputError, encode_example
from gristmill.dataset.base.example import canonical_example, decode_example
from gristmill.dataset.metadata.tfds import parse_tfds_features
from gristmill.loader import ExampleDecoder
from tests.support.examples import BYTES, FLOATS, INT64S, UNUSUAL, parsed, tf_example
from tests.support.tensorflow_process import with_tensorflow
from tests.support.told import told

VALUES = st.one_of(*(st.lists(each, max_size=5) for each in (BYTES, INT64S, FLOATS)))
FEATURES = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_protocol_buffers_allow(name):
    record = UNUSUAL[name]
    assert decode_example(record) == parsed(record)
    assert decode_example(canonical_example(record)) == parsed(record)


@given(st.data(), FEATURES)
def test_damaged_records_are_errors_or_what_others_read(data, features):
    record = bytearray(tf_example(features))
    assert decode_example(bytes(record)) == features
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(record)))
        end = at + data.draw(st.integers(0, 2))
        record[at:end] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(ValueError):
        np.testing.assert_equal(decode_example(bytes(record)), parsed(bytes(record)))


GIVEN = st.one_of(
    *(st.text(max_size=8), BYTES, INT64S, st.booleans(), FLOATS),
    st.lists(BYTES | st.text(max_size=4), max_size=20),
    st.lists(INT64S | st.booleans(), max_size=40),
    st.lists(FLOATS, max_size=40).map(tuple),
    npst.arrays(
        st.sampled_from(["?", "u1", "<i2", ">i4", "i8", "f2", ">f4", "<f4"]),
        npst.array_shapes(max_dims=3, max_side=4, min_side=0),
    ),
)


def as_lists(value):
    """What a reader gets for a value that was given."""
    if isinstance(value, np.ndarray):
        return value.reshape(-1).tolist()
    values = value if isinstance(value, list | tuple) else [value]
    return [v.encode() if isinstance(v, str) else v for v in values]


@given(st.dictionaries(st.text(max_size=8), GIVEN, max_size=6))
def test_tensorflow_and_we_read_what_was_given(features):
    record = encode_example(features)
    expected = {name: as_lists(value) for name, value in features.items()}
    np.testing.assert_equal(parsed(record), expected)
    np.testing.assert_equal(decode_example(record), expected)


@given(FEATURES, st.randoms())
def test_the_bytes_are_those_of_tensorflow_in_any_order(features, random):
    # TensorFlow's empty list has a kind, which an array has as well.
    features = {name: values or np.array([], "S1") for name, values in features.items()}
    items = list(features.items())
    random.shuffle(items)
    assert encode_example(dict(items)) == tf_example(features)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.str_("a"), [b"a"]),
        (np.uint64(3), [3]),
        (np.float64(0.5), [0.5]),
        ([np.int8(-1), 2, True], [-1, 2, 1]),
        (np.array(["text"]), [b"text"]),
        (np.array([b"a", b"bc"]), [b"a", b"bc"]),
        (np.array(["a", b"b"], object), [b"a", b"b"]),
        (np.array([1.5], ml_dtypes.bfloat16), [1.5]),
        (bytearray(b"a"), [b"a"]),
        ([memoryview(b"ab")], [b"ab"]),
        (http.HTTPStatus.OK, [200]),
        (jnp.arange(3), [0, 1, 2]),
    ],
)
def test_values_of_other_types(value, expected):
    assert parsed(encode_example({"x": value})) == {"x": expected}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "it is None"),
        ([1, None], r"it is None(.|\n)*None at \[1\]"),
        ([1, 2.0], r"several kinds(.|\n)*float and int"),
        (["a", 1], "several kinds"),
        ([[1], [2]], r"nested(.|\n)*list \[1\] at \[0\]"),
        ([np.zeros(2)], "nested"),
        ({"a": 1}, "no list of a feature"),
        (1 << 63, f"64-bit integer(.|\\n)*{1 << 63}"),
        ([0] * 20 + [-(1 << 63) - 1], "64-bit integer"),
        (np.array([0, 1 << 63], np.uint64), "64-bit integer"),
        (1e39, r"32-bit float(.|\n)*1e\+39"),
        (np.array([0, -1e39]), r"32-bit float(.|\n)*-1e\+39"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (np.array([1j]), "complex"),
        (np.zeros(2, [("a", "i4")]), "dtype"),
        ("\ud800", "not Unicode"),
    ],
)
def test_an_error_names_the_feature(value, message):
    with told(InputError, match=message, where="feature 'odd'"):
        encode_example({"fine": 1, "odd": value})


@with_tensorflow
def made_by_tfds(folder):
    """Writes features.json, and returns two records."""
    import tensorflow_datasets as tfds

    f = tfds.features
    box = f.BBox(0.0, 0.25, 0.5, 1.0)
    described = {
        "wide": (np.float64, 0.5),
        "image": (f.Image(shape=(2, 2, 3)), np.zeros((2, 2, 3), np.uint8)),
        "nested": ({"x": np.uint8, "y": {"z": f.Text()}}, {"x": 250, "y": {"z": "d"}}),
        "objects": (
            f.Sequence({"name": f.Text(), "box": f.BBoxFeature()}),
            [{"name": "a", "box": box}] * 2,
        ),
        # What TFDS keeps in a way of its own.
        "ragged": (f.Sequence(f.Sequence(np.int64)), [[1], [2, 3]]),
    }
    feature = f.FeaturesDict({name: kind for name, (kind, _) in described.items()})
    feature.save_config(folder)
    values = {name: value for name, (_, value) in described.items()}
    return [feature.serialize_example(values | more) for more in ({}, {"objects": []})]


@pytest.mark.slow
def test_records_of_tfds_decode_without_a_schema_by_hand(tmp_path):
    records = made_by_tfds(tmp_path)
    features = parse_tfds_features(json.loads((tmp_path / "features.json").read_text()))
    assert "ragged" not in features
    assert (features["image"].type, features["wide"].type) == ("image", "double")
    batch = ExampleDecoder.of(types.SimpleNamespace(features=features))(records)
    assert (batch["nested/x"].dtype, batch["wide"].dtype) == (np.uint8, np.float32)
    assert batch["image"][0].startswith(b"\x89PNG")
    expected = {"nested/x": 250, "nested/y/z": b"d", "wide": 0.5}
    for name, value in expected.items():
        assert batch[name].tolist() == [value] * 2
    names, boxes = batch["objects/name"], batch["objects/box"]
    assert names.values.tolist() == [b"a", b"a"]
    assert boxes.values.tolist() == [0, 0.25, 0.5, 1] * 2
    assert boxes.row_splits.tolist() == [0, 8, 8]
