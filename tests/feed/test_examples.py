"""Examples decoded to arrays, compared with what TensorFlow makes of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import DecodeError, GristmillError, InputError
from tests.support import examples
from tests.support.examples import UNUSUAL, entry, example, message, parsed, tf_example
from tests.support.tensorflow_process import with_tensorflow

Fixed, Ragged = loader.FixedFeature, loader.RaggedFeature


def decode(features, records):
    return loader.ExampleDecoder(features)(records)


RAGGED = {
    "b": Ragged(bytes, optional=True),
    "f": Ragged("float32", optional=True),
    "i": Ragged("int64", optional=True),
}
LISTS = {
    "b": st.lists(examples.BYTES, max_size=4),
    "f": st.lists(examples.FLOATS, min_size=1, max_size=20),
    "i": st.lists(examples.INT64S, min_size=1, max_size=20),
    "some other": st.lists(examples.INT64S, min_size=1, max_size=5),
}
BATCHES = st.lists(st.fixed_dictionaries({}, optional=LISTS), max_size=12)


def as_lists(ragged) -> list:
    splits = ragged.row_splits.tolist()
    return [ragged.values[b:e].tolist() for b, e in itertools.pairwise(splits)]


@with_tensorflow
def ragged_in_tensorflow(records):
    """Returns values and row splits by name."""
    import tensorflow as tf

    spec = {
        "b": tf.io.RaggedFeature(tf.string),
        "f": tf.io.RaggedFeature(tf.float32),
        "i": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
    }
    return {
        name: (ragged.values.numpy(), ragged.row_splits.numpy())
        for name, ragged in tf.io.parse_example(records, spec).items()
    }


@given(BATCHES.filter(bool))
def test_tensorflow_parses_the_same(batch):
    records = [tf_example(features) for features in batch]
    ours = decode(RAGGED, records)
    for name, (values, row_splits) in ragged_in_tensorflow(records).items():
        np.testing.assert_array_equal(ours[name].values, values)
        np.testing.assert_array_equal(ours[name].row_splits, row_splits)


@with_tensorflow
def fixed_in_tensorflow(records, shape):
    import tensorflow as tf

    spec = {
        "i": tf.io.FixedLenFeature(shape, tf.int64, np.full(shape, -7)),
        "f": tf.io.FixedLenFeature(shape, tf.float32, np.full(shape, 0.5)),
        "b": tf.io.FixedLenFeature(shape, tf.string, np.full(shape, b"none")),
    }
    parsed = tf.io.parse_example(records, spec)
    return {name: tensor.numpy() for name, tensor in parsed.items()}


@given(st.data(), st.lists(st.integers(1, 3), max_size=3).map(tuple))
def test_fixed_features_are_tensorflows(data, shape):
    size = int(np.prod(shape, dtype=int))
    values = {
        "i": st.lists(examples.INT64S, min_size=size, max_size=size),
        "f": st.lists(examples.FLOATS, min_size=size, max_size=size),
        "b": st.lists(examples.BYTES, min_size=size, max_size=size),
    }
    batch = data.draw(
        st.lists(st.fixed_dictionaries({}, optional=values), min_size=1, max_size=6)
    )
    records = [tf_example(features) for features in batch]
    ours = decode(
        {
            "i": Fixed("int64", shape=shape, default=-7),
            "f": Fixed(np.float32, shape=shape, default=0.5),
            "b": Fixed(bytes, shape=shape, default=b"none"),
        },
        records,
    )
    for name, theirs in fixed_in_tensorflow(records, shape).items():
        assert ours[name].shape == (len(batch), *shape)
        np.testing.assert_array_equal(ours[name], theirs)


@pytest.mark.parametrize("large", [None, 0, 3, 7])
def test_many_numbers_of_all_sizes(large):
    # More than are decoded at once, with numbers beyond int32 in one row or none.
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 1 << rng.integers(1, 29, (8, 5000)))
    if large is not None:
        rows[large] = rng.integers(-(1 << 63), (1 << 63) - 1, 5000)
        rows[large, ::7] = (1 << 63) - 1
        rows[large, 1::7] = -(1 << 63)
    records = [tf_example({"i": row}) for row in rows]
    decoded = decode({"i": Fixed("int64", shape=(50, 100))}, records)["i"]
    np.testing.assert_array_equal(decoded.reshape(8, 5000), rows)
    np.testing.assert_array_equal(decode(RAGGED, records)["i"].values, rows.ravel())


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_protocol_buffers_allow(name):
    usual = tf_example({"i": [1], "f": [1.0], "b": [b"b"]})
    records = [usual, UNUSUAL[name], usual]
    decoded = decode(RAGGED, records)
    for feature in "ifb":
        expected = [parsed(record).get(feature, []) for record in records]
        assert as_lists(decoded[feature]) == expected


@given(st.data())
def test_damaged_records_decode_as_protocol_buffers_say_or_are_errors(data):
    batch = data.draw(st.lists(st.fixed_dictionaries(LISTS), min_size=1, max_size=3))
    records = [bytearray(tf_example(features)) for features in batch]
    for _ in range(data.draw(st.integers(1, 3))):
        record = data.draw(st.sampled_from(records))
        at = data.draw(st.integers(0, max(len(record) - 1, 0)))
        how = data.draw(st.sampled_from(["set", "cut", "insert", "delete"]))
        if how == "set" and record:
            record[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del record[at:]
        elif how == "insert":
            record[at:at] = data.draw(st.binary(max_size=12))
        else:
            del record[at : at + 1]
    records = [bytes(record) for record in records]
    try:
        decoded = decode(RAGGED, records)
    except GristmillError:
        return
    expected = []
    for record in records:
        try:
            expected.append(parsed(record))
        except Exception:
            # Features that are not decoded are not checked.
            return
    for name in RAGGED:
        for ours, theirs in zip(as_lists(decoded[name]), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs.get(name, []))


USUAL = tf_example({"x": [1, 2, 3], "name": [b"a"], "w": [0.5]})
X = {"x": Fixed("int64", shape=(3,))}
BAD = {
    "lacks": (
        X,
        tf_example({"y": [1], "z": [b""]}),
        ["lacks a feature: 'x'", "int64_list", "the features y, z", "default"],
    ),
    "of another kind": (
        X,
        tf_example({"x": [0.5, 1.0, 2.0]}),
        ["another kind of values: 'x'", "int64_list, for int64", "float_list"],
    ),
    "integers for floats": (
        {"w": Ragged("f4")},
        tf_example({"w": [1]}),
        ["int64_list"],
    ),
    "integers for bytes": (
        {"name": Fixed(bytes)},
        tf_example({"name": [1]}),
        ["int64_"],
    ),
    "too few": (
        X,
        tf_example({"x": [1, 2]}),
        ["another number of values: 'x'", "3, for shape (3,)", "got:      2"],
    ),
    "none beside a default": (
        {"x": Fixed("int64", shape=(3,), default=0)},
        example(entry("x", examples.int64_list([]))),
        ["3, for shape (3,)", "got:      0"],
    ),
    "beyond int32": (
        {"x": Fixed("int32", shape=(3,))},
        tf_example({"x": [1, 1 << 31, 3]}),
        ["cannot hold: 'x'", "-2147483648 to 2147483647", "got:      2147483648"],
    ),
    "beyond uint8": (
        {"x": Ragged("uint8")},
        tf_example({"x": [1, -1]}),
        ["uint8, 0 to 255", "got:      -1"],
    ),
    "beyond bool": (
        {"flag": Ragged(bool, optional=True)},
        tf_example({"flag": [2]}),
        ["bool, 0 to 1", "got:      2"],
    ),
    "cut": (X, USUAL[:-2], ["record is not a tf.train.Example"]),
    "text": (X, b"plain text", ["10 bytes: not"]),
    "another message": (
        X,
        USUAL + b"\x12\x00",
        ["Example has a field 2 of wire type 2", "gristmill head"],
    ),
    "ends within a number": (
        X,
        example(entry("x", message(3, message(1, b"\x01\x02\x83")))),
        ["cannot be decoded: 'x'", "ends within a number"],
    ),
    "long integer": (
        X,
        example(entry("x", message(3, message(1, b"\x81" * 10 + b"\x01")))),
        ["integer of more than 10 bytes"],
    ),
    "cut floats": (
        {"w": Ragged("float32")},
        example(entry("w", message(2, message(1, b"12345")))),
        ["truncated list of floats"],
    ),
    "broken bytes": (
        {"name": Ragged(bytes)},
        example(entry("name", message(1, b"\x0a\x05abc"))),
        ["broken list of bytes"],
    ),
}


@pytest.mark.parametrize(("features", "bad", "told"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("others", [2, 20])
def test_errors_name_record_feature_expected_and_got(features, bad, told, others):
    with pytest.raises(DecodeError) as caught:
        decode(features, [USUAL, USUAL, bad, *[USUAL] * others])
    for part in ["record 2 of the batch", *told]:
        assert part in str(caught.value)
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "datetime64[s]"}, "no feature .* of this type"),
        ({"dtype": "int12"}, "bytes, bool, an integer(.|\n)*'int12'"),
        ({"dtype": "int32", "shape": (0,)}, "dimension of shape"),
        ({"dtype": "int32", "shape": 5}, r"not a tuple(.|\n)*got:      5"),
        (
            {"dtype": "int32", "shape": (3,), "default": [1, 2]},
            r"default (.|\n)*\(3,\)",
        ),
        ({"dtype": "uint8", "default": 256}, "default does not fit"),
        ({"dtype": "int32", "default": 0.5}, "default does not fit"),
        ({"dtype": bytes, "default": "text"}, "default does not fit"),
        ({"dtype": "float32", "default": "x"}, "default does not fit"),
    ],
)
def test_specs_that_make_no_sense(given, message):
    with pytest.raises(InputError, match=message):
        Fixed(**given)
    with pytest.raises(InputError, match="feature 'x' is not described"):
        loader.ExampleDecoder({"x": "int32"})


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [-128, 127]),
        ("uint16", [0, 65535]),
        ("uint64", [0, (1 << 63) - 1]),
        ("bool", [0, 1]),
        ("float16", [0.5, -2.0]),
        ("float64", [0.5, 1e30]),
        ("S", [b"a", b"\0"]),
    ],
)
def test_arrays_have_the_dtype_that_was_asked_for(dtype, values):
    record = tf_example({"x": values})
    arrays = [
        decode({"x": Fixed(dtype, shape=(2,))}, [record, record])["x"],
        decode({"x": Ragged(dtype)}, [record, record])["x"].values.reshape(2, 2),
    ]
    for array in arrays:
        assert array.dtype == (object if dtype == "S" else dtype)
        assert (
            array.tolist() == [np.array(values, np.float32).tolist()] * 2
            if (dtype.startswith("float"))
            else array.tolist() == [values] * 2
        )
        array[0] = array[1]  # They can be written to.
