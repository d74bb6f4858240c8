"""tf.train.Example decoded without TensorFlow, against TensorFlow."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.example import canonical_example, decode_example
from tests.support import examples
from tests.support.examples import UNUSUAL, entry, example, message, parsed, tf_example

VALUES = st.one_of(
    st.lists(examples.BYTES, max_size=5),
    st.lists(examples.INT64S, max_size=5),
    st.lists(examples.FLOATS, max_size=5),
)
FEATURES = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)


@given(FEATURES)
def test_decodes_what_tensorflow_encodes(features):
    assert decode_example(tf_example(features)) == features


@given(FEATURES)
def test_what_tensorflow_encodes_is_canonical(features):
    record = tf_example(features)
    again = canonical_example(record)
    assert len(again) == len(record)
    assert decode_example(again) == features


def test_unset_feature_is_an_empty_list():
    unset = tf.train.Example()
    unset.features.feature["nothing"].SetInParent()
    assert decode_example(unset.SerializeToString()) == {"nothing": []}


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_protocol_buffers_allow(name):
    record = UNUSUAL[name]
    assert decode_example(record) == parsed(record)
    assert decode_example(canonical_example(record)) == parsed(record)


@pytest.mark.parametrize(
    "record",
    [
        b"plain text",
        b"\x0a",
        b"\x0a\xff",
        b"\xff" * 12,
        b"\x08\x01",
        b"\x12\x00",
        example(entry("x", message(4, b""))),
        example(entry("x", message(2, message(1, b"12345")))),
        example(entry("x", message(3, message(1, b"\x01\x80")))),
        example(entry("x", message(3, message(1, b"\x80" * 10 + b"\x01")))),
        example(entry("x", message(3, b"\x0d1234"))),
        example(entry("x", message(1, b"\x08\x01"))),
        example(message(1, message(1, b"\xff") + message(2, b""))),
    ],
)
def test_what_is_no_example(record):
    with pytest.raises(ValueError, match=r"not a|varint|field|list of"):
        decode_example(record)


@given(st.data(), FEATURES)
def test_damaged_records_are_errors_or_what_protocol_buffers_say(data, features):
    record = bytearray(tf_example(features))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(record)))
        record[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=3)
        )
    with contextlib.suppress(ValueError):
        decoded = decode_example(bytes(record))
        theirs = parsed(bytes(record))
        assert decoded.keys() == theirs.keys()
        for name, values in decoded.items():
            np.testing.assert_array_equal(values, theirs[name])


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_a_value_error(record):
    with contextlib.suppress(ValueError):
        decode_example(record)
