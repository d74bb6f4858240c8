"""Records decoded to arrays: examples as TensorFlow does, and tokens."""

import contextlib
import datetime
import itertools
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.message import DecodeError as DecodeFailed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gristmill import loader
from gristmill.dataset import DecodeError, GristmillError, InputError
from gristmill.transforms import RecordOptions
from tests.support import examples
from tests.support.conversion import convert, job_of
from tests.support.datasets import convert as convert_records
from tests.support.examples import UNUSUAL, entry, example, message, parsed, tf_example
from tests.support.tensorflow_process import with_tensorflow
from tests.support.told import told

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
BATCHES = st.lists(st.fixed_dictionaries({}, optional=LISTS), min_size=1, max_size=12)


def as_lists(ragged):
    splits = ragged.row_splits.tolist()
    return [ragged.values[b:e].tolist() for b, e in itertools.pairwise(splits)]


def check_lists(records):
    """Checks that lists are those that the library of TensorFlow parses."""
    decoded, theirs = decode(RAGGED, records), [*map(parsed, records)]
    for name in RAGGED:
        assert as_lists(decoded[name]) == [found.get(name, []) for found in theirs]


@given(batch=BATCHES)
def test_lists_are_those_of_protocol_buffers(batch):
    check_lists([*map(tf_example, batch)])


@with_tensorflow
def fixed_in_tensorflow(records, dtype, shape, default):
    """Returns the array of the feature `x`."""
    import tensorflow as tf

    spec = tf.io.FixedLenFeature(shape, dtype, np.full(shape, default))
    return tf.io.parse_example(records, {"x": spec})["x"].numpy()


@pytest.mark.parametrize(
    ("dtype", "values", "default"),
    [
        ("string", examples.BYTES, b"none"),
        ("float32", examples.FLOATS, 0.5),
        ("int64", examples.INT64S, -7),
    ],
)
@given(data=st.data(), shape=st.lists(st.integers(1, 3), max_size=3).map(tuple))
def test_fixed_features_are_those_of_tensorflow(dtype, values, default, data, shape):
    size = int(np.prod(shape, dtype=int))
    value = st.lists(values, min_size=size, max_size=size)
    row = st.fixed_dictionaries({}, optional={"x": value})
    records = [*map(tf_example, data.draw(st.lists(row, min_size=1, max_size=6)))]
    ours_dtype = bytes if dtype == "string" else dtype
    feature = Fixed(ours_dtype, shape=shape, default=default)
    ours = decode({"x": feature}, records)["x"]
    assert ours.shape == (len(records), *shape)
    theirs = fixed_in_tensorflow(records, dtype, shape, default)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("large", [None, 0, 3, 7])
def test_many_numbers_of_all_sizes(large):
    # More than are decoded at once, with numbers beyond int32 in one row or none.
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 1 << rng.integers(1, 29, (8, 5000)))
    if large is not None:
        rows[large] = rng.integers(-(1 << 63), 1 << 63, 5000)
    records = [tf_example({"i": row}) for row in rows]
    decoded = decode({"i": Fixed("int64", shape=(50, 100))}, records)["i"]
    np.testing.assert_array_equal(decoded.reshape(8, 5000), rows)
    np.testing.assert_array_equal(decode(RAGGED, records)["i"].values, rows.ravel())


@pytest.mark.parametrize("name", UNUSUAL)
def test_whatever_protocol_buffers_allow(name):
    usual = tf_example({"i": [1], "f": [1.0], "b": [b"b"]})
    check_lists([usual, UNUSUAL[name], usual])


@given(data=st.data(), batch=BATCHES)
def test_damaged_records_decode_as_others_do_or_are_errors(data, batch):
    records = [*map(bytearray, map(tf_example, batch))]
    for _ in range(data.draw(st.integers(1, 3))):
        record = data.draw(st.sampled_from(records))
        at = data.draw(st.integers(0, len(record)))
        end = data.draw(st.sampled_from([at, at + 1, len(record)]))
        record[at:end] = data.draw(st.binary(max_size=12))
    try:
        decoded = decode(RAGGED, [*map(bytes, records)])
    except GristmillError:
        return
    for row, record in enumerate(records):
        # Features that are not decoded are not checked.
        with contextlib.suppress(DecodeFailed):
            theirs = parsed(bytes(record))
            for name in RAGGED:
                ours = as_lists(decoded[name])[row]
                np.testing.assert_array_equal(ours, theirs.get(name, []))


USUAL = tf_example({"x": [1, 2, 3], "name": [b"a"], "w": [0.5]})
X = {"x": Fixed("int64", shape=(3,))}
BAD = {
    "lacks": (
        X,
        tf_example({"y": [1], "z": [b""]}),
        "lacks a feature: 'x'.*int64_list.*the features y, z.*default",
    ),
    "of another kind": (
        X,
        tf_example({"x": [0.5, 1.0, 2.0]}),
        "another kind of values: 'x'.*int64_list, for int64.*float_list",
    ),
    "too few": (
        X,
        tf_example({"x": [1, 2]}),
        r"another number of values: 'x'.*3, for shape \(3,\).*got:      2",
    ),
    "none beside a default": (
        {"x": Fixed("int64", shape=(3,), default=0)},
        example(entry("x", examples.int64_list([]))),
        r"3, for shape \(3,\).*got:      0",
    ),
    "beyond int32": (
        {"x": Fixed("int32", shape=(3,))},
        tf_example({"x": [1, 1 << 31, 3]}),
        "cannot hold: 'x'.*-2147483648 to 2147483647.*got:      2147483648",
    ),
    "beyond uint8": (
        {"x": Ragged("uint8")},
        tf_example({"x": [-1, 1]}),
        "uint8, 0 to 255.*got:      -1",
    ),
    "cut": (X, USUAL[:-2], "record is not a tf.train.Example"),
    "text": (X, b"plain text", "10 bytes: not"),
    "another message": (
        X,
        USUAL + b"\x12\x00",
        "Example has a field 2 of wire type 2.*gristmill head",
    ),
    "ends within a number": (
        X,
        example(entry("x", message(3, message(1, b"\x01\x02\x83")))),
        "cannot be decoded: 'x'.*ends within a number",
    ),
    "long integer": (
        X,
        example(entry("x", message(3, message(1, b"\x81" * 10 + b"\x01")))),
        "integer of more than 10 bytes",
    ),
    "broken bytes": (
        {"name": Ragged(bytes)},
        example(entry("name", message(1, b"\x0a\x05abc"))),
        "broken list of bytes",
    ),
}


@pytest.mark.parametrize(("features", "bad", "says"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("others", [2, 20])
def test_errors_name_record_feature_expected_and_got(features, bad, says, others):
    with told(DecodeError, "record 2 of the batch", match=f"(?s){says}", row=2):
        decode(features, [USUAL, USUAL, bad, *[USUAL] * others])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "int12"}, "bytes, bool, an integer(.|\n)*'int12'"),
        ({"dtype": "int32", "shape": (0,)}, "dimension of shape"),
        ({"dtype": "int32", "shape": 5}, r"not a tuple(.|\n)*got:      5"),
        ({"dtype": "i4", "shape": (3,), "default": [1, 2]}, r"default (.|\n)*\(3,\)"),
        ({"dtype": "uint8", "default": 256}, "default does not fit"),
        ({"dtype": "float32", "default": "x"}, "default does not fit"),
    ],
)
def test_descriptions_that_make_no_sense(given, message):
    with pytest.raises(InputError, match=message):
        Fixed(**given)
    with pytest.raises(InputError, match="feature 'x' is not described"):
        loader.ExampleDecoder({"x": "int32"})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int8", [-128, 127]),
        ("uint64", [0, (1 << 63) - 1]),
        ("bool", [0, 1]),
        ("float64", [0.5, 2.0**99]),
        ("S", [b"a", b"\0"]),
    ],
)
def test_arrays_have_the_dtype_that_was_asked_for(dtype, values):
    records = [tf_example({"x": values})] * 2
    for array in (
        decode({"x": Fixed(dtype, shape=(2,))}, records)["x"],
        decode({"x": Ragged(dtype)}, records)["x"].values.reshape(2, 2),
    ):
        assert array.dtype == (object if dtype == "S" else dtype)
        assert array.tolist() == [values] * 2
        array[0] = array[1]  # They can be written to.


# --- Described by the dataset itself.


DAY = datetime.date(2026, 1, 31)
TABLE = pa.table(
    {
        "id": pa.array([7, 8, 250], pa.uint8()),
        "score": pa.array([0.5, None, 2.0], pa.float64()),
        "text": ["a", "é", ""],
        "tokens": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "box": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        "image": [{"bytes": b"JPEG", "path": None}] * 3,
        "day": pa.array([DAY] * 3),
        "done": [True, False, True],
    }
)


def of_table(folder, table, output="out", **options):
    path = folder / f"{len([*folder.iterdir()])}.parquet"
    pq.write_table(table, path)
    records = RecordOptions(columns=tuple(table.column_names))
    convert(job_of(str(path), folder / output, records=records, **options))
    return folder / output


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return loader.open(of_table(tmp_path_factory.mktemp("table"), TABLE))


def test_no_schema_by_hand(dataset):
    names = [name for name in dataset.features if name != "image.path"]
    decoder = loader.ExampleDecoder.of(dataset, names, defaults={"score": -1.0})
    batch = pickle.loads(pickle.dumps(decoder))(dataset[:])
    assert [*batch] == names
    tokens = batch.pop("tokens")
    assert as_lists(tokens) == [[1, 2], [], []]
    batch["day"] = batch["day"].astype("datetime64[D]")
    found = {name: [str(each.dtype), each.tolist()] for name, each in batch.items()}
    assert found | {"tokens": str(tokens.values.dtype)} == {
        "id": ["uint8", [7, 8, 250]],
        "score": ["float32", [0.5, -1.0, 2.0]],
        "text": ["object", [b"a", "é".encode(), b""]],
        "tokens": "int32",
        "box": ["float32", [[1, 2], [3, 4], [5, 6]]],
        "image": ["object", [b"JPEG"] * 3],
        "day": ["datetime64[D]", [DAY] * 3],
        "done": ["bool", [True, False, True]],
    }


def test_a_null_without_a_default_says_how_to_give_one(dataset):
    message = (
        r"(?s)record lacks a feature: 'score'.*record 1 of.*by defaults={'score': "
    )
    with pytest.raises(DecodeError, match=message):
        loader.ExampleDecoder.of(dataset, ["id", "score"])(dataset[:])


@pytest.mark.parametrize(
    ("names", "defaults", "message"),
    [
        (["id", "no"], None, "the dataset has no feature 'no'"),
        (None, {"no": 1}, "a default is for no feature that is decoded: 'no'"),
        (["id"], {"score": 1.0}, "no feature that is decoded: 'score'"),
        (None, {"tokens": 0}, "a list needs no default: 'tokens'"),
        (None, {"id": 256}, "default does not fit"),
    ],
)
def test_what_cannot_be_decoded(dataset, names, defaults, message):
    with pytest.raises(InputError, match=message):
        loader.ExampleDecoder.of(dataset, names, defaults=defaults)


def test_editions_of_other_columns(tmp_path):
    schema = pa.schema(
        [pa.field("id", pa.int8(), nullable=False), ("text", pa.string())]
    )
    first = pa.table([pa.array([1, 2], pa.int8()), pa.array(["a", "b"])], schema=schema)
    second = pa.table({"id": [300, None], "text": ["c", "d"], "new": [1.5, 2.5]})
    output = of_table(tmp_path, first)
    of_table(tmp_path, second, appends=True)
    alone = of_table(tmp_path, first, "alone")
    dataset = loader.open(output)
    features = dataset.features
    assert (features["id"].dtype, features["new"].optional) == ("int64", True)
    decoder = loader.ExampleDecoder.of(dataset, defaults={"id": -1, "new": 0.0})
    batch = decoder(dataset[:])
    assert {name: array.tolist() for name, array in batch.items()} == {
        "id": [1, 2, 300, -1],
        "text": [b"a", b"b", b"c", b"d"],
        "new": [0, 0, 1.5, 2.5],
    }
    assert loader.open([alone, output]).features == features
    assert loader.open(output, edition=1).features["id"].dtype == "int8"


def test_a_dataset_that_says_nothing(tmp_path):
    path = convert_records(tmp_path, [[b"a"]])
    for silent in map(loader.open, (path, f"{path}/*.array_record*")):
        assert silent.features is None
        message = r"(?s)does not say what features.*FixedFeature\(dtype\)"
        with pytest.raises(InputError, match=message):
            loader.ExampleDecoder.of(silent)


# --- Tokens.


@given(data=st.data(), rows=st.integers(0, 5), length=st.integers(1, 9))
def test_tokens_come_back_as_they_were_stored(data, rows, length):
    stored = data.draw(st.sampled_from(["uint8", "uint16", "int16", "int32"]))
    tokens = data.draw(hnp.arrays(stored, (rows, length), elements=st.integers(0, 127)))
    little = np.dtype(stored).newbyteorder("<")
    records = [row.astype(little).tobytes() for row in tokens]
    decoded = loader.TokenDecoder(length=length, stored=stored)(records)
    assert (decoded.dtype, decoded.shape) == ("int32", (rows, length))
    np.testing.assert_array_equal(decoded, tokens)
    decoded[:] = 0  # It can be written to.


def test_a_row_of_another_length_is_named():
    message = (
        r"number of tokens(.|\n)*record 1 of the batch\n"
        r"  expected: 4 bytes: 2 tokens as uint16\n  got:      3 bytes"
    )
    with told(DecodeError, match=message, row=1):
        loader.TokenDecoder(length=2, stored="uint16")([bytes(4), bytes(3)])
    for stored in ("uint32", "int64", "float16"):
        with pytest.raises(InputError, match="fit into int32"):
            loader.TokenDecoder(length=1, stored=stored)
