"""Decoders made of what a dataset says of itself."""

import datetime
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.metadata.features import encode_features
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import AppendOptions, ConvertOptions
from gristmill.transforms.tables.example_rows import encode_rows
from gristmill.transforms.tables.table_features import features_of
from tests.support.datasets import convert, describe

DAY = datetime.date(2026, 1, 31)
BATCH = pa.record_batch(
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


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    features = features_of(BATCH.schema)
    path = convert(tmp_path_factory.mktemp("d"), [encode_rows(BATCH, features)])
    describe(path, encode_features(features))
    return loader.open(path)


def test_no_schema_by_hand(dataset):
    names = [name for name in dataset.features if name != "image.path"]
    decode = loader.ExampleDecoder.of(dataset, names, defaults={"score": -1.0})
    batch = pickle.loads(pickle.dumps(decode))(dataset[:])
    assert [*batch] == names
    assert batch["id"].dtype == np.uint8
    assert batch["id"].tolist() == [7, 8, 250]
    assert batch["score"].dtype == np.float32
    assert batch["score"].tolist() == [0.5, -1.0, 2.0]
    assert batch["text"].tolist() == [b"a", "é".encode(), b""]
    assert batch["tokens"].values.dtype == np.int32
    assert batch["tokens"].values.tolist() == [1, 2]
    assert batch["tokens"].row_splits.tolist() == [0, 2, 2, 2]
    assert batch["box"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert batch["image"].tolist() == [b"JPEG"] * 3
    assert batch["day"].astype("datetime64[D]").tolist() == [DAY] * 3
    assert batch["done"].tolist() == [True, False, True]


def test_a_null_without_a_default_is_an_error_that_says_how_to_give_one(dataset):
    with pytest.raises(DecodeError, match="record lacks a feature: 'score'") as error:
        loader.ExampleDecoder.of(dataset, ["id", "score"])(dataset[:])
    assert error.value.row == 1
    assert "by defaults={'score': ...}" in error.value.cure


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
    first = pa.table(
        [pa.array([1, 2], pa.int8()), pa.array(["a", "b"])],
        schema=pa.schema(
            [pa.field("id", pa.int8(), nullable=False), ("text", pa.string())]
        ),
    )
    second = pa.table({"id": [300, None], "text": ["c", "d"], "new": [1.5, 2.5]})
    pq.write_table(first, tmp_path / "first.parquet")
    pq.write_table(second, tmp_path / "second.parquet")
    output = str(tmp_path / "out")
    given = ConvertOptions(input=(str(tmp_path / "first.parquet"),), output=output)
    run_conversion(**conversion_of(given)._asdict())
    assert loader.open(output).features["id"].dtype == "int8"
    more = AppendOptions(input=(str(tmp_path / "second.parquet"),), output=output)
    run_conversion(**conversion_of(more)._asdict())
    dataset = loader.open(output)
    assert (dataset.features["id"].dtype, dataset.features["new"].optional) == (
        "int64",
        True,
    )
    decode = loader.ExampleDecoder.of(dataset, defaults={"id": -1, "new": 0.0})
    batch = decode(dataset[:])
    assert batch["id"].tolist() == [1, 2, 300, -1]
    assert batch["text"].tolist() == [b"a", b"b", b"c", b"d"]
    assert batch["new"].tolist() == [0, 0, 1.5, 2.5]
    again = str(tmp_path / "again")
    given = ConvertOptions(input=(output,), output=again)
    run_conversion(**conversion_of(given)._asdict())
    assert loader.open(again).features == dataset.features
    alone = str(tmp_path / "alone")
    given = ConvertOptions(input=(str(tmp_path / "first.parquet"),), output=alone)
    run_conversion(**conversion_of(given)._asdict())
    assert loader.open([alone, output]).features == dataset.features
    assert loader.open(output, edition=1).features["id"].dtype == "int8"


def test_a_dataset_that_says_nothing(tmp_path):
    path = convert(tmp_path, [[b"a"]])
    plain = loader.open(path)
    files = loader.open(f"{path}/*.array_record*")
    assert plain.features is None
    assert files.features is None
    for silent in (plain, files):
        with pytest.raises(InputError, match="does not say what features") as error:
            loader.ExampleDecoder.of(silent)
        assert "FixedFeature(dtype)" in error.value.cure
