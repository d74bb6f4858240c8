"""What TFDS says of its records, compared with the records that it writes."""

import json

import numpy as np
import pytest

from gristmill.dataset.metadata.features import FeatureSpec
from gristmill.dataset.metadata.tfds import parse_tfds_features
from gristmill.loader import ExampleDecoder
from tests.support.tensorflow_process import with_tensorflow


class Described:
    def __init__(self, features):
        self.features = features


@with_tensorflow
def made_by_tfds(folder):
    """Writes features.json, and returns two records."""
    import tensorflow_datasets as tfds

    f = tfds.features
    feature = f.FeaturesDict(
        {
            "id": np.int64,
            "small": f.Scalar(np.uint8),
            "done": np.bool_,
            "wide": np.float64,
            "text": f.Text(),
            "label": f.ClassLabel(names=["cat", "dog"]),
            "image": f.Image(shape=(2, 2, 3)),
            "vector": f.Tensor(shape=(3,), dtype=np.float32),
            "points": f.Tensor(shape=(None, 2), dtype=np.int32),
            "zipped": f.Tensor(shape=(2, 2), dtype=np.int32, encoding="zlib"),
            "nested": {"x": np.int32, "y": {"z": f.Text()}},
            "tokens": f.Sequence(np.int32),
            "objects": f.Sequence({"name": f.Text(), "box": f.BBoxFeature()}),
            "three": f.Sequence(np.int64, length=3),
            "both": f.Translation(["en", "fr"]),
            # What TFDS keeps in ways of its own.
            "ragged": f.Sequence(f.Sequence(np.int64)),
            "video": f.Video(shape=(None, 2, 2, 3)),
        }
    )
    feature.save_config(folder)
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    box = tfds.features.BBox(0.0, 0.25, 0.5, 1.0)

    def record(number, items):
        example = {
            "id": number,
            "small": 250,
            "done": number == 1,
            "wide": 0.5,
            "text": f"text {number}",
            "label": "dog",
            "image": pixels,
            "vector": [1.0, 2.0, 3.0],
            "points": np.full((items, 2), 4, np.int32),
            "zipped": [[1, 2], [3, 4]],
            "nested": {"x": -5, "y": {"z": "deep"}},
            "tokens": [7] * items,
            "objects": [{"name": "a", "box": box}] * items,
            "three": [1, 2, 3],
            "both": {"en": "yes", "fr": "oui"},
            "ragged": [[1], [2, 3]],
            "video": [pixels],
        }
        return feature.serialize_example(example)

    return [record(0, 2), record(1, 0)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    return folder / "features.json", made_by_tfds(folder)


@pytest.fixture(scope="module")
def records(made):
    return made[1]


@pytest.fixture(scope="module")
def features(made):
    return parse_tfds_features(json.loads(made[0].read_bytes()))


@pytest.mark.slow
def test_records_of_tfds_decode_without_a_schema_by_hand(features, records):
    assert {"ragged", "video"}.isdisjoint(features)
    batch = ExampleDecoder.of(Described(features))(records)
    assert batch["id"].tolist() == [0, 1]
    assert (batch["small"].dtype, batch["small"].tolist()) == (np.uint8, [250, 250])
    assert batch["done"].tolist() == [False, True]
    assert (batch["wide"].dtype, batch["wide"].tolist()) == (np.float32, [0.5, 0.5])
    assert batch["text"].tolist() == [b"text 0", b"text 1"]
    assert batch["label"].tolist() == [1, 1]
    assert batch["image"][0].startswith(b"\x89PNG")
    assert batch["vector"].tolist() == [[1, 2, 3]] * 2
    assert batch["points"].values.tolist() == [4] * 4
    assert batch["points"].row_splits.tolist() == [0, 4, 4]
    assert isinstance(batch["zipped"][0], bytes)
    assert batch["nested/x"].tolist() == [-5, -5]
    assert batch["nested/y/z"].tolist() == [b"deep"] * 2
    assert batch["tokens"].values.tolist() == [7, 7]
    assert batch["objects/name"].values.tolist() == [b"a", b"a"]
    assert batch["objects/box"].values.tolist() == [0, 0.25, 0.5, 1] * 2
    assert batch["three"].tolist() == [[1, 2, 3]] * 2
    assert batch["both/fr"].tolist() == [b"oui"] * 2


@pytest.mark.slow
def test_what_values_mean(features):
    assert features["image"] == FeatureSpec(kind="bytes", dtype="bytes", type="image")
    assert features["wide"].type == "double"
    assert features["label"].type == "class_label"


def test_features_of_a_file():
    def tensor(dtype, *sizes):
        return {"tensor": {"shape": {"dimensions": [*sizes]}, "dtype": dtype}}

    def sequence(feature, length="-1"):
        return {"sequence": {"feature": feature, "length": length}}

    features = {
        "text": {"pythonClassName": "Text", "text": {}},
        "vectors": sequence(tensor("float64", "2")),
        "deep": sequence(sequence(tensor("int64"))),
        "in": {"featuresDict": {"features": {"x": tensor("uint8", "4")}}},
    }
    assert parse_tfds_features({"featuresDict": {"features": features}}) == {
        "text": FeatureSpec(kind="bytes", dtype="bytes", type="string"),
        "vectors": FeatureSpec(
            kind="float",
            dtype="float32",
            shape=(None, 2),
            optional=True,
            type="double",
        ),
        "in/x": FeatureSpec(kind="int64", dtype="uint8", shape=(4,), type="uint8"),
    }
