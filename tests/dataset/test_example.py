"""tf.train.Example decoded without TensorFlow, against TensorFlow."""

import contextlib

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.example import decode_example

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = st.one_of(
    st.lists(st.binary(max_size=20), max_size=5),
    st.lists(INT64, max_size=5),
    st.lists(st.floats(width=32, allow_nan=False), max_size=5),
)


def feature_of(values):
    if values and isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
def test_decodes_what_tensorflow_encodes(features):
    example = tf.train.Example(
        features=tf.train.Features(
            feature={name: feature_of(values) for name, values in features.items()}
        )
    )
    assert decode_example(example.SerializeToString()) == features


def test_unset_feature_is_an_empty_list():
    example = tf.train.Example()
    example.features.feature["nothing"].SetInParent()
    assert decode_example(example.SerializeToString()) == {"nothing": []}


@pytest.mark.parametrize(
    "record",
    [b"plain text", b"\x0a", b"\x0a\xff", b"\xff" * 12, b"\x08\x01", b"\x12\x00"],
)
def test_what_is_no_example(record):
    with pytest.raises(ValueError, match=r"not a|varint|fields"):
        decode_example(record)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_a_value_error(record):
    with contextlib.suppress(ValueError):
        decode_example(record)
