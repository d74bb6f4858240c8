"""tf.train.Example decoded and encoded without TensorFlow, against TensorFlow."""

import contextlib
import http

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.example import (
    canonical_example,
    decode_example,
    encode_example,
)
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


SCALARS = st.one_of(
    st.text(max_size=8), examples.BYTES, examples.INT64S, st.booleans(), examples.FLOATS
)
GIVEN = st.one_of(
    SCALARS,
    st.lists(examples.BYTES | st.text(max_size=4), max_size=20),
    st.lists(examples.INT64S | st.booleans(), max_size=40),
    st.lists(examples.FLOATS, max_size=40).map(tuple),
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


class TestEncode:
    @given(st.dictionaries(st.text(max_size=8), GIVEN, max_size=6))
    def test_tensorflow_and_we_read_what_was_given(self, features):
        record = encode_example(features)
        expected = {name: as_lists(value) for name, value in features.items()}
        np.testing.assert_equal(parsed(record), expected)
        np.testing.assert_equal(decode_example(record), expected)

    @given(FEATURES, st.randoms())
    def test_the_bytes_are_those_of_tensorflow_in_any_order(self, features, random):
        # TensorFlow's empty list has a kind, which an array has as well.
        features = {
            name: values or np.array([], "S1") for name, values in features.items()
        }
        items = list(features.items())
        random.shuffle(items)
        assert encode_example(dict(items)) == tf_example(features)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (np.str_("a"), [b"a"]),
            (np.uint64(3), [3]),
            (np.float64(0.5), [0.5]),
            (np.bool_(True), [1]),
            ([np.int8(-1), 2, True], [-1, 2, 1]),
            ([np.float16(0.5), 1.5], [0.5, 1.5]),
            (np.array("text"), [b"text"]),
            (np.array([b"a", b"bc"]), [b"a", b"bc"]),
            (np.array(["a", b"b"], object), [b"a", b"b"]),
            (np.array([[1.5], [2.5]], ml_dtypes.bfloat16), [1.5, 2.5]),
            (np.array([-1, 3], ml_dtypes.int4).astype("i1"), [-1, 3]),
            (bytearray(b"a"), [b"a"]),
            ([memoryview(b"ab")], [b"ab"]),
            (http.HTTPStatus.OK, [200]),
            (float("inf"), [float("inf")]),
            (jnp.arange(3), [0, 1, 2]),
            (list(range(-20, 20)), list(range(-20, 20))),
            ([-(1 << 63), (1 << 63) - 1], [-(1 << 63), (1 << 63) - 1]),
        ],
    )
    def test_values_of_other_types(self, value, expected):
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
            (object(), "no list of a feature"),
        ],
    )
    def test_an_error_names_the_feature(self, value, message):
        with pytest.raises(InputError, match=message) as caught:
            encode_example({"fine": 1, "odd": value})
        assert caught.value.where == "feature 'odd'"
